/* What is done to a stretch of text before it is cut into tokens: a list of steps.
 *
 * A step that changes nothing copies nothing, so text that is NFC already passes through
 * as it is.
 */
#ifndef KG_TEXT_NORMALIZER_H
#define KG_TEXT_NORMALIZER_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>

enum kg_normalizer_kind {
    KG_NORMALIZE_NFC,
    KG_NORMALIZE_PREPEND, /* `to` goes in front of text that is not empty */
    KG_NORMALIZE_REPLACE, /* every `from` becomes `to`; left to right, no overlap */
};

struct kg_normalizer_step {
    enum kg_normalizer_kind kind;
    struct kg_str from; /* owned; not empty for REPLACE */
    struct kg_str to;   /* owned */
};

enum { KG_MAX_NORMALIZER_STEPS = 8 };
struct kg_normalizer { /* {0} changes nothing */
    struct kg_normalizer_step steps[KG_MAX_NORMALIZER_STEPS];
    size_t n;
};
void kg_normalizer_release(struct kg_normalizer *norm);
/* Takes from and to (C strings; NULL is empty) over as copies.
 * errors: UNSUPPORTED (too many steps), ENOMEM */
kg_status kg_normalizer_add(struct kg_normalizer *norm, enum kg_normalizer_kind kind,
                            const char *from, const char *to,
                            struct kg_err *err) KG_MUST_CHECK;

/* Working memory of a thread. {0} is ready. */
struct kg_normalizer_work {
    struct kg_str buffers[2];
};
void kg_normalizer_work_release(struct kg_normalizer_work *work);

/* *out is text itself or in work, until its next use. prepends: false where the text goes
 * on behind other text, so that nothing is put in front.   text: valid UTF-8.
 * errors: ENOMEM */
kg_status kg_normalize(const char **out, size_t *out_n, const struct kg_normalizer *norm,
                       const char *text, size_t n, bool prepends,
                       struct kg_normalizer_work *work, struct kg_err *err) KG_MUST_CHECK;

/* Append text with every `from` (not empty) replaced by `to`.   errors: ENOMEM */
kg_status kg_replace_all(struct kg_str *out, const char *text, size_t n,
                         const struct kg_str *from, const struct kg_str *to,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
