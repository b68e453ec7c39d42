/* Classes of characters as HuggingFace's `tokenizers` has them, for its normalizers and
 * pre-tokenizers.
 *
 * Its parts are built on tables of three ages: numbers, \w and lower case are those of a
 * present Unicode (16 and 17), punctuation and controls those of Unicode 9. utf8proc has
 * Unicode 15; the differences stand in classes.c, so that each of these functions answers
 * as the library for every code point. Marks alone are Unicode 15's.
 */
#ifndef KG_TEXT_CLASSES_H
#define KG_TEXT_CLASSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool kg_class_is_number(uint32_t cp);      /* Nd, Nl, No */
bool kg_class_is_punctuation(uint32_t cp); /* P, and all signs of ASCII */
bool kg_class_is_word(uint32_t cp);        /* \w: Alphabetic, M, Nd, Pc, joiners */
bool kg_class_is_mark(uint32_t cp);        /* M */

/* What a character becomes, as UTF-8.   returns the bytes written, 0: it goes */
enum { KG_CLASS_BYTES = 8 };
typedef size_t kg_class_map(char out[KG_CLASS_BYTES], uint32_t cp);
kg_class_map kg_class_lower;
kg_class_map kg_class_drop_marks;      /* M goes */
kg_class_map kg_class_drop_nonspacing; /* Mn goes */
kg_class_map kg_class_clean;           /* BERT's: controls go, white space is a space */
kg_class_map kg_class_space_cjk;       /* BERT's: a space before and behind ideographs */
kg_class_map kg_class_nmt; /* SentencePiece's nmt: some go, some are a space */

#endif
