/* Text normalization before tokenization: a list of steps.
 *
 * A step that changes nothing copies nothing, so text that is already NFC passes through
 * unchanged.
 */
#ifndef KG_TEXT_NORMALIZER_H
#define KG_TEXT_NORMALIZER_H

#include "base/status.h"
#include "base/str.h"
#include "text/pretoken.h"

#include <stdbool.h>
#include <stdint.h>

/* The rows of the table in normalizer.c. */
enum kg_normalizer_kind {
    KG_NORMALIZE_NFC,
    KG_NORMALIZE_NFD,
    KG_NORMALIZE_NFKC,
    KG_NORMALIZE_NFKD,
    KG_NORMALIZE_LOWER,
    KG_NORMALIZE_DROP_MARKS,
    KG_NORMALIZE_DROP_NONSPACING,
    KG_NORMALIZE_CLEAN, /* as BERT: deletes controls, white space becomes a space */
    KG_NORMALIZE_CJK,   /* BERT's: spaces around ideographs */
    KG_NORMALIZE_NMT,
    KG_NORMALIZE_STRIP_LEFT, /* removes white space at the beginning */
    KG_NORMALIZE_STRIP_RIGHT,
    /* as SentencePiece: removes spaces at both ends, and repeated ones */
    KG_NORMALIZE_SQUEEZE,
    KG_NORMALIZE_CLUSTERS, /* kg_charsmap_clusters by `map` */
    KG_NORMALIZE_LONGEST,  /* kg_charsmap_longest by `map` */
    KG_NORMALIZE_PREPEND,  /* puts `to` before text that is not empty */
    KG_NORMALIZE_REPLACE,  /* replaces every `from` by `to`; left to right, no overlap */
    KG_NORMALIZE_PATTERN,  /* replaces every match of `pattern` by `to` */
    /* decoder of WordPiece: removes `from` at the beginning, else puts a space there */
    KG_NORMALIZE_WORD,
};

struct kg_normalizer_step {
    enum kg_normalizer_kind kind;
    struct kg_str from;          /* owned; not empty for REPLACE */
    struct kg_str to;            /* owned */
    struct kg_pretoken *pattern; /* owned; PATTERN only */
    struct kg_charsmap *map;     /* owned; CLUSTERS and LONGEST only */
};

enum { KG_MAX_NORMALIZER_STEPS = 32 };
struct kg_normalizer { /* {0} changes nothing */
    struct kg_normalizer_step steps[KG_MAX_NORMALIZER_STEPS];
    size_t n;
};
void kg_normalizer_release(struct kg_normalizer *norm);
/* Adds a step; from and to (C strings; NULL means "") are copied.
 * errors: EUNSUPPORTED (too many steps), ENOMEM */
kg_status kg_normalizer_add(struct kg_normalizer *norm, enum kg_normalizer_kind kind,
                            const char *from, const char *to,
                            struct kg_err *err) KG_MUST_CHECK;
/* The step added last. */
struct kg_normalizer_step *kg_normalizer_newest(struct kg_normalizer *norm);

/* Working memory of one thread. {0} is ready. */
struct kg_normalizer_work {
    struct kg_str buffers[2];
};
void kg_normalizer_work_release(struct kg_normalizer_work *work);

/* Runs all steps. *out <- text itself, or the result in work, valid until the next use of
 * work. prepends: false if text continues other text, so that nothing is put before it.
 * text: valid UTF-8.   errors: ENOMEM, EFORMAT (a pattern or the result at its limit) */
kg_status kg_normalize(const char **out, size_t *out_n, const struct kg_normalizer *norm,
                       const char *text, size_t n, bool prepends,
                       struct kg_normalizer_work *work, struct kg_err *err) KG_MUST_CHECK;

/* Appends text with every `from` (not empty) replaced by `to`.   errors: ENOMEM */
kg_status kg_replace_all(struct kg_str *out, const char *text, size_t n,
                         const struct kg_str *from, const struct kg_str *to,
                         struct kg_err *err) KG_MUST_CHECK;

/* SentencePiece's precompiled character map, which replaces characters or short sequences
 * before tokenization (nmt_nfkc and others, of T5 and XLM-R).
 * source: sentencepiece's normalizer.cc and Darts-clone's double array. Layout: the size
 * of the trie in 4 bytes; the trie, an array of 32-bit units; NUL-terminated texts. The
 * trie's values are offsets into the texts. The input is untrusted: every step of a walk
 * is checked against the array's end. */

struct kg_charsmap; /* immutable, usable from any thread */

/* errors: EFORMAT (sizes that do not fit, texts that are not UTF-8), ENOMEM */
kg_status kg_charsmap_create(struct kg_charsmap **out, const void *bytes, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
void kg_charsmap_free(struct kg_charsmap *map);

/* Appends the mapped form of valid UTF-8. kg_charsmap_longest works as SentencePiece: the
 * longest match at every place. kg_charsmap_clusters works as Precompiled of
 * `tokenizers`: a grapheme cluster of fewer than six bytes becomes the text of the
 * shortest match at its start; without one, and in other clusters, each character does.
 * errors: ENOMEM */
kg_status kg_charsmap_longest(struct kg_str *out, const struct kg_charsmap *map,
                              const char *text, size_t n,
                              struct kg_err *err) KG_MUST_CHECK;
kg_status kg_charsmap_clusters(struct kg_str *out, const struct kg_charsmap *map,
                               const char *text, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

#endif
