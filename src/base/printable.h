/* Text of others (a model, a tool, a corpus, a data file, a server) on its way to a
 * terminal, which obeys control characters. What is said (base/log.h), what commands
 * write to a terminal (cli/cli.h) and prompts that are shown (text/prompt.h) go through
 * here: a new printer needs nothing. */
#ifndef KG_BASE_PRINTABLE_H
#define KG_BASE_PRINTABLE_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

/* Length of the printable character at the start of n > 0 bytes, 0 for what is none: no
 * UTF-8, or a control character, U+0080 to U+009F among them.   lines: line ends and tabs
 * are printable */
size_t kg_printable_at(const char *text, size_t n, bool lines);

/* A copy of at most size - 1 bytes, written out as by _put: whole characters, and what
 * does not fit is left out. */
void kg_printable_copy(char *out, size_t size, const char *text, bool lines);

/* Append the text; what is not printable is written as \xNN, a line end as \n. */
kg_status kg_printable_put(struct kg_str *out, const char *text, size_t n, bool lines,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
