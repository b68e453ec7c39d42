/* Escapes untrusted text (of a model, tool, corpus, data file or server) before it
 * reaches a terminal, which obeys control characters. The log (base/log.h), what commands
 * write to a terminal (cli/cli.h) and prompts that are shown (text/prompt.h) pass through
 * here, so other code need not escape. */
#ifndef KG_BASE_PRINTABLE_H
#define KG_BASE_PRINTABLE_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

/* Length of the printable character at the start of n > 0 bytes. 0 if it is malformed
 * UTF-8 or a control character (U+0080 to U+009F included). lines: line feeds and tabs
 * are printable */
size_t kg_printable_at(const char *text, size_t n, bool lines);

/* kg_printable_put to a buffer: at most size - 1 bytes, truncated between characters. */
void kg_printable_copy(char *out, size_t size, const char *text, bool lines);

/* Appends text; each unprintable byte becomes \xNN, a line feed (unless `lines`) \n. */
kg_status kg_printable_put(struct kg_str *out, const char *text, size_t n, bool lines,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
