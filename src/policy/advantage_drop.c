/* Advantages when some trajectories are dropped: without a verdict, or filtered.
 *
 * The rows of the table do not know about this. The remaining trajectories are copied
 * together, the row sees only these, and the results are copied back; a dropped
 * trajectory has advantage 0. A baseline within the group needs two members, so if only
 * one of several remains, it is dropped too: its score alone says nothing.
 */
#include "base/columns.h"
#include "base/mem.h"
#include "policy/policy_internal.h"

#include <math.h>
#include <string.h>

struct kept {
    struct kg_block block; /* owned: holds the arrays below */
    uint8_t *drop;         /* (S) */
    uint8_t *mask;         /* (N) */
    int64_t *group_begin;  /* (G+1) of kept trajectories, as seq_begin */
    int64_t *seq_begin;    /* (S+1) */
    double *by_seq;        /* (S,2+P) reward, greedy and parts, one after the other */
    double *by_token;      /* (N,5) as by_seq, for inputs per token */
    double *seq;           /* (S) results */
    double *token;         /* (N) */
    double *returns;       /* (N) */
    struct kg_policy_scores scores;
};

enum { GROUPS, SEQS, BEGINS, BY_SEQ, TOKENS, BY_TOKEN, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kept, drop, SEQS),
    KG_COLUMN(struct kept, mask, TOKENS),
    KG_COLUMN(struct kept, group_begin, GROUPS),
    KG_COLUMN(struct kept, seq_begin, BEGINS),
    KG_COLUMN(struct kept, by_seq, BY_SEQ),
    KG_COLUMN(struct kept, by_token, BY_TOKEN),
    KG_COLUMN(struct kept, seq, SEQS),
    KG_COLUMN(struct kept, token, TOKENS),
    KG_COLUMN(struct kept, returns, TOKENS),
    {0},
};

static kg_status kept_init(struct kept *k, const struct kg_policy_scores *in,
                           struct kg_err *err)
{
    const size_t s = (size_t)in->n_seqs, n = (size_t)in->seq_begin[in->n_seqs];
    const size_t counts[COUNTS] = {
        [GROUPS] = (size_t)in->n_groups + 1,      [SEQS] = s,   [BEGINS] = s + 1,
        [BY_SEQ] = s * (2 + (size_t)in->n_parts), [TOKENS] = n, [BY_TOKEN] = 5 * n,
    };

    return kg_columns_take(&k->block, k, columns, counts, "advantages", err);
}

/* With several rewards, a trajectory that has none of them has no verdict. */
static bool is_dropped(const struct kg_policy_scores *in, int64_t i)
{
    bool any = in->n_parts == 0 || !in->part;

    for (int k = 0; k < in->n_parts && !any; k++)
        any = !isnan(in->part[i * in->n_parts + k]);
    return !any || (in->drop && in->drop[i]);
}

bool kg_advantage_drops(const struct kg_policy_scores *in)
{
    for (int64_t i = 0; i < in->n_seqs; i++)
        if (is_dropped(in, i))
            return true;
    return false;
}

static void choose(uint8_t *drop, const struct kg_policy_scores *in, bool within_group)
{
    for (int64_t i = 0; i < in->n_seqs; i++)
        drop[i] = is_dropped(in, i);
    for (int64_t g = 0; within_group && g < in->n_groups; g++) {
        int64_t begin = in->group_begin[g], end = in->group_begin[g + 1], left = 0;

        for (int64_t i = begin; i < end; i++)
            left += !drop[i];
        if (left == 1 && end - begin > 1)
            memset(drop + begin, 1, (size_t)(end - begin));
    }
}

/* Copies the numbers of kept trajectories to *free, which moves on.
 * width: numbers per trajectory; 0: one per token.   returns NULL for a NULL src */
static const double *keep(double **free, const double *src,
                          const struct kg_policy_scores *in, const uint8_t *drop,
                          int64_t width)
{
    const double *to = *free;

    for (int64_t i = 0; src && i < in->n_seqs; i++) {
        int64_t at = width > 0 ? i * width : in->seq_begin[i];
        int64_t n = width > 0 ? width : in->seq_begin[i + 1] - at;

        if (drop[i])
            continue;
        memcpy(*free, src + at, (size_t)n * sizeof *src);
        *free += n;
    }
    return src ? to : NULL;
}

/* Offsets and mask. All groups are kept, even if all their trajectories are dropped. */
static void keep_places(struct kept *k, const struct kg_policy_scores *in)
{
    int64_t seqs = 0, tokens = 0;

    for (int64_t g = 0; g < in->n_groups; g++) {
        for (int64_t i = in->group_begin[g]; i < in->group_begin[g + 1]; i++) {
            int64_t n = in->seq_begin[i + 1] - in->seq_begin[i];

            if (k->drop[i])
                continue;
            if (in->mask)
                memcpy(k->mask + tokens, in->mask + in->seq_begin[i], (size_t)n);
            tokens += n;
            k->seq_begin[++seqs] = tokens;
        }
        k->group_begin[g + 1] = seqs;
    }
    k->scores.n_seqs = seqs;
}

static void keep_all(struct kept *k, const struct kg_policy_scores *in)
{
    const uint8_t *drop = k->drop;
    double *seqs = k->by_seq, *tokens = k->by_token;

    k->scores = *in;
    keep_places(k, in);
    k->scores.drop = NULL;
    k->scores.group_begin = k->group_begin;
    k->scores.seq_begin = k->seq_begin;
    k->scores.mask = in->mask ? k->mask : NULL;
    k->scores.reward = keep(&seqs, in->reward, in, drop, 1);
    k->scores.greedy = keep(&seqs, in->greedy, in, drop, 1);
    if (in->n_parts > 0)
        k->scores.part = keep(&seqs, in->part, in, drop, in->n_parts);
    k->scores.token_reward = keep(&tokens, in->token_reward, in, drop, 0);
    k->scores.value = keep(&tokens, in->value, in, drop, 0);
    k->scores.old_logp = keep(&tokens, in->old_logp, in, drop, 0);
    k->scores.sum_sq = keep(&tokens, in->sum_sq, in, drop, 0);
    k->scores.is_weight = keep(&tokens, in->is_weight, in, drop, 0);
}

/* Copies results back to all trajectories; dropped ones get 0. */
static void deal(double *to, const double *from, const struct kg_policy_scores *in,
                 const uint8_t *drop, bool by_token)
{
    for (int64_t i = 0; to && i < in->n_seqs; i++) {
        int64_t at = by_token ? in->seq_begin[i] : i;
        size_t n = by_token ? (size_t)(in->seq_begin[i + 1] - at) : 1;

        if (drop[i]) {
            memset(to + at, 0, n * sizeof *to);
            continue;
        }
        memcpy(to + at, from, n * sizeof *to);
        from += n;
    }
}

kg_status kg_advantage_of_kept(struct kg_policy_advantage *out,
                               const struct kg_algo *algo,
                               const struct kg_policy_scores *in, struct kg_err *err)
{
    const struct kg_policy_about *about = &algo->advantage->about;
    struct kept k = {.drop = NULL};

    KG_TRY(kept_init(&k, in, err));
    choose(k.drop, in, about->needs & KG_NEED_GROUP);
    keep_all(&k, in);
    struct kg_policy_advantage own = {.seq = k.seq, .token = k.token};
    own.returns = out->returns ? k.returns : NULL;
    kg_status status = kg_policy_advantages(&own, algo, &k.scores, err);
    if (status == KG_OK) {
        deal(out->seq, k.seq, in, k.drop, false);
        deal(out->token, k.token, in, k.drop, true);
        deal(out->returns, k.returns, in, k.drop, true);
        own.seq = out->seq, own.token = out->token, own.returns = out->returns;
        *out = own;
    }
    kg_columns_free(&k.block, &k, columns);
    return status;
}
