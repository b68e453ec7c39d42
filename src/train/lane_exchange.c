/* Bucket by bucket: blocks of a cut to its owner, the tree, and the cut of the sum to all
 * where they want it.
 *
 * A bucket is a stretch of every cut at once, so each rank owns a part of each bucket and
 * all of them add at the same time. What a part of the sum overwrites has been sent by
 * then. Nothing is added on the way: the only additions are those of add_blocks, in the
 * order of the tree, whoever makes them.
 *
 * Between GPUs that NCCL joins all of it stays on them: blocks come into memory of the
 * device, and its operation adds them, with the bits that the host's addition has.
 *
 * A device that fails to give or take its memory stops no exchange, since the others wait
 * for what is agreed: what is sent then is of no use, and all hear of it behind the last
 * bucket.
 */
#include "train/lane_exchange.h"

#include "base/mem.h"
#include "ranks/nccl.h"
#include "ranks/share.h"

#include <assert.h>

enum { BUCKET = KG_SLAB_PIECE << 6 };

/* The blocks of a rank, among those of all. */
struct cover {
    int levels[2 * KG_TREE_LEVELS];
    int n;
    int first;
};

struct exchange {
    struct kg_slab *sum;
    const struct kg_lane_blocks *own;
    struct kg_ranks *ranks;
    bool cut;             /* the sum stays with its owners */
    bool direct;          /* from device to device */
    struct cover *covers; /* (ranks) owned, as what follows */
    int n_blocks;         /* of all ranks */
    float *came; /* (n_blocks, BUCKET) page-locked, as the next; direct: the device's */
    float *room; /* (ranks, BUCKET); NULL: slabs are the host's, or it is direct */
    struct kg_ranks_part *out, *in; /* (ranks) */
    int64_t at;                     /* where the bucket begins in every cut */
    struct kg_err failed;           /* the first failure of this rank's device */
};

static void keep_first(struct exchange *x, kg_status status, const struct kg_err *why)
{
    if (status != KG_OK && x->failed.code == KG_OK)
        x->failed = *why;
}

static int64_t bucket(int64_t n, int ranks)
{
    int64_t largest = kg_cut_of(n, 0, ranks).n;

    return largest < BUCKET ? largest : BUCKET;
}

/* Of the bucket, what a rank owns. */
static struct kg_cut part(const struct exchange *x, int rank)
{
    struct kg_cut c = kg_cut_of(x->sum->n, rank, x->ranks->n);
    int64_t left = c.n - x->at;

    if (left <= 0)
        return (struct kg_cut){0};
    return (struct kg_cut){c.first + x->at, left < BUCKET ? left : BUCKET};
}

static void cover_all(struct exchange *x, int lanes)
{
    for (int r = 0; r < x->ranks->n; r++) {
        struct kg_share s = kg_share_of(lanes, r, x->ranks->n);

        x->covers[r].first = x->n_blocks;
        x->covers[r].n = kg_tree_cover(x->covers[r].levels, (int)s.first, (int)s.end);
        x->n_blocks += x->covers[r].n;
    }
    assert(x->own->n == x->covers[x->ranks->me].n);
}

static kg_status begin(struct exchange *x, int lanes, struct kg_err *err)
{
    const struct kg_backend *be = x->sum->backend;
    size_t n = (size_t)x->ranks->n;
    uint64_t most = (uint64_t)bucket(x->sum->n, x->ranks->n) * sizeof *x->came;

    x->covers = kg_mem_calloc(n, sizeof *x->covers, "exchange", err);
    x->out = kg_mem_calloc(n, sizeof *x->out, "exchange", err);
    x->in = kg_mem_calloc(n, sizeof *x->in, "exchange", err);
    if (!x->covers || !x->out || !x->in)
        return KG_ENOMEM;
    cover_all(x, lanes);
    x->came = x->direct ? kg_buf_alloc(be, (uint64_t)x->n_blocks * most, "exchange", err)
                        : kg_buf_pin(be, (uint64_t)x->n_blocks * most, "exchange", err);
    if (!x->came)
        return err->code;
    if (be->host_memory || x->direct)
        return KG_OK;
    x->room = kg_buf_pin(be, n * most, "exchange", err);
    return x->room ? KG_OK : err->code;
}

static void end(struct exchange *x)
{
    kg_mem_free(x->covers);
    kg_mem_free(x->out);
    kg_mem_free(x->in);
    if (x->direct)
        kg_buf_free(x->sum->backend, x->came);
    else
        kg_buf_unpin(x->sum->backend, x->came);
    kg_buf_unpin(x->sum->backend, x->room);
}

static float *room_of(const struct exchange *x, int rank)
{
    return x->room ? x->room + rank * bucket(x->sum->n, x->ranks->n) : NULL;
}

static float *came_of(const struct exchange *x, int block)
{
    return x->came + block * bucket(x->sum->n, x->ranks->n);
}

static kg_status exchange(struct exchange *x, struct kg_err *err)
{
    return (x->direct ? kg_ranks_nccl_exchange : kg_ranks_exchange)(
        x->ranks, x->out, x->in, "gradient exchange", err);
}

/* Elements of a block as they are sent. */
static float *shown(struct exchange *x, const struct kg_slab *block, struct kg_cut p,
                    int rank)
{
    struct kg_err why;
    struct kg_vec v = kg_slab_part(block, p.first, p.n);

    if (!x->direct)
        keep_first(x, kg_slab_see(&v, room_of(x, rank), block, p.first, p.n, &why), &why);
    return v.data;
}

/* Block j of every rank that has so many, to the owners. */
static kg_status send_blocks(struct exchange *x, int j, struct kg_err *err)
{
    size_t mine = (size_t)part(x, x->ranks->me).n * sizeof *x->came;

    for (int r = 0; r < x->ranks->n; r++) {
        struct kg_cut p = part(x, r);

        x->out[r] = x->in[r] = (struct kg_ranks_part){0};
        if (j < x->covers[r].n)
            x->in[r] = (struct kg_ranks_part){came_of(x, x->covers[r].first + j), mine};
        if (j >= x->own->n || p.n == 0)
            continue;
        x->out[r] = (struct kg_ranks_part){shown(x, x->own->block[j], p, r),
                                           (size_t)p.n * sizeof *x->came};
    }
    return exchange(x, err);
}

static void add(struct exchange *x, float *to, float *from, int64_t n)
{
    struct kg_err why;

    if (x->direct) {
        keep_first(x, kg_op_add(x->sum->backend, kg_vec(to, n), kg_vec(from, n), &why),
                   &why);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

/* Along the tree.   returns where the sum stands */
static float *add_blocks(struct exchange *x, int64_t n)
{
    float *level[KG_TREE_LEVELS], *sum = NULL;
    int left[KG_TREE_LEVELS], n_left;
    struct kg_tree tree = {0};

    for (int r = 0; r < x->ranks->n; r++)
        for (int j = 0; j < x->covers[r].n; j++) {
            int from = x->covers[r].levels[j];
            int rest = kg_tree_push_block(&tree, from);

            sum = came_of(x, x->covers[r].first + j);
            for (int k = from; k < rest; k++)
                add(x, sum, level[k], n);
            level[rest] = sum;
        }
    n_left = kg_tree_finish(&tree, left);
    sum = level[left[0]];
    for (int k = 1; k < n_left; k++)
        add(x, sum, level[left[k]], n);
    return sum;
}

/* This rank's part of the sum to all, and theirs into the slab. */
static kg_status spread(struct exchange *x, float *own, struct kg_err *err)
{
    size_t mine = (size_t)part(x, x->ranks->me).n * sizeof *own;
    struct kg_err why;

    for (int r = 0; r < x->ranks->n; r++) {
        struct kg_cut p = part(x, r);
        float *to = x->room ? room_of(x, r) : x->sum->data + p.first;

        x->out[r] = (struct kg_ranks_part){own, mine};
        x->in[r] = (struct kg_ranks_part){to, (size_t)p.n * sizeof *to};
    }
    KG_TRY(exchange(x, err));
    for (int r = 0; x->room && r < x->ranks->n; r++) {
        struct kg_cut p = part(x, r);

        if (p.n > 0)
            keep_first(x, kg_slab_write(x->sum, p.first, room_of(x, r), p.n, &why), &why);
    }
    return KG_OK;
}

/* This rank's part of the sum goes where it is wanted. */
static kg_status place(struct exchange *x, float *own, struct kg_err *err)
{
    struct kg_cut p = part(x, x->ranks->me);
    struct kg_err why;

    if (!x->cut)
        return spread(x, own, err);
    if (p.n > 0 && x->direct)
        keep_first(x,
                   kg_buf_copy(x->sum->backend, x->sum->data + p.first, own,
                               (uint64_t)p.n * sizeof *own, &why),
                   &why);
    else if (p.n > 0)
        keep_first(x, kg_slab_write(x->sum, p.first, own, p.n, &why), &why);
    return KG_OK;
}

static kg_status all_buckets(struct exchange *x, struct kg_err *err)
{
    int rounds = 0;

    for (int r = 0; r < x->ranks->n; r++)
        rounds = x->covers[r].n > rounds ? x->covers[r].n : rounds;
    for (x->at = 0; part(x, 0).n > 0; x->at += BUCKET) {
        for (int j = 0; j < rounds; j++)
            KG_TRY(send_blocks(x, j, err));
        KG_TRY(place(x, add_blocks(x, part(x, x->ranks->me).n), err));
    }
    if (x->failed.code != KG_OK)
        *err = x->failed;
    return x->failed.code;
}

kg_status kg_lane_exchange(struct kg_slab *sum, const struct kg_lane_blocks *own,
                           int lanes, bool cut, struct kg_ranks *ranks,
                           struct kg_err *err)
{
    struct exchange x = {.sum = sum,
                         .own = own,
                         .ranks = ranks,
                         .cut = cut,
                         .direct = kg_ranks_nccl_version(ranks) &&
                                   !sum->backend->host_memory};
    kg_status status = begin(&x, lanes, err);

    status = kg_ranks_agree(ranks, status, "gradient exchange", err);
    if (status == KG_OK)
        status = kg_ranks_agree(ranks, all_buckets(&x, err), "gradient exchange", err);
    end(&x);
    return status;
}

uint64_t kg_lane_exchange_bytes(int64_t n, const struct kg_backend *backend, int lanes,
                                int ranks, bool direct)
{
    const bool sees = backend->host_memory || direct;
    uint64_t blocks = sees ? 0 : (uint64_t)ranks; /* what is sent */

    if (ranks < 2)
        return 0;
    for (int r = 0; r < ranks; r++) {
        struct kg_share s = kg_share_of(lanes, r, ranks);
        int levels[2 * KG_TREE_LEVELS];

        blocks += (uint64_t)kg_tree_cover(levels, (int)s.first, (int)s.end);
    }
    return blocks * (uint64_t)bucket(n, ranks) * sizeof(float);
}
