/* Files that `make install` puts beside the program: recipes and suites. */
#ifndef KG_CLI_SHARED_H
#define KG_CLI_SHARED_H

#include "base/status.h"

/* The path as it is, or, where nothing has that name and it is relative,
 * PREFIX/share/kedge/PATH of the program that runs in PREFIX/bin, if that is there: the
 * log then says so.   *own: owned by the caller, may be NULL   returns path or *own
 * errors: ENOMEM, in which case it returns NULL */
const char *kg_cli_shared(char **own, const char *path, struct kg_err *err);

#endif
