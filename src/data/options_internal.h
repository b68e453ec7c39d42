/* What options.c and options_dump.c share. */
#ifndef KG_DATA_OPTIONS_INTERNAL_H
#define KG_DATA_OPTIONS_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

/* Decode one code point of well-formed UTF-8.   returns its bytes, or 0 if malformed */
size_t kg_options_utf8(uint32_t *code, const char *text);

#endif
