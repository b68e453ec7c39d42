/* The trace of a report, in OpenEnv's form (TrainingTrace): which turns of the episode
 * count, and which of their tokens are trained.
 *
 * A trace never adds a token. Each of its turns must be one that this episode's endpoint
 * sampled, id for id; the error names one that is not. A trace decides the mask: sampled
 * tokens whose mask is not 1 become context, and branches without a 1 are left out.
 */
#include "base/mem.h"
#include "serve/policy_internal.h"

#include <math.h>
#include <string.h>

/* Clients may round log-probs. Training uses the record's values. */
static const double TOLERANCE = 1e-4;

enum key { PROMPT, COMPLETION, LOGPS, MASK, N_LISTS, NODE = N_LISTS, N_KEYS = 8 };
static const char *const keys[N_KEYS] = {"prompt_token_ids", "completion_token_ids",
                                         "per_token_logps",  "loss_mask",
                                         "node_id",          "request",
                                         "response",         "metadata"};

struct claim {
    const char *node;
    const struct kg_json *list[N_LISTS];
    size_t turn; /* index into the record's turns */
};

static kg_status refuse(struct kg_err *err, const struct claim *c, enum key key, size_t i,
                        const char *want)
{
    char found[KG_NUMBER] = "none";

    if (i < kg_json_size(c->list[key]))
        kg_number(found, kg_json_real(kg_json_at(c->list[key], i), NAN), 9);
    return kg_fail(err, KG_EFORMAT, "trace: turn '%.40s': %s[%zu]: expected %s, found %s",
                   c->node, keys[key], i, want, found);
}

/* ---- form ---- */

static kg_status check_lengths(const struct claim *c, struct kg_err *err)
{
    const size_t n = kg_json_size(c->list[COMPLETION]);
    const size_t all = kg_json_size(c->list[PROMPT]) + n;

    if (kg_json_size(c->list[LOGPS]) == n && kg_json_size(c->list[MASK]) == all)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "trace: turn '%.40s': expected %zu per_token_logps and a loss_mask of "
                   "%zu, found %zu and %zu",
                   c->node, n, all, kg_json_size(c->list[LOGPS]),
                   kg_json_size(c->list[MASK]));
}

static kg_status read_claim(struct claim *c, const struct kg_json *turn, size_t i,
                            struct kg_err *err)
{
    c->node = kg_json_text(kg_json_get(turn, keys[NODE]), NULL);
    if (!c->node || !*c->node)
        return kg_fail(err, KG_EFORMAT, "trace: turn %zu: expected a node_id, found %s",
                       i, c->node ? "an empty one" : "none");
    for (size_t k = 0, at; k < kg_json_size(turn); k++)
        KG_TRY(kg_str_pick(&at, KG_EFORMAT, "trace: key of a turn",
                           kg_json_key_at(turn, k), keys, N_KEYS, sizeof *keys, err));
    for (int k = 0; k < N_LISTS; k++) {
        c->list[k] = kg_json_get(turn, keys[k]);
        if (kg_json_type(c->list[k]) != KG_JSON_ARRAY)
            return kg_fail(err, KG_EFORMAT,
                           "trace: turn '%.40s': %s: expected a list, found %s", c->node,
                           keys[k], kg_json_type_name(c->list[k]));
    }
    return check_lengths(c, err);
}

/* ---- agreement ---- */

/* Length of the common prefix of list and ids. */
static size_t agreeing(const struct kg_json *list, const int32_t *ids, size_t n)
{
    size_t i = 0;

    while (i < n && kg_json_int(kg_json_at(list, i), -1) == ids[i])
        i++;
    return i;
}

static bool is_claimed(const struct claim *claims, size_t n, size_t turn)
{
    for (size_t i = 0; i < n; i++)
        if (claims[i].turn == turn)
            return true;
    return false;
}

/* Finds the turn with the claim's ids that no earlier claim has taken. */
static kg_status find_turn(struct claim *claims, size_t i,
                           const struct kg_policy_record *r, struct kg_err *err)
{
    struct claim *c = &claims[i];
    const size_t prompt = kg_json_size(c->list[PROMPT]);
    const size_t n = kg_json_size(c->list[COMPLETION]);
    const char *want = NULL;
    size_t wrong = 0;

    for (size_t k = 0; k < r->n_turns; k++) {
        const struct kg_policy_turn *t = &r->turns[k];
        const int32_t *ids = r->branches[t->branch].tokens;
        size_t same;

        if (t->begin != prompt || agreeing(c->list[PROMPT], ids, prompt) < prompt ||
            is_claimed(claims, i, k))
            continue;
        same = agreeing(c->list[COMPLETION], ids + prompt, t->end - prompt);
        if (same == t->end - prompt && same == n) {
            c->turn = k;
            return KG_OK;
        }
        want = "the id that was sampled";
        wrong = same;
    }
    if (want)
        return refuse(err, c, COMPLETION, wrong, want);
    return kg_fail(err, KG_EFORMAT,
                   "trace: turn '%.40s': expected the prompt of a turn of this episode, "
                   "found another one of %zu ids",
                   c->node, prompt);
}

/* The mask must be 0 in the prompt, and 0 or 1 at sampled tokens. */
static kg_status check_tokens(const struct claim *c, const struct kg_policy_record *r,
                              struct kg_err *err)
{
    const struct kg_policy_turn *t = &r->turns[c->turn];
    const float *logp = r->branches[t->branch].logp;

    for (size_t i = 0; i < t->end; i++) {
        const int64_t bit = kg_json_int(kg_json_at(c->list[MASK], i), -1);
        double said;

        if (bit != 0 && (bit != 1 || i < t->begin))
            return refuse(err, c, MASK, i, i < t->begin ? "0 in a prompt" : "0 or 1");
        if (i < t->begin)
            continue;
        said = kg_json_real(kg_json_at(c->list[LOGPS], i - t->begin), NAN);
        if (!(fabs(said - (double)logp[i]) <= TOLERANCE))
            return refuse(err, c, LOGPS, i - t->begin, "the log-prob that was sent");
    }
    return KG_OK;
}

static kg_status check_claim(struct claim *claims, size_t i, const struct kg_json *turn,
                             const struct kg_policy_record *r, struct kg_err *err)
{
    KG_TRY(read_claim(&claims[i], turn, i, err));
    for (size_t k = 0; k < i; k++)
        if (strcmp(claims[k].node, claims[i].node) == 0)
            return kg_fail(err, KG_EFORMAT,
                           "trace: turns %zu and %zu: expected different node_ids, found "
                           "'%.40s' twice",
                           k, i, claims[i].node);
    KG_TRY(find_turn(claims, i, r, err));
    return check_tokens(&claims[i], r, err);
}

/* ---- the mask ---- */

/* Copies the branch with its new sources up to the last trained token; empty if none. */
static kg_status rebuild(struct kg_traj *b, struct kg_err *err)
{
    struct kg_traj t = {.top_k = b->top_k,
                        .temperature = b->temperature,
                        .cut_n = b->cut_n,
                        .cut_nats = b->cut_nats};
    size_t end = b->n;
    kg_status status = KG_OK;

    while (end > b->prompt_n && b->source[end - 1] != KG_SOURCE_MODEL)
        end--;
    if (end > b->prompt_n)
        status = kg_traj_append(&t, b->tokens, b->prompt_n, KG_SOURCE_PROMPT, err);
    if (status == KG_OK && end > b->prompt_n)
        status = kg_traj_extend(&t, b, b->prompt_n, end, err);
    kg_traj_release(b);
    *b = t;
    return status;
}

static kg_status apply(struct kg_policy_record *r, const struct claim *claims, size_t n,
                       struct kg_err *err)
{
    size_t kept = 0;

    for (size_t k = 0; k < r->n_turns; k++) {
        const struct kg_policy_turn *t = &r->turns[k];

        memset(r->branches[t->branch].source + t->begin, KG_SOURCE_TOOL,
               t->end - t->begin);
    }
    for (size_t i = 0; i < n; i++) {
        const struct kg_policy_turn *t = &r->turns[claims[i].turn];

        for (size_t j = t->begin; j < t->end; j++)
            if (kg_json_int(kg_json_at(claims[i].list[MASK], j), 0) == 1)
                r->branches[t->branch].source[j] = KG_SOURCE_MODEL;
    }
    for (size_t b = 0; b < r->n_branches; b++) {
        struct kg_traj rebuilt;

        KG_TRY(rebuild(&r->branches[b], err));
        if (r->branches[b].n == 0)
            continue;
        rebuilt = r->branches[b];
        r->branches[b] = (struct kg_traj){0};
        r->branches[kept++] = rebuilt;
    }
    r->n_branches = kept;
    return KG_OK;
}

kg_status kg_policy_take_trace(struct kg_policy_record *r, const struct kg_json *trace,
                               struct kg_err *err)
{
    const struct kg_json *turns = kg_json_get(trace, "turns");
    const size_t n = kg_json_size(turns);
    struct claim *claims;
    kg_status status = KG_OK;

    if (kg_json_type(trace) == KG_JSON_NULL)
        return KG_OK;
    if (kg_json_int(kg_json_get(trace, "schema_version"), 1) != 1 ||
        kg_json_type(turns) != KG_JSON_ARRAY || n > r->n_turns)
        return kg_fail(err, KG_EFORMAT,
                       "trace: expected schema_version 1 and a list of at most the "
                       "episode's %zu turns, found another form or %zu turns",
                       r->n_turns, n);
    claims = kg_mem_calloc(n + 1, sizeof *claims, "trace", err);
    if (!claims)
        return err->code;
    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = check_claim(claims, i, kg_json_at(turns, i), r, err);
    if (status == KG_OK)
        status = apply(r, claims, n, err);
    kg_mem_free(claims);
    return status;
}
