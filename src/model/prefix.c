/* Compares a sequence with every sequence of the pack, from the first token on. This is
 * cheap, because most differ at the first token, and groups are small. */
#include "model/prefix_internal.h"

#include <assert.h>
#include <string.h>

void kg_prefixes_clear(struct kg_prefixes *x)
{
    x->n = x->last = 0;
    x->any = false;
}

/* Whether two tokens have the same c preset experts.   NULL: the router chooses */
static bool same_experts(const uint16_t *a, const uint16_t *b, size_t c)
{
    for (size_t i = 0; (a || b) && i < c; i++)
        if ((a ? a[i] : KG_NO_EXPERT) != (b ? b[i] : KG_NO_EXPERT))
            return false;
    return true;
}

static const uint16_t *experts_at(const uint16_t *experts, size_t row, size_t c)
{
    return experts ? experts + row * c : NULL;
}

/* Number of first tokens that q can share with the sequence whose tokens are the pack's
 * rows keys[0, n).   keys NULL: rows 0, 1, ... */
static size_t in_common(const struct kg_prefix_pack *pack, const int32_t *keys, size_t n,
                        const struct kg_rows_seq *q)
{
    const size_t most = q->most < n ? q->most : n, c = pack->choices;

    for (size_t t = 0; t < most; t++) {
        const size_t row = keys ? (size_t)keys[t] : t;

        if (pack->tokens[row] != q->tokens[t] ||
            !same_experts(experts_at(pack->experts, row, c), experts_at(q->experts, t, c),
                          c))
            return t;
    }
    return most;
}

size_t kg_rows_in_common(const struct kg_model *m, const struct kg_rows_seq *a,
                         const struct kg_rows_seq *q)
{
    const struct kg_prefix_pack pack = {
        .tokens = a->tokens,
        .experts = a->experts,
        .choices = (size_t)kg_model_config_choices(&m->config)};

    return in_common(&pack, NULL, a->n, q);
}

size_t kg_prefixes_find(int64_t *from, const struct kg_prefixes *x,
                        const struct kg_prefix_pack *pack, const struct kg_rows_seq *q)
{
    size_t best = 0;
    int64_t at = 0;

    assert(q->most < q->n);
    *from = 0;
    for (int32_t i = 0; x->max > 0 && i < pack->n_seqs && best < q->most; i++) {
        const int64_t n = (int64_t)pack->seqs[i].pos + pack->seqs[i].n;
        const size_t same = in_common(pack, x->keys + at, (size_t)n, q);

        if (same > best) {
            best = same;
            *from = at;
        }
        at += n;
    }
    return best;
}

void kg_prefixes_add(struct kg_prefixes *x, int64_t from, int64_t same, int64_t row,
                     int64_t n)
{
    if (x->max == 0)
        return;
    assert(x->n + same + n <= x->max);
    int32_t *to = x->keys + x->n;
    memcpy(to, x->keys + from, (size_t)same * sizeof *to);
    for (int64_t i = 0; i < n; i++)
        to[same + i] = (int32_t)(row + i);
    x->last = x->n;
    x->n += same + n;
    x->any = x->any || same > 0;
}
