/* The steps, one after the other, between two buffers.
 *
 * A step reads a text and appends another, so two buffers take turns and no third is
 * needed, however many steps there are. Before that a step is asked whether it would
 * change anything, which is cheap (a search, a look at a table of what is NFC for
 * certain); if not, the text passes as a pointer. Most text is never copied. A step
 * knows only its stretch: whether that begins the whole text the caller says.
 */
#include "text/normalizer.h"

#include "text/unicode.h"

#include <string.h>

void kg_normalizer_release(struct kg_normalizer *norm)
{
    for (size_t i = 0; i < KG_MAX_NORMALIZER_STEPS; i++) {
        kg_str_release(&norm->steps[i].from);
        kg_str_release(&norm->steps[i].to);
    }
    *norm = (struct kg_normalizer){0};
}

void kg_normalizer_work_release(struct kg_normalizer_work *work)
{
    kg_str_release(&work->buffers[0]);
    kg_str_release(&work->buffers[1]);
}

kg_status kg_normalizer_add(struct kg_normalizer *norm, enum kg_normalizer_kind kind,
                            const char *from, const char *to, struct kg_err *err)
{
    if (norm->n == KG_MAX_NORMALIZER_STEPS)
        return kg_fail(err, KG_EUNSUPPORTED, "more than %d steps",
                       KG_MAX_NORMALIZER_STEPS);
    struct kg_normalizer_step *step = &norm->steps[norm->n++];
    step->kind = kind;
    KG_TRY(kg_str_puts(&step->from, from ? from : "", err));
    return kg_str_puts(&step->to, to ? to : "", err);
}

/* Start of the first `what` in text, or the end of text. */
static const char *find(const char *text, size_t n, const struct kg_str *what)
{
    const char *end = text + n;
    while ((size_t)(end - text) >= what->len) {
        text = memchr(text, what->data[0], (size_t)(end - text) - what->len + 1);
        if (!text)
            return end;
        if (memcmp(text, what->data, what->len) == 0)
            return text;
        text++;
    }
    return end;
}

kg_status kg_replace_all(struct kg_str *out, const char *text, size_t n,
                         const struct kg_str *from, const struct kg_str *to,
                         struct kg_err *err)
{
    const char *end = text + n;
    while (text < end) {
        const char *at = find(text, (size_t)(end - text), from);
        KG_TRY(kg_str_append(out, text, (size_t)(at - text), err));
        if (at == end)
            break;
        KG_TRY(kg_str_append(out, kg_str_text(to), to->len, err));
        text = at + from->len;
    }
    return KG_OK;
}

static bool changes(const struct kg_normalizer_step *step, const char *text, size_t n,
                    bool prepends)
{
    switch (step->kind) {
    case KG_NORMALIZE_NFC:
        return !kg_unicode_is_surely_nfc(text, n);
    case KG_NORMALIZE_PREPEND:
        return prepends && n > 0;
    case KG_NORMALIZE_REPLACE:
        return find(text, n, &step->from) != text + n;
    }
    return false;
}

static kg_status run_step(struct kg_str *out, const struct kg_normalizer_step *step,
                          const char *text, size_t n, struct kg_err *err)
{
    switch (step->kind) {
    case KG_NORMALIZE_NFC:
        return kg_unicode_nfc(out, text, n, err);
    case KG_NORMALIZE_PREPEND:
        KG_TRY(kg_str_append(out, kg_str_text(&step->to), step->to.len, err));
        return kg_str_append(out, text, n, err);
    case KG_NORMALIZE_REPLACE:
        return kg_replace_all(out, text, n, &step->from, &step->to, err);
    }
    return KG_OK;
}

kg_status kg_normalize(const char **out, size_t *out_n, const struct kg_normalizer *norm,
                       const char *text, size_t n, bool prepends,
                       struct kg_normalizer_work *work, struct kg_err *err)
{
    size_t next = 0;
    for (size_t i = 0; i < norm->n; i++) {
        if (!changes(&norm->steps[i], text, n, prepends))
            continue;
        struct kg_str *buffer = &work->buffers[next];
        kg_str_clear(buffer);
        KG_TRY(run_step(buffer, &norm->steps[i], text, n, err));
        text = kg_str_text(buffer);
        n = buffer->len;
        next = 1 - next;
    }
    *out = text;
    *out_n = n;
    return KG_OK;
}
