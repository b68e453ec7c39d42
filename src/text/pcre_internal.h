/* What pretoken.c and pattern.c share of PCRE2. */
#ifndef KG_TEXT_PCRE_INTERNAL_H
#define KG_TEXT_PCRE_INTERNAL_H

#include "base/status.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Sends the library's allocations through base/mem; owned.   NULL: err says why */
pcre2_general_context *kg_pcre_memory(struct kg_err *err);

#endif
