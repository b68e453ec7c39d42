/* Escapes text for HTML. */
#ifndef KG_TEXT_HTML_H
#define KG_TEXT_HTML_H

#include "base/status.h"
#include "base/str.h"

/* Appends text escaped for an element or a quoted attribute: < > & " ' are escaped; bytes
 * that are not UTF-8, and control characters except line break and tab, become U+FFFD.
 * errors: ENOMEM */
kg_status kg_html_put(struct kg_str *out, const char *text, size_t n,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
