/* Guests: parts of the program in folders of their own (guests/), that it can be linked
 * without.
 *
 * A guest includes the trunk and nothing of the trunk includes a guest. It comes in by a
 * row of a table that the trunk has: the row names a function that a header of the trunk
 * declares with KG_GUEST (base/status.h) and the guest defines. Where the guest is not
 * linked, the function is NULL, and the code that wants the row is told so.
 */
#ifndef KG_BASE_GUEST_H
#define KG_BASE_GUEST_H

#include "base/status.h"

/* what: the command, benchmark or file that needs it; guest: its folder
 * returns KG_EUNSUPPORTED with err set */
kg_status kg_guest_missing(const char *what, const char *guest, struct kg_err *err);

#endif
