/* Files installed by `make install`: recipes and suites. */
#ifndef KG_CLI_SHARED_H
#define KG_CLI_SHARED_H

#include "base/status.h"

/* Returns path unchanged; if it is relative, does not exist, and PREFIX/share/kedge/PATH
 * does (the program is in PREFIX/bin), returns the latter and logs it. *own: owned by the
 * caller, may be NULL.   returns path or *own
 * errors: ENOMEM, then it returns NULL */
const char *kg_cli_shared(char **own, const char *path, struct kg_err *err);

#endif
