/* PCRE2 helpers shared by pretoken.c and pattern.c. */
#ifndef KG_TEXT_PCRE_INTERNAL_H
#define KG_TEXT_PCRE_INTERNAL_H

#include "base/status.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Makes PCRE2 allocate through base/mem; owned. NULL: err is set */
pcre2_general_context *kg_pcre_memory(struct kg_err *err);

#endif
