/* What a build without a guest says. */
#include "base/guest.h"

kg_status kg_guest_missing(const char *what, const char *guest, struct kg_err *err)
{
    return kg_fail(
        err, KG_EUNSUPPORTED,
        "%s: expected a kedge with guests/%s, found one that was built without "
        "it (make, or make GUESTS=\"... %s\")",
        what, guest, guest);
}
