/* Piece by piece: each rank sends its blocks of a shard to the shard's owner, the owner
 * adds them along the tree, and sends the sum to all ranks that need it.
 *
 * A piece is the same range of every shard, so each rank owns a part of each piece and
 * all add at the same time. When a part of the sum is written, the data that it
 * overwrites has been sent. Only add_blocks adds, in the order of the tree on every rank,
 * so the bits do not depend on the number of ranks.
 *
 * On one machine ranks read each other's blocks in shared memory: a shard is one piece,
 * and an addition replaces a copy, so main memory moves no more bytes than a copy would.
 * This needs one block of each rank at once, so each rank has exactly one.
 *
 * In other host memory, a piece is so small that it is still in a cache when it is added,
 * if possible to this rank's own block, while the next one arrives: main memory moves
 * little more than it does without the addition. A device's pieces are larger, and one at
 * a time.
 *
 * Between GPUs joined by NCCL all data stays on the devices: blocks arrive in device
 * memory, and the device's operation adds them with the same bits as the host.
 *
 * If a device cannot copy its memory, the exchange still runs to its end, because the
 * others wait for the agreed messages. Its data is then invalid, and all ranks learn this
 * after the last piece.
 */
#include "train/step/lane_exchange.h"

#include "base/mem.h"
#include "ranks/lanes.h"
#include "ranks/nccl.h"

#include <assert.h>

enum { PIECE = KG_SLAB_PIECE << 2, DEVICE_PIECE = KG_SLAB_PIECE << 6 };
enum { AHEAD = 2 }; /* pieces in transit at once */
_Static_assert((int)AHEAD <= (int)KG_RANKS_AHEAD, "exchanges at once");

/* A rank's blocks (kg_tree_cover); first: slot in `came` of the first one. */
struct cover {
    int levels[2 * KG_TREE_LEVELS];
    int n;
    int first;
};

struct exchange {
    struct kg_slab *sum;
    const struct kg_lane_blocks *own;
    struct kg_ranks *ranks;
    bool cut;                      /* each rank keeps only its shard of the sum */
    bool direct;                   /* by NCCL, from device to device */
    bool lends;                    /* blocks of other ranks are read in place */
    void *const *lent;             /* (ranks) borrowed; those blocks */
    const struct kg_backend *adds; /* adds the blocks */
    struct cover *covers;          /* (ranks) owned, as all arrays below */
    int n_blocks;                  /* blocks that need a slot in `came` */
    int64_t piece;                 /* maximum elements of a rank's part of a piece */
    int ahead;
    /* (ahead, n_blocks, piece) received blocks, page-locked as `room` is; direct: on the
     * device; lends: NULL */
    float *came;
    float *room; /* (ranks, piece) host copies; NULL: host memory, or direct */
    struct kg_ranks_part *out, *in; /* (ranks) */
    struct kg_err failed;           /* the first failure of this rank's device */
};

static void keep_first(struct exchange *x, kg_status status, const struct kg_err *why)
{
    if (status != KG_OK && x->failed.code == KG_OK)
        x->failed = *why;
}

static int64_t piece_of(int64_t n, const struct kg_backend *backend, int ranks)
{
    int64_t largest = kg_cut_of(n, 0, ranks).n;
    int64_t most = backend->host_memory ? PIECE : DEVICE_PIECE;

    return largest < most ? largest : most;
}

/* A rank's part of the piece that begins at offset `at` of every shard. */
static struct kg_cut part(const struct exchange *x, int rank, int64_t at)
{
    struct kg_cut c = kg_cut_of(x->sum->n, rank, x->ranks->n);
    int64_t left = c.n - at;

    if (left <= 0)
        return (struct kg_cut){0};
    return (struct kg_cut){c.first + at, left < x->piece ? left : x->piece};
}

/* Whether a rank's blocks are added in place: this rank's own, in host memory. */
static bool stays(const struct exchange *x, int rank)
{
    return rank == x->ranks->me && x->sum->backend->host_memory;
}

static void cover_all(struct exchange *x, int lanes)
{
    for (int r = 0; r < x->ranks->n; r++) {
        struct kg_share s = kg_share_of(lanes, r, x->ranks->n);

        x->covers[r].first = x->n_blocks;
        x->covers[r].n = kg_tree_cover(x->covers[r].levels, (int)s.first, (int)s.end);
        x->n_blocks += stays(x, r) ? 0 : x->covers[r].n;
    }
    assert(x->own->n == x->covers[x->ranks->me].n);
}

/* Whether received blocks can be used in place: one per rank, in host memory. */
static bool can_lend(const struct exchange *x)
{
    for (int r = 0; r < x->ranks->n; r++)
        if (x->covers[r].n != 1)
            return false;
    return x->sum->backend->host_memory && kg_ranks_lends(x->ranks);
}

/* The number of pieces that may be in transit at once. */
static int ahead_of(const struct kg_backend *backend)
{
    return backend->host_memory ? AHEAD : 1;
}

static kg_status begin(struct exchange *x, int lanes, struct kg_err *err)
{
    const struct kg_backend *be = x->sum->backend;
    size_t n = (size_t)x->ranks->n;
    uint64_t most, came;

    x->piece = piece_of(x->sum->n, be, x->ranks->n);
    x->ahead = ahead_of(be);
    x->covers = kg_mem_calloc(n, sizeof *x->covers, "exchange", err);
    x->out = kg_mem_calloc(n, sizeof *x->out, "exchange", err);
    x->in = kg_mem_calloc(n, sizeof *x->in, "exchange", err);
    if (!x->covers || !x->out || !x->in)
        return KG_ENOMEM;
    cover_all(x, lanes);
    if (!x->direct)
        KG_TRY(kg_backend_host(&x->adds, be, err));
    x->lends = can_lend(x);
    if (x->lends) {
        x->piece = kg_cut_of(x->sum->n, 0, x->ranks->n).n;
        return KG_OK;
    }
    most = (uint64_t)x->piece * sizeof *x->came;
    came = (uint64_t)x->ahead * (uint64_t)x->n_blocks * most;
    x->came = x->direct ? kg_buf_alloc(be, came, "exchange", err)
                        : kg_buf_pin(be, came, "exchange", err);
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
    return x->room ? x->room + rank * x->piece : NULL;
}

/* This rank's part of block j of `rank`, in the piece at `at`. A lent block begins at
 * `at` already. */
static float *block_of(const struct exchange *x, int rank, int j, int64_t at)
{
    const int64_t slot = at / x->piece % x->ahead * x->n_blocks;

    if (stays(x, rank))
        return x->own->block[j]->data + part(x, rank, at).first;
    if (x->lends)
        return x->lent[rank];
    return x->came + (slot + x->covers[rank].first + j) * x->piece;
}

/* Elements p of a block, to send to `rank`; from a device they are first copied. */
static float *shown(struct exchange *x, const struct kg_slab *block, struct kg_cut p,
                    int rank)
{
    struct kg_err why;
    struct kg_vec v = kg_slab_part(block, p.first, p.n);

    if (!x->direct)
        keep_first(x, kg_slab_see(&v, room_of(x, rank), block, p.first, p.n, &why), &why);
    return v.data;
}

/* Begins to send block j, of each rank that has one, to the owners of its shards. */
static kg_status send_blocks(struct exchange *x, int j, int64_t at, struct kg_err *err)
{
    size_t mine = (size_t)part(x, x->ranks->me, at).n * sizeof *x->came;

    for (int r = 0; r < x->ranks->n; r++) {
        struct kg_cut p = part(x, r, at);

        x->out[r] = x->in[r] = (struct kg_ranks_part){0};
        if (stays(x, r))
            continue;
        if (j < x->covers[r].n)
            x->in[r] = (struct kg_ranks_part){block_of(x, r, j, at), mine};
        if (j >= x->own->n || p.n == 0)
            continue;
        x->out[r] = (struct kg_ranks_part){shown(x, x->own->block[j], p, r),
                                           (size_t)p.n * sizeof *x->came};
    }
    if (x->direct)
        return kg_ranks_nccl_exchange(x->ranks, x->out, x->in, "gradient exchange", err);
    return kg_ranks_begin(x->ranks, x->out, x->in, "gradient exchange", err);
}

static kg_status blocks_came(struct exchange *x, struct kg_err *err)
{
    return x->direct ? KG_OK : kg_ranks_finish(x->ranks, "gradient exchange", err);
}

/* ---- addition ---- */

static bool is_of_sum(const struct exchange *x, const float *p)
{
    return p >= x->sum->data && p < x->sum->data + x->sum->n;
}

/* a + b and b + a have the same bits, so either operand may become the sum: the one that
 * is in the slab of the result, if any.   returns where the sum is */
static float *add(struct exchange *x, float *later, float *earlier, int64_t n)
{
    float *to = is_of_sum(x, earlier) ? earlier : later;
    struct kg_err why;

    if (n > 0)
        keep_first(x,
                   kg_op_add(x->adds, kg_vec(to, n),
                             kg_vec(to == later ? earlier : later, n), &why),
                   &why);
    return to;
}

/* Adds n elements of all blocks along the tree.   returns where the sum is */
static float *add_blocks(struct exchange *x, int64_t at, int64_t n)
{
    float *level[KG_TREE_LEVELS], *sum = NULL;
    int left[KG_TREE_LEVELS], n_left;
    struct kg_tree tree = {0};

    for (int r = 0; r < x->ranks->n; r++)
        for (int j = 0; j < x->covers[r].n; j++) {
            int from = x->covers[r].levels[j];
            int rest = kg_tree_push_block(&tree, from);

            sum = block_of(x, r, j, at);
            for (int k = from; k < rest; k++)
                sum = add(x, sum, level[k], n);
            level[rest] = sum;
        }
    n_left = kg_tree_finish(&tree, left);
    sum = level[left[0]];
    for (int k = 1; k < n_left; k++)
        sum = add(x, sum, level[left[k]], n);
    return sum;
}

/* ---- storing the sum ---- */

/* Sends this rank's part of the sum to all ranks, and writes their parts to the slab. */
static kg_status spread(struct exchange *x, float *own, int64_t at, struct kg_err *err)
{
    size_t mine = (size_t)part(x, x->ranks->me, at).n * sizeof *own;
    struct kg_err why;

    for (int r = 0; r < x->ranks->n; r++) {
        struct kg_cut p = part(x, r, at);
        float *to = x->room ? room_of(x, r) : x->sum->data + p.first;

        x->out[r] = (struct kg_ranks_part){own, mine};
        x->in[r] = (struct kg_ranks_part){to, (size_t)p.n * sizeof *to};
    }
    KG_TRY((x->direct ? kg_ranks_nccl_exchange : kg_ranks_exchange)(
        x->ranks, x->out, x->in, "gradient exchange", err));
    for (int r = 0; x->room && r < x->ranks->n; r++) {
        struct kg_cut p = part(x, r, at);

        if (p.n > 0)
            keep_first(x, kg_slab_write(x->sum, p.first, room_of(x, r), p.n, &why), &why);
    }
    return KG_OK;
}

/* Writes elements p of the sum to its slab. */
static void keep(struct exchange *x, const float *own, struct kg_cut p)
{
    struct kg_err why;

    if (p.n == 0 || is_of_sum(x, own))
        return;
    if (x->direct)
        keep_first(x,
                   kg_buf_copy(x->sum->backend, x->sum->data + p.first, own,
                               (uint64_t)p.n * sizeof *own, &why),
                   &why);
    else
        keep_first(x, kg_slab_write(x->sum, p.first, own, p.n, &why), &why);
}

/* Stores this rank's part of the sum and, unless cut, sends it to all ranks. */
static kg_status place(struct exchange *x, float *own, int64_t at, struct kg_err *err)
{
    if (!x->cut)
        return spread(x, own, at, err);
    keep(x, own, part(x, x->ranks->me, at));
    return KG_OK;
}

static kg_status add_piece(struct exchange *x, int64_t at, struct kg_err *err)
{
    return place(x, add_blocks(x, at, part(x, x->ranks->me, at).n), at, err);
}

/* ---- piece by piece, or in place ---- */

static kg_status all_pieces(struct exchange *x, struct kg_err *err)
{
    const int64_t pieces = (kg_cut_of(x->sum->n, 0, x->ranks->n).n + x->piece - 1) /
                           x->piece;
    const int ahead = x->cut ? x->ahead : 1; /* a sum is sent before the next piece */
    int64_t rounds = 0, begun = 0;

    for (int r = 0; r < x->ranks->n; r++)
        rounds = x->covers[r].n > rounds ? x->covers[r].n : rounds;
    for (int64_t done = 0; done < pieces * rounds; done++) {
        int64_t at = done / rounds * x->piece;

        for (; begun < pieces * rounds && begun < done + ahead; begun++)
            KG_TRY(send_blocks(x, (int)(begun % rounds), begun / rounds * x->piece, err));
        KG_TRY(blocks_came(x, err));
        if (done % rounds == rounds - 1)
            KG_TRY(add_piece(x, at, err));
    }
    return KG_OK;
}

static void add_lent(void *context, void *const *lent, size_t at, size_t n)
{
    struct exchange *x = context;
    const int64_t from = (int64_t)(at / sizeof(float));
    const struct kg_cut p = {part(x, x->ranks->me, from).first,
                             (int64_t)(n / sizeof(float))};

    x->lent = lent;
    keep(x, add_blocks(x, from, p.n), p);
}

static kg_status all_lent(struct exchange *x, struct kg_err *err)
{
    const struct kg_ranks_user user = {add_lent, x};
    const struct kg_cut mine = part(x, x->ranks->me, 0);

    for (int r = 0; r < x->ranks->n; r++) {
        struct kg_cut p = part(x, r, 0);

        x->out[r] = (struct kg_ranks_part){x->own->block[0]->data + p.first,
                                           (size_t)p.n * sizeof(float)};
    }
    KG_TRY(kg_ranks_lend(x->ranks, x->out, (size_t)mine.n * sizeof(float), &user,
                         "gradient exchange", err));
    return x->cut ? KG_OK : spread(x, x->sum->data + mine.first, 0, err);
}

static kg_status all(struct exchange *x, struct kg_err *err)
{
    KG_TRY((x->lends ? all_lent : all_pieces)(x, err));
    if (x->failed.code != KG_OK)
        *err = x->failed;
    return x->failed.code;
}

kg_status kg_lane_exchange(struct kg_slab *sum, const struct kg_lane_blocks *own,
                           int lanes, bool cut, struct kg_ranks *ranks,
                           struct kg_err *err)
{
    const bool direct = kg_ranks_nccl_version(ranks) && !sum->backend->host_memory;
    struct exchange x = {.sum = sum,
                         .own = own,
                         .ranks = ranks,
                         .cut = cut,
                         .direct = direct,
                         .adds = sum->backend};
    kg_status status = begin(&x, lanes, err);

    status = kg_ranks_agree(ranks, status, "gradient exchange", err);
    if (status == KG_OK)
        status = kg_ranks_agree(ranks, all(&x, err), "gradient exchange", err);
    end(&x);
    return status;
}

uint64_t kg_lane_exchange_bytes(int64_t n, const struct kg_backend *backend, int lanes,
                                int ranks, bool direct)
{
    const bool sees = backend->host_memory || direct;
    uint64_t blocks = sees ? 0 : (uint64_t)ranks; /* for struct exchange.room */

    if (ranks < 2)
        return 0;
    for (int r = 0; r < ranks; r++) {
        struct kg_share s = kg_share_of(lanes, r, ranks);
        int levels[2 * KG_TREE_LEVELS];

        blocks += (uint64_t)kg_tree_cover(levels, (int)s.first, (int)s.end);
    }
    return blocks * (uint64_t)piece_of(n, backend, ranks) * sizeof(float) *
           (uint64_t)ahead_of(backend);
}
