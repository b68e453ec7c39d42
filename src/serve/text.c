/* Decides which part of a growing completion may be sent. Sent bytes cannot be taken
 * back, so a byte is sent only when no later text could change it: it completes a
 * character, and no stop string can begin with it. For each stop string, the longest end
 * of the text that is a beginning of it is held back. At its end the completion is cut as
 * any finished completion and the rest is sent, so a stream equals a whole response. */
#include "serve/text.h"

#include "base/utf8.h"
#include "rollout/rollout.h"

#include <string.h>

void kg_serve_text_release(struct kg_serve_text *t)
{
    kg_str_release(&t->raw);
    kg_str_release(&t->mask);
    kg_str_release(&t->ready);
    *t = (struct kg_serve_text){0};
}

/* Bytes at the end of text that may begin a stop string. */
static size_t may_stop(const struct kg_str *text, const char *stop)
{
    size_t n = strlen(stop);
    size_t most = text->len < n ? text->len : n - 1;
    for (size_t len = most; len > 0; len--)
        if (memcmp(text->data + text->len - len, stop, len) == 0)
            return len;
    return 0;
}

/* Makes the bytes of raw before `end` ready, except those of hidden special tokens. */
static kg_status pass(struct kg_serve_text *t, size_t end, struct kg_err *err)
{
    for (; t->passed < end; t->passed++)
        if (t->mask.data[t->passed])
            KG_TRY(kg_str_putc(&t->ready, t->raw.data[t->passed], err));
    return KG_OK;
}

/* Moves the first n ready bytes to out. */
static kg_status tell(struct kg_str *out, struct kg_serve_text *t, size_t n,
                      struct kg_err *err)
{
    if (n == 0)
        return KG_OK;
    KG_TRY(kg_str_append(out, t->ready.data, n, err));
    t->ready.len -= n;
    memmove(t->ready.data, t->ready.data + n, t->ready.len + 1);
    return KG_OK;
}

kg_status kg_serve_text_add(struct kg_str *out, struct kg_serve_text *t,
                            const struct kg_tokenizer *tok, int32_t token,
                            const char *const *stops, int n_stops, struct kg_err *err)
{
    size_t held = 0;
    size_t at;
    size_t seen = t->raw.len;
    char shown = t->special || !kg_tokenizer_is_special(tok, token);
    KG_TRY(kg_tokenizer_decode(&t->raw, tok, &token, 1, false, err));
    while (t->mask.len < t->raw.len)
        KG_TRY(kg_str_putc(&t->mask, shown, err));
    for (int i = 0; i < n_stops; i++) {
        size_t n = may_stop(&t->raw, stops[i]);
        held = n > held ? n : held;
    }
    if (kg_stop_find(&at, &t->raw, seen, stops, n_stops)) /* the completion ends there */
        held = t->raw.len - at;
    if (t->raw.len - held > t->passed)
        KG_TRY(pass(t, t->raw.len - held, err));
    return tell(out, t, t->ready.len - kg_utf8_cut(kg_str_text(&t->ready), t->ready.len),
                err);
}

kg_status kg_serve_text_end(struct kg_str *out, struct kg_serve_text *t,
                            const char *const *stops, int n_stops, enum kg_finish finish,
                            struct kg_err *err)
{
    size_t end = t->raw.len;
    if (finish == KG_FINISH_STRING)
        kg_stop_find(&end, &t->raw, 0, stops, n_stops);
    KG_TRY(pass(t, end, err));
    return tell(out, t, t->ready.len, err);
}
