/* Character classes as in HuggingFace's `tokenizers`, for its normalizers and
 * pre-tokenizers.
 *
 * That library mixes Unicode versions: numbers, \w and lower case follow Unicode 16 and
 * 17, punctuation and controls follow Unicode 9. utf8proc has Unicode 15. classes.c lists
 * the differences, so each function here agrees with the library for every code point.
 * Exception: marks follow Unicode 15.
 */
#ifndef KG_TEXT_CLASSES_H
#define KG_TEXT_CLASSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool kg_class_is_number(uint32_t cp);      /* Nd, Nl, No */
bool kg_class_is_punctuation(uint32_t cp); /* category P, and all ASCII symbols */
bool kg_class_is_word(uint32_t cp);        /* \w: Alphabetic, M, Nd, Pc, joiners */
bool kg_class_is_mark(uint32_t cp);        /* M */

/* Maps a character to UTF-8.   returns the bytes written; 0 deletes it */
enum { KG_CLASS_BYTES = 8 };
typedef size_t kg_class_map(char out[KG_CLASS_BYTES], uint32_t cp);
kg_class_map kg_class_lower;
kg_class_map kg_class_drop_marks;      /* deletes M */
kg_class_map kg_class_drop_nonspacing; /* deletes Mn */
kg_class_map kg_class_clean; /* as BERT: deletes controls, white space becomes a space */
kg_class_map kg_class_space_cjk; /* as BERT: a space before and after ideographs */
kg_class_map kg_class_nmt;       /* as SentencePiece's nmt: some are deleted or a space */

#endif
