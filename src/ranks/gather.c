/* Sizes first, then the bytes: two messages of every rank to every other. */
#include "ranks/gather.h"

#include "base/mem.h"

#include <string.h>

/* Of one rank at most: their sum has room in 64 bits. */
static const uint64_t most_bytes = (uint64_t)1 << 46;

/* ends[r] of what comes, of which n bytes are own. */
static kg_status gather_ends(uint64_t *ends, uint64_t n, struct kg_ranks *r,
                             const char *what, struct kg_err *err)
{
    ends[r->me] = n;
    KG_TRY(kg_ranks_gather_equal(r, ends, sizeof *ends, what, err));
    for (int i = 0; i < r->n; i++) {
        if (ends[i] > most_bytes)
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected at most %llu bytes of %s, found %llu", what,
                           (unsigned long long)most_bytes, kg_ranks_name(r, i).text,
                           (unsigned long long)ends[i]);
        ends[i] += i > 0 ? ends[i - 1] : 0;
    }
    return KG_OK;
}

static kg_status take_room(struct kg_ranks_bytes *all, const struct kg_ranks *r,
                           const char *what, struct kg_err *err)
{
    all->bytes = kg_mem_calloc((size_t)all->ends[r->n - 1] + 1, 1, what, err);
    return all->bytes ? KG_OK : err->code;
}

/* Sizes, and room for the bytes where they are wanted. */
static kg_status begin(struct kg_ranks_bytes *all, const struct kg_str *own, bool wanted,
                       struct kg_ranks *r, const char *what, struct kg_err *err)
{
    all->bytes = NULL;
    all->ends = kg_mem_calloc((size_t)r->n, sizeof *all->ends, what, err);
    KG_TRY(kg_ranks_agree(r, all->ends ? KG_OK : err->code, what, err));
    kg_status status = gather_ends(all->ends, own->len, r, what, err);
    if (status == KG_OK && wanted)
        status = take_room(all, r, what, err);
    return kg_ranks_agree(r, status, what, err);
}

kg_status kg_ranks_bytes_gather(struct kg_ranks_bytes *all, const struct kg_str *own,
                                struct kg_ranks *r, const char *what, struct kg_err *err)
{
    KG_TRY(begin(all, own, true, r, what, err));
    if (own->len > 0)
        memcpy(all->bytes + all->ends[r->me] - own->len, own->data, own->len);
    return kg_ranks_gather(r, all->bytes, all->ends, what, err);
}

/* out, in: (ranks) */
static void address(struct kg_ranks_part *out, struct kg_ranks_part *in,
                    const struct kg_ranks_bytes *all, const struct kg_str *own,
                    const struct kg_ranks *r)
{
    uint64_t first = 0;

    out[0] = (struct kg_ranks_part){own->data, own->len};
    for (int p = 0; p < r->n && r->me == 0; p++) {
        in[p] = (struct kg_ranks_part){all->bytes + first,
                                       (size_t)(all->ends[p] - first)};
        first = all->ends[p];
    }
}

kg_status kg_ranks_bytes_collect(struct kg_ranks_bytes *all, const struct kg_str *own,
                                 struct kg_ranks *r, const char *what, struct kg_err *err)
{
    struct kg_ranks_part *parts;

    KG_TRY(begin(all, own, r->me == 0, r, what, err));
    parts = kg_mem_calloc(2 * (size_t)r->n, sizeof *parts, what, err);
    kg_status status = kg_ranks_agree(r, parts ? KG_OK : err->code, what, err);
    if (status == KG_OK) {
        address(parts, parts + r->n, all, own, r);
        status = kg_ranks_exchange(r, parts, parts + r->n, what, err);
    }
    kg_mem_free(parts);
    return status;
}

void kg_ranks_bytes_release(struct kg_ranks_bytes *all)
{
    kg_mem_free(all->bytes);
    kg_mem_free(all->ends);
    *all = (struct kg_ranks_bytes){0};
}

kg_status kg_ranks_str_gather(struct kg_str *said, struct kg_ranks *r, const char *what,
                              struct kg_err *err)
{
    struct kg_ranks_bytes all = {0};
    kg_status status = kg_ranks_bytes_gather(&all, said, r, what, err);

    kg_str_clear(said);
    if (status == KG_OK)
        status = kg_str_append(said, all.bytes, (size_t)all.ends[r->n - 1], err);
    kg_ranks_bytes_release(&all);
    return kg_ranks_agree(r, status, what, err);
}
