/* Text of others (a model, a tool, a corpus, a server) on its way to a terminal, which
 * obeys control characters. */
#ifndef KG_CLI_PRINTABLE_H
#define KG_CLI_PRINTABLE_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

/* Length of the printable character at the start of n > 0 bytes, 0 for what is none: no
 * UTF-8, or a control character, U+0080 to U+009F among them.   lines: line ends and tabs
 * are printable */
size_t kg_cli_printable_at(const char *text, size_t n, bool lines);

/* Append the text; what is not printable is written as \xNN, a line end as \n. */
kg_status kg_cli_put_printable(struct kg_str *out, const char *text, size_t n, bool lines,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
