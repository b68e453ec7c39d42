/* Stop strings, and a completion as text.
 *
 * The bytes of a token do not depend on its neighbours, so the text grows by appending. A
 * new token can only complete occurrences that end in its own bytes. During the search
 * special tokens appear as their content, so they can be part of a stop string; the final
 * text omits them.
 */

#include "rollout/rollout.h"

#include <string.h>

/* The first place at or after `from` where needle begins, or the length of the text. */
static size_t find_from(const struct kg_str *text, size_t from, const char *needle)
{
    const char *data = kg_str_text(text);
    size_t n = strlen(needle);
    for (size_t i = from; i + n <= text->len; i++)
        if (memcmp(data + i, needle, n) == 0)
            return i;
    return text->len;
}

bool kg_stop_find(size_t *at, const struct kg_str *text, size_t seen,
                  const char *const *stops, int n_stops)
{
    size_t best = text->len;
    for (int i = 0; i < n_stops; i++) {
        size_t n = strlen(stops[i]);
        size_t from = seen + 1 > n ? seen + 1 - n : 0;
        size_t place = find_from(text, from, stops[i]);
        best = place < best ? place : best;
    }
    if (best == text->len)
        return false;
    *at = best;
    return true;
}

/* Appends the token's bytes to raw, and those before byte `end` of raw also to out,
 * unless the token is special. */
static kg_status put_token(struct kg_str *out, struct kg_str *raw,
                           const struct kg_tokenizer *tok, int32_t token, size_t end,
                           struct kg_err *err)
{
    size_t before = raw->len;
    KG_TRY(kg_tokenizer_decode(raw, tok, &token, 1, false, err));
    if (before >= end || kg_tokenizer_is_special(tok, token))
        return KG_OK;
    size_t stop = raw->len < end ? raw->len : end;
    return kg_str_append(out, kg_str_text(raw) + before, stop - before, err);
}

static kg_status put_answer(struct kg_str *out, struct kg_str *raw,
                            const struct kg_tokenizer *tok, const struct kg_traj *t,
                            size_t end, struct kg_err *err)
{
    for (size_t i = t->prompt_n; i < t->n; i++)
        KG_TRY(put_token(out, raw, tok, t->tokens[i], end, err));
    return KG_OK;
}

kg_status kg_rollout_text(struct kg_str *out, const struct kg_tokenizer *tok,
                          const struct kg_traj *t, const char *const *stops, int n_stops,
                          struct kg_err *err)
{
    struct kg_str raw = {0};
    size_t end = SIZE_MAX;
    kg_status status = KG_OK;
    if (t->finish == KG_FINISH_STRING && t->episode.turns == 0) {
        KG_TRY_GOTO(out, kg_tokenizer_decode(&raw, tok, t->tokens + t->prompt_n,
                                             t->n - t->prompt_n, false, err));
        kg_stop_find(&end, &raw, 0, stops, n_stops);
        kg_str_clear(&raw);
    }
    status = put_answer(out, &raw, tok, t, end, err);
out:
    kg_str_release(&raw);
    return status;
}
