/* Responses of /inference/v1/generate: ids in, ids out, as in vLLM.
 *
 * Trainers read these, so they contain no text that would have to be parsed. Older and
 * newer clients read a log-prob differently: older ones "token", which is "token_id:ID",
 * newer ones "token_id" and "rank"; both are written. A finite number instead of infinity
 * would be trained on, so infinity is an error here.
 */
#include "serve/api_ids.h"

#include "text/bytelevel.h"

#include <math.h>

kg_status kg_api_put_ids_begin(struct kg_str *out, const struct kg_api_answer *a,
                               bool first, struct kg_err *err)
{
    const struct kg_api_request *r = a->r;
    KG_TRY(kg_json_put_text(out, "{\"request_id\": ", r->id ? r->id : a->id, err));
    KG_TRY(kg_json_put_text(out, ", \"model\": ", a->m->name, err));
    KG_TRY(kg_str_printf(out, err, ", \"created\": %lld, \"output_mode\": \"%s\"",
                         (long long)a->created, r->texts ? "text" : "tokens"));
    if (first && r->token_ids) {
        const struct kg_ids *ids = &r->prompts[0].ids;
        KG_TRY(kg_str_puts(out, ", \"prompt_token_ids\": ", err));
        KG_TRY(kg_json_put_ints(out, ids->ids, ids->n, err));
    }
    return kg_str_puts(out, ", \"choices\": [", err);
}

/* ---- log-probs ---- */

static kg_status put_logp(struct kg_str *out, int32_t id, float logp, struct kg_err *err)
{
    if (isfinite(logp))
        return kg_json_put_float(out, logp, err);
    return kg_fail(err, KG_ENONFINITE, "expected a finite log-prob of token %d, found %g",
                   id, (double)logp);
}

/* rank: 1 is the likeliest; 0: not known */
static kg_status put_rank(struct kg_str *out, int rank, struct kg_err *err)
{
    return rank > 0 ? kg_str_printf(out, err, ", \"rank\": %d", rank)
                    : kg_str_puts(out, ", \"rank\": null", err);
}

/* An entry as in chat completions, and the id. */
static kg_status put_named(struct kg_str *out, const struct kg_api_answer *a, int32_t id,
                           float logp, struct kg_err *err)
{
    struct kg_str bytes = {0};
    kg_status status = kg_api_put_entry(out, a, &bytes, id, logp, err);
    kg_str_release(&bytes);
    KG_TRY(status);
    return kg_str_printf(out, err, ", \"token_id\": %d", id);
}

/* Writes no closing brace. */
static kg_status put_scored(struct kg_str *out, const struct kg_api_answer *a, int32_t id,
                            float logp, int rank, struct kg_err *err)
{
    if (a->r->texts && isfinite(logp)) {
        KG_TRY(put_named(out, a, id, logp, err));
        return put_rank(out, rank, err);
    }
    KG_TRY(kg_str_printf(
        out, err, "{\"token\": \"token_id:%d\", \"token_id\": %d, \"logprob\": ", id,
        id));
    KG_TRY(put_logp(out, id, logp, err));
    return put_rank(out, rank, err);
}

/* Rank of an id among the n likeliest; 0: it is not one of them. */
static int rank_among(int32_t id, const int32_t *ids, int n)
{
    for (int k = 0; k < n; k++)
        if (ids[k] == id)
            return k + 1;
    return 0;
}

static int rank_of(const struct kg_traj *t, size_t i)
{
    return rank_among(t->tokens[i], t->top_ids + i * (size_t)t->top_k, t->top_k);
}

/* The sampled token, then the likeliest other ones, up to the number requested. */
static kg_status put_top(struct kg_str *out, const struct kg_api_answer *a,
                         const struct kg_traj *t, size_t i, struct kg_err *err)
{
    const int most = a->r->top_logprobs;
    const int32_t *ids = t->top_ids + i * (size_t)t->top_k;
    const float *logp = t->top_logp + i * (size_t)t->top_k;
    int listed = 1;
    KG_TRY(put_scored(out, a, t->tokens[i], t->logp[i], rank_of(t, i), err));
    for (int k = 0; k < t->top_k && listed < most; k++) {
        if (ids[k] == t->tokens[i])
            continue;
        KG_TRY(kg_str_puts(out, "}, ", err));
        KG_TRY(put_scored(out, a, ids[k], logp[k], k + 1, err));
        listed++;
    }
    return kg_str_putc(out, '}', err);
}

static kg_status put_logprobs(struct kg_str *out, const struct kg_api_answer *a,
                              const struct kg_api_choice *c, struct kg_err *err)
{
    const struct kg_traj *t = c->t;
    KG_TRY(kg_str_puts(out, "{\"content\": [", err));
    for (size_t i = c->from; i < c->to; i++) {
        KG_TRY(kg_str_puts(out, i > c->from ? ", " : "", err));
        KG_TRY(put_scored(out, a, t->tokens[i], t->logp[i], rank_of(t, i), err));
        KG_TRY(kg_str_puts(out, ", \"top_logprobs\": [", err));
        KG_TRY(put_top(out, a, t, i, err));
        KG_TRY(kg_str_puts(out, "]}", err));
    }
    return kg_str_puts(out, "]}", err);
}

/* ---- log-probs of a prompt ---- */

static kg_status put_candidate(struct kg_str *out, int32_t id, float logp, int rank,
                               struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "\"%d\": {\"logprob\": ", id));
    KG_TRY(put_logp(out, id, logp, err));
    KG_TRY(put_rank(out, rank, err));
    return kg_str_puts(out, ", \"decoded_token\": null}", err);
}

/* The token at i, then the n likeliest other ones: vLLM lists the token in any case. */
static kg_status put_candidates(struct kg_str *out, const struct kg_api_prompt *p,
                                size_t i, int width, int n, struct kg_err *err)
{
    const int32_t *ids = p->scores.top_ids + i * (size_t)width;
    const float *logp = p->scores.top_logp + i * (size_t)width;
    int32_t token = p->ids.ids[i];
    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(
        put_candidate(out, token, p->scores.logp[i], rank_among(token, ids, width), err));
    for (int k = 0; k < n; k++) {
        if (ids[k] == token)
            continue;
        KG_TRY(kg_str_puts(out, ", ", err));
        KG_TRY(put_candidate(out, ids[k], logp[k], k + 1, err));
    }
    return kg_str_putc(out, '}', err);
}

kg_status kg_api_put_prompt_scores(struct kg_str *out, const struct kg_api_request *r,
                                   struct kg_err *err)
{
    const struct kg_api_prompt *p = r->prompts;
    if (!r->prompt_scores)
        return KG_OK;
    KG_TRY(kg_str_puts(out, ", \"prompt_logprobs\": [null", err));
    for (size_t i = 1; i < p->ids.n; i++) {
        KG_TRY(kg_str_puts(out, ", ", err));
        KG_TRY(put_candidates(out, p, i, kg_api_records(r), r->top_prompt, err));
    }
    return kg_str_putc(out, ']', err);
}

/* ---- what truncation kept ---- */

/* A set without ids means the whole vocabulary. */
static kg_status put_set(struct kg_str *out, const struct kg_idset *s, struct kg_err *err)
{
    struct kg_idset_walk w = {0};
    KG_TRY(kg_str_putc(out, '[', err));
    if (s->n > 0)
        kg_idset_begin(&w, s);
    for (int32_t left = s->n > 0 ? s->n : s->bound; left > 0; left--) {
        KG_TRY(kg_str_printf(out, err, left > 1 ? "%d," : "%d", w.id));
        if (s->n > 0)
            kg_idset_next(&w, s);
        else
            w.id++;
    }
    return kg_str_putc(out, ']', err);
}

static kg_status put_mask(struct kg_str *out, const struct kg_api_choice *c,
                          struct kg_err *err)
{
    size_t at = 0;
    if (c->t->kept_n == NULL)
        return kg_str_puts(out, "null", err);
    KG_TRY(kg_str_putc(out, '[', err));
    for (size_t i = 0; i < c->to; i++) {
        const struct kg_idset s = kg_traj_kept(c->t, i, &at);
        if (i < c->from)
            continue;
        KG_TRY(kg_str_puts(out, i > c->from ? ", " : "", err));
        KG_TRY(put_set(out, &s, err));
    }
    return kg_str_putc(out, ']', err);
}

/* ---- experts ---- */

/* The experts of one token: layers x k numbers of `width` bytes (dense layers: zeros). */
static kg_status put_token_experts(struct kg_str *bytes, const struct kg_model_config *c,
                                   const uint16_t *chosen, int width, struct kg_err *err)
{
    const int32_t k_n = c->experts.k;
    for (int32_t l = 0; l < c->layers; l++) {
        const bool has = (kg_model_config_layer(c, l) & KG_EXPERTS) != 0;
        for (int32_t k = 0; k < k_n; k++) {
            const unsigned id = has ? chosen[k] : 0;
            KG_TRY(kg_str_putc(bytes, (char)(id & 0xff), err));
            if (width == 2)
                KG_TRY(kg_str_putc(bytes, (char)(id >> 8), err));
        }
        chosen += has ? k_n : 0;
    }
    return KG_OK;
}

/* In the form that released clients read, not vLLM's newest (an .npy file in base64): raw
 * numbers, shape, position of the first. No spaces, because one client searches for these
 * exact bytes. The last token was never fed, so it has no experts. */
kg_status kg_api_put_experts(struct kg_str *out, const struct kg_api_answer *a,
                             const struct kg_api_choice *c, struct kg_err *err)
{
    const struct kg_model_config *m = a->m->routed;
    const struct kg_traj *t = c->t;
    const size_t end = t->n > 0 ? t->n - 1 : 0;
    const size_t from = (size_t)a->r->experts_from < end ? (size_t)a->r->experts_from
                                                         : end;
    struct kg_str bytes = {0};
    kg_status status = KG_OK;
    if (t->choices == 0)
        return KG_OK;
    const int width = m->experts.n > 256 ? 2 : 1;
    for (size_t j = from; j < end && status == KG_OK; j++)
        status = put_token_experts(&bytes, m, t->experts + j * (size_t)t->choices, width,
                                   err);
    if (status == KG_OK)
        status = kg_str_puts(out, ", \"routed_experts\":{\"data\":\"", err);
    if (status == KG_OK)
        status = kg_base64_put(out, kg_str_text(&bytes), bytes.len, err);
    kg_str_release(&bytes);
    KG_TRY(status);
    return kg_str_printf(out, err,
                         "\",\"shape\":[%zu,%d,%d],\"dtype\":\"uint%d\",\"start\":%zu}",
                         end - from, m->layers, m->experts.k, 8 * width, from);
}

/* ---- a choice ---- */

/* A server's weights never change, so a completion is one span of version 0. */
static kg_status put_versions(struct kg_str *out, const struct kg_api_choice *c,
                              struct kg_err *err)
{
    if (c->finish == KG_FINISH_NONE)
        return kg_str_puts(out, "null", err);
    return kg_str_printf(out, err, "[{\"version\": \"0\", \"start\": 0, \"end\": %zu}]",
                         c->t->n - c->t->prompt_n);
}

kg_status kg_api_put_ids_choice(struct kg_str *out, const struct kg_api_answer *a,
                                const struct kg_api_choice *c, const char *finish,
                                struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "{\"index\": %d, \"token_ids\": ", c->index));
    KG_TRY(kg_json_put_ints(out, c->t->tokens + c->from, c->to - c->from, err));
    if (a->r->texts) {
        KG_TRY(kg_str_puts(out, ", \"text\": ", err));
        KG_TRY(kg_json_put_string(out, c->text, c->text_n, err));
    }
    KG_TRY(kg_str_puts(out, ", \"logprobs\": ", err));
    KG_TRY(a->r->logprobs ? put_logprobs(out, a, c, err) : kg_str_puts(out, "null", err));
    KG_TRY(
        kg_str_printf(out, err, ", \"finish_reason\": %s, \"sampling_mask\": ", finish));
    KG_TRY(put_mask(out, c, err));
    KG_TRY(c->t->choices > 0 ? kg_api_put_experts(out, a, c, err)
                             : kg_str_puts(out, ", \"routed_experts\": null", err));
    KG_TRY(kg_str_puts(out, ", \"weight_versions\": ", err));
    KG_TRY(put_versions(out, c, err));
    return kg_str_putc(out, '}', err);
}
