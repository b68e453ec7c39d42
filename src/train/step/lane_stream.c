/* One clock for all ranks: at tick t a rank computes bucket t - delay, with its own
 * delay; after each tick the ranks exchange what is due. So no rank polls for data that
 * is ready.
 *
 * The delay grows by one from pack to pack of a lane, and stays where the next lane
 * begins. So blocks that end at the same tick reach the tree in the order of lanes, after
 * the bucket's earlier lanes.
 *
 * If a stage or a device fails, the exchanges go on, because the others wait for the
 * agreed messages. Their data is then invalid, and all ranks learn this at the end of the
 * round.
 *
 * A device's memory holds the current bucket and the rank's shard of the sum. The
 * stripes, which are most of the memory and are added to once per round, are on the host.
 * With NCCL a rank copies only its own stripes to the host, otherwise all that it deals.
 */
#include "train/step/lane_stream.h"

#include "base/mem.h"
#include "base/phase.h"
#include "ranks/lanes.h"
#include "ranks/ranks.h"
#include "train/step/lane_sum.h"

#include <assert.h>
#include <string.h>

enum { PIECE = KG_SLAB_SENT }; /* elements of a stripe that are exchanged at once */

struct pack {
    int lane;
    size_t first, n;   /* range of struct stream.list */
    bool begins, ends; /* it is the first, the last pack of its lane */
};

/* For a bucket that a rank has finished: the levels to add to it, then its slot. */
struct landing {
    int level[KG_TREE_LEVELS];
    int n;
    int slot;
};

struct stream {
    struct kg_lane_stream *memory;
    const struct kg_lane_job *job;
    const struct kg_lane_buckets *buckets;
    struct kg_ranks *ranks;
    const struct kg_backend *backend; /* of the gradient */
    const struct kg_backend *host;    /* adds in the host's memory */
    struct pack *pack;                /* (n_packs) owned, as all arrays below */
    size_t n_packs;
    size_t *list;                     /* (job->n) lane by lane */
    struct kg_tree *tree;             /* (buckets) the lanes added so far */
    int64_t *at;                      /* (buckets) where its stripe begins in a slot */
    struct landing *landing;          /* (ranks) */
    int *delay;                       /* (ranks) */
    struct kg_slab_stretch *out, *in; /* (ranks) */
    /* the current round */
    const struct pack *here; /* (n_here) packs of ranks 0, 1, .. */
    int n_here;
    bool any; /* this rank's pack has a gradient */
};

/* The first failure of a stage or of the device of this rank. */
static struct kg_err *failed(const struct stream *s) { return &s->memory->wire.failed; }

static void keep_first(struct stream *s, kg_status status, const struct kg_err *why)
{
    if (status != KG_OK && failed(s)->code == KG_OK)
        *failed(s) = *why;
}

static kg_status failure(const struct stream *s, struct kg_err *err)
{
    if (failed(s)->code != KG_OK)
        *err = *failed(s);
    return failed(s)->code;
}

/* ---- buckets and stripes ---- */

static struct kg_cut of_model(const void *of, int i) { return kg_backward_cut(of, i); }

struct kg_lane_buckets kg_lane_buckets_of(const struct kg_model *m)
{
    return (struct kg_lane_buckets){kg_backward_stages(m), m->n_elements, of_model, m};
}

static struct kg_cut bucket(const struct kg_lane_buckets *b, int i)
{
    return b->cut(b->of, i);
}

static int64_t stripe_width(const struct kg_lane_buckets *b, int i, int ranks)
{
    return (bucket(b, i).n + ranks - 1) / ranks;
}

/* A rank's stripe of bucket i, as elements of the slab. */
static struct kg_cut stripe(const struct stream *s, int rank, int i)
{
    const struct kg_cut all = bucket(s->buckets, i);
    int64_t width = stripe_width(s->buckets, i, s->ranks->n);

    return kg_cut_within(all, all.first + rank * width, width);
}

/* The piece of a stripe that begins at its element `at`. */
static struct kg_cut piece_of(struct kg_cut stripe, int64_t at)
{
    return kg_cut_within(stripe, stripe.first + at, PIECE);
}

/* Elements c of the whole, in a slab that holds the whole from element `first` on. */
static struct kg_slab_stretch part_in(struct kg_slab *slab, int64_t first,
                                      struct kg_cut c)
{
    return c.n > 0 ? (struct kg_slab_stretch){slab, c.first - first, c.n}
                   : (struct kg_slab_stretch){0};
}

static struct kg_slab_stretch in_bucket(const struct stream *s, struct kg_cut c, int i)
{
    return part_in(&s->memory->bucket, bucket(s->buckets, i).first, c);
}

/* ---- memory ---- */

/* A slot per level that lanes before the last can fill, and one for the unfinished
 * lane. */
static int slots(int lanes) { return kg_tree_room(lanes - 1) + 1; }

struct sizes {
    int64_t bucket, stripes, room; /* elements */
};

static struct sizes sizes_of(const struct kg_lane_buckets *b, int ranks)
{
    struct sizes n = {0};

    for (int i = 0; i < b->n; i++) {
        int64_t all = bucket(b, i).n, width = stripe_width(b, i, ranks);

        n.bucket = all > n.bucket ? all : n.bucket;
        n.room = width > n.room ? width : n.room;
        n.stripes += width;
    }
    n.room = (n.room < PIECE ? n.room : PIECE) * ranks;
    return n;
}

struct kg_lane_stream_memory kg_lane_stream_memory(const struct kg_lane_buckets *b,
                                                   const struct kg_backend *backend,
                                                   int lanes, int ranks, bool direct)
{
    const struct sizes n = sizes_of(b, ranks);

    return (struct kg_lane_stream_memory){
        (uint64_t)n.bucket * sizeof(float),
        (uint64_t)n.stripes * (uint64_t)slots(lanes) * sizeof(float),
        (uint64_t)n.room * sizeof(float) + kg_slab_wire_bytes(backend, ranks),
        direct ? (uint64_t)n.room / (uint64_t)ranks * sizeof(float) : 0,
    };
}

static kg_status take(struct kg_slab *slab, const struct kg_backend *backend, int64_t n,
                      struct kg_err *err)
{
    return slab->data ? KG_OK
                      : kg_slab_init(slab, backend, n, "gradients by buckets", err);
}

static kg_status take_memory(struct stream *s, struct kg_err *err)
{
    const struct sizes n = sizes_of(s->buckets, s->ranks->n);
    bool direct;

    KG_TRY(kg_backend_host(&s->host, s->backend, err));
    if (!s->memory->wire.ranks)
        KG_TRY(kg_slab_wire_open(&s->memory->wire, s->ranks, s->backend, err));
    direct = s->memory->wire.direct;
    KG_TRY(take(&s->memory->bucket, s->backend, n.bucket, err));
    KG_TRY(take(&s->memory->room, direct ? s->backend : s->host, n.room, err));
    if (direct)
        KG_TRY(take(&s->memory->near, s->host, n.room / s->ranks->n, err));
    for (int i = 0; i < slots(s->job->lanes); i++)
        KG_TRY(take(&s->memory->slot[i], s->host, n.stripes, err));
    *failed(s) = (struct kg_err){0};
    return KG_OK;
}

void kg_lane_stream_release(struct kg_lane_stream *s)
{
    kg_slab_release(&s->bucket);
    kg_slab_release(&s->room);
    kg_slab_release(&s->near);
    kg_slab_wire_close(&s->wire);
    for (int i = 0; i <= KG_TREE_LEVELS; i++)
        kg_slab_release(&s->slot[i]);
}

/* ---- packs ---- */

/* Splits the list of a lane into packs, each of as many consecutive sequences as fit. */
static void pack_lane(struct stream *s, int lane, size_t first, size_t end)
{
    size_t i = first, n;

    do {
        n = kg_lanes_fit(&s->job->lengths, s->list + i, end - i, 0);
        s->pack[s->n_packs++] = (struct pack){lane, i, n, i == first, i + n == end};
        i += n;
    } while (i < end);
}

/* A lane without sequences is one empty pack, which is +0. */
static void pack_all(struct stream *s, const int32_t *lane_of)
{
    size_t n = 0;

    for (int lane = 0; lane < s->job->lanes; lane++) {
        size_t first = n;

        for (size_t i = 0; i < s->job->n; i++)
            if (lane_of[i] == lane)
                s->list[n++] = i;
        pack_lane(s, lane, first, n);
    }
}

static void place_stripes(struct stream *s)
{
    for (int i = 1; i < s->buckets->n; i++)
        s->at[i] = s->at[i - 1] + stripe_width(s->buckets, i - 1, s->ranks->n);
}

static kg_status begin(struct stream *s, const int32_t *lane_of, struct kg_err *err)
{
    const size_t ranks = (size_t)s->ranks->n, buckets = (size_t)s->buckets->n;
    const size_t packs = s->job->n + (size_t)s->job->lanes;

    s->pack = kg_mem_calloc(packs, sizeof *s->pack, "packs", err);
    s->list = kg_mem_calloc(s->job->n + 1, sizeof *s->list, "packs", err);
    s->tree = kg_mem_calloc(buckets, sizeof *s->tree, "buckets", err);
    s->at = kg_mem_calloc(buckets, sizeof *s->at, "buckets", err);
    s->landing = kg_mem_calloc(ranks, sizeof *s->landing, "ranks", err);
    s->delay = kg_mem_calloc(ranks, sizeof *s->delay, "ranks", err);
    s->out = kg_mem_calloc(ranks, sizeof *s->out, "ranks", err);
    s->in = kg_mem_calloc(ranks, sizeof *s->in, "ranks", err);
    if (!s->pack || !s->list || !s->tree || !s->at || !s->landing || !s->delay ||
        !s->out || !s->in)
        return KG_ENOMEM;
    pack_all(s, lane_of);
    place_stripes(s);
    return take_memory(s, err);
}

static void end(struct stream *s)
{
    kg_mem_free(s->pack);
    kg_mem_free(s->list);
    kg_mem_free(s->tree);
    kg_mem_free(s->at);
    kg_mem_free(s->landing);
    kg_mem_free(s->delay);
    kg_mem_free(s->out);
    kg_mem_free(s->in);
}

/* ---- what each rank does at a tick ---- */

static bool has_pack(const struct stream *s, int rank)
{
    return rank >= 0 && rank < s->n_here;
}

/* Whether the rank's pack continues the lane of the previous rank's pack. */
static bool follows(const struct stream *s, int rank)
{
    return rank > 0 && has_pack(s, rank) && !s->here[rank].begins;
}

static bool at_bucket(int *i, const struct stream *s, int rank, int tick)
{
    *i = has_pack(s, rank) ? tick - s->delay[rank] : -1;
    return *i >= 0 && *i < s->buckets->n;
}

/* Whether the rank computes bucket *i at this tick, and the next rank then adds to it
 * (passes_on) or it is dealt out in stripes (deals). */
static bool passes_on(int *i, const struct stream *s, int rank, int tick)
{
    return at_bucket(i, s, rank, tick) && follows(s, rank + 1);
}

static bool deals(int *i, const struct stream *s, int rank, int tick)
{
    return at_bucket(i, s, rank, tick) && !follows(s, rank + 1);
}

static void no_parts(struct stream *s)
{
    memset(s->out, 0, (size_t)s->ranks->n * sizeof *s->out);
    memset(s->in, 0, (size_t)s->ranks->n * sizeof *s->in);
}

static kg_status exchange(struct stream *s, struct kg_err *err)
{
    return kg_slab_exchange(&s->memory->wire, s->out, s->in, "gradient exchange", err);
}

/* ---- from buckets to stripes ---- */

/* The slot of the unfinished lane; at the end it holds the sum of all lanes. */
static int open_slot(const struct stream *s) { return slots(s->job->lanes) - 1; }

static void land(struct landing *l, struct stream *s, const struct pack *p, int i)
{
    l->n = 0;
    l->slot = open_slot(s);
    if (!p->ends)
        return;
    if (p->lane + 1 == s->job->lanes) {
        l->n = kg_tree_finish(&s->tree[i], l->level);
        return;
    }
    l->slot = kg_tree_push(&s->tree[i]);
    for (l->n = 0; l->n < l->slot; l->n++)
        l->level[l->n] = l->n;
}

/* *came: the n received elements at `from` of the room, in host memory. */
static kg_status show(struct kg_vec *came, struct stream *s, int64_t from, int64_t n,
                      struct kg_err *err)
{
    if (!s->memory->wire.direct) {
        *came = kg_slab_part(&s->memory->room, from, n);
        return KG_OK;
    }
    *came = kg_slab_part(&s->memory->near, 0, n);
    return kg_slab_read(s->memory->near.data, &s->memory->room, from, n, err);
}

/* Adds levels to piece c of bucket i, which was received at `from`, and stores it. */
static kg_status rest(struct stream *s, const struct landing *l, int64_t from, int i,
                      struct kg_cut c, struct kg_err *err)
{
    const int64_t at = s->at[i] + c.first - stripe(s, s->ranks->me, i).first;
    struct kg_vec sum;

    if (c.n == 0)
        return KG_OK;
    KG_TRY(show(&sum, s, from, c.n, err));
    for (int k = 0; k < l->n; k++)
        KG_TRY(kg_op_add(s->host, sum,
                         kg_slab_part(&s->memory->slot[l->level[k]], at, c.n), err));
    memcpy(s->memory->slot[l->slot].data + at, sum.data, (size_t)c.n * sizeof *sum.data);
    return KG_OK;
}

/* Deals piece `at` of all stripes that are due at this tick. */
static kg_status deal_piece(struct stream *s, int tick, int64_t at, struct kg_err *err)
{
    const int me = s->ranks->me;
    const int64_t width = s->memory->room.n / s->ranks->n;
    struct kg_err why;
    int i;

    no_parts(s);
    for (int r = 0; r < s->ranks->n; r++)
        if (deals(&i, s, r, tick))
            s->in[r] = (struct kg_slab_stretch){&s->memory->room, r * width,
                                                piece_of(stripe(s, me, i), at).n};
    for (int r = 0; r < s->ranks->n && deals(&i, s, me, tick); r++)
        s->out[r] = in_bucket(s, piece_of(stripe(s, r, i), at), i);
    KG_TRY(exchange(s, err));
    for (int r = 0; r < s->ranks->n; r++)
        if (deals(&i, s, r, tick))
            keep_first(s,
                       rest(s, &s->landing[r], r * width, i,
                            piece_of(stripe(s, me, i), at), &why),
                       &why);
    return KG_OK;
}

static kg_status deal_out(struct stream *s, int tick, struct kg_err *err)
{
    int64_t most = 0;
    int i;

    for (int r = 0; r < s->ranks->n; r++) {
        if (!deals(&i, s, r, tick))
            continue;
        land(&s->landing[r], s, &s->here[r], i);
        if (stripe_width(s->buckets, i, s->ranks->n) > most)
            most = stripe_width(s->buckets, i, s->ranks->n);
    }
    for (int64_t at = 0; at < most; at += PIECE)
        KG_TRY(deal_piece(s, tick, at, err));
    return KG_OK;
}

/* ---- along a lane ---- */

/* Copies n received elements from the room to element `at` of the bucket. */
static kg_status put_bucket(struct stream *s, int64_t at, int64_t n, struct kg_err *err)
{
    struct kg_slab *b = &s->memory->bucket;
    const float *came = s->memory->room.data;

    return s->memory->wire.direct ? kg_buf_copy(s->backend, b->data + at, came,
                                                (uint64_t)n * sizeof *came, err)
                                  : kg_slab_write(b, at, came, n, err);
}

/* Sends bucket `from` to the next rank and receives `to` in its place, piece by piece;
 * both may be empty.   most: elements of the largest bucket that any rank passes on */
static kg_status swap_buckets(struct stream *s, struct kg_cut from, struct kg_cut to,
                              int64_t most, struct kg_err *err)
{
    const int me = s->ranks->me;
    struct kg_slab *b = &s->memory->bucket, *room = &s->memory->room;
    struct kg_err why;

    for (int64_t at = 0; at < most; at += room->n) {
        const struct kg_cut out = kg_cut_within(from, from.first + at, room->n);
        const struct kg_cut in = kg_cut_within(to, to.first + at, room->n);

        no_parts(s);
        if (out.n > 0)
            s->out[me + 1] = (struct kg_slab_stretch){b, at, out.n};
        if (in.n > 0)
            s->in[me - 1] = (struct kg_slab_stretch){room, 0, in.n};
        KG_TRY(exchange(s, err));
        if (in.n > 0)
            keep_first(s, put_bucket(s, at, in.n, &why), &why);
    }
    return KG_OK;
}

static kg_status pass_on(struct stream *s, int tick, struct kg_err *err)
{
    const int me = s->ranks->me;
    struct kg_cut from = {0}, to = {0};
    int64_t most = 0;
    int i;

    for (int r = 0; r < s->ranks->n; r++) {
        if (!passes_on(&i, s, r, tick))
            continue;
        struct kg_cut b = bucket(s->buckets, i);
        most = b.n > most ? b.n : most;
        from = r == me ? b : from;
        to = r == me - 1 ? b : to;
    }
    return swap_buckets(s, from, to, most, err);
}

/* Collects bucket i of the lane that the previous round did not finish, on rank 0. */
static kg_status fetch(struct stream *s, int i, struct kg_err *err)
{
    const struct kg_cut own = stripe(s, s->ranks->me, i);

    no_parts(s);
    s->out[0] = (struct kg_slab_stretch){&s->memory->slot[open_slot(s)], s->at[i], own.n};
    for (int r = 0; r < s->ranks->n && s->ranks->me == 0; r++)
        s->in[r] = in_bucket(s, stripe(s, r, i), i);
    return exchange(s, err);
}

/* Initialises this tick's bucket if no rank passed it on: the unfinished lane's, or 0. */
static kg_status begin_bucket(struct stream *s, int tick, struct kg_err *err)
{
    const int me = s->ranks->me;
    struct kg_slab b;
    struct kg_err why;
    int i;

    if (at_bucket(&i, s, 0, tick) && !s->here[0].begins)
        KG_TRY(fetch(s, i, err));
    if (!at_bucket(&i, s, me, tick) || !s->here[me].begins)
        return KG_OK;
    b = kg_slab_view(&s->memory->bucket, (struct kg_cut){0, bucket(s->buckets, i).n});
    keep_first(s, kg_slab_zero(&b, &why), &why);
    return KG_OK;
}

/* ---- a round ---- */

static void add_own(struct stream *s, int tick)
{
    struct kg_grads grads = {.data = s->memory->bucket.data};
    struct kg_err why;
    int i;

    if (!at_bucket(&i, s, s->ranks->me, tick) || !s->any || failed(s)->code != KG_OK)
        return;
    grads.first = bucket(s->buckets, i).first;
    keep_first(s, s->job->stages->backward(s->job->context, grads, i, &why), &why);
}

static kg_status all_ticks(struct stream *s, struct kg_err *err)
{
    int ticks = s->buckets->n + s->delay[s->n_here - 1];

    for (int t = 0; t < ticks; t++) {
        KG_TRY(begin_bucket(s, t, err));
        add_own(s, t);
        KG_TRY(deal_out(s, t, err));
        KG_TRY(pass_on(s, t, err));
    }
    return failure(s, err);
}

static kg_status forward(struct stream *s, struct kg_err *err)
{
    const struct kg_lane_job *job = s->job;
    const struct pack *p = &s->here[s->ranks->me];

    s->any = false;
    if (!has_pack(s, s->ranks->me) || p->n == 0)
        return KG_OK;
    return job->stages->forward(&s->any, job->context, s->list + p->first, p->n,
                                p->begins, err);
}

/* Appends the terms of this round, in the order of ranks, to those of earlier rounds. */
static kg_status gather_said(struct kg_str *all, struct kg_str *said,
                             struct kg_ranks *ranks, struct kg_err *err)
{
    kg_status status = kg_ranks_str_gather(said, ranks, "terms of lanes", err);

    if (status == KG_OK)
        status = kg_str_append(all, said->data, said->len, err);
    kg_str_clear(said);
    return kg_ranks_agree(ranks, status, "terms of lanes", err);
}

static kg_status one_round(struct stream *s, size_t first, struct kg_str *all,
                           struct kg_err *err)
{
    size_t left = s->n_packs - first;

    s->here = s->pack + first;
    s->n_here = left < (size_t)s->ranks->n ? (int)left : s->ranks->n;
    for (int r = 1; r < s->n_here; r++)
        s->delay[r] = s->delay[r - 1] + follows(s, r);
    KG_TRY(kg_ranks_agree(s->ranks, forward(s, err), "gradient", err));
    KG_TRY(gather_said(all, s->job->said, s->ranks, err));
    return kg_ranks_agree(s->ranks, all_ticks(s, err), "gradient exchange", err);
}

static kg_status all_rounds(struct stream *s, struct kg_err *err)
{
    int phase = kg_phase_begin((int64_t)s->n_packs, "packs", "micro-batches");
    struct kg_str all = {0};
    kg_status status = KG_OK;

    for (size_t at = 0; at < s->n_packs && status == KG_OK; at += (size_t)s->ranks->n) {
        status = one_round(s, at, &all, err);
        kg_phase_at(phase, (int64_t)at);
    }
    kg_phase_end(phase);
    kg_str_release(s->job->said);
    *s->job->said = all;
    return status;
}

/* ---- from stripes to shards ---- */

static kg_status to_owners(struct stream *s, struct kg_slab *grads, int i,
                           struct kg_err *err)
{
    const int n = s->ranks->n;
    const struct kg_cut own = stripe(s, s->ranks->me, i);
    const struct kg_cut cut = kg_cut_of(s->buckets->elements, s->ranks->me, n);
    struct kg_slab *sum = &s->memory->slot[open_slot(s)];

    for (int r = 0; r < n; r++) {
        const struct kg_cut to = kg_cut_of(s->buckets->elements, r, n);
        const struct kg_cut theirs = stripe(s, r, i);

        s->out[r] = part_in(sum, own.first - s->at[i],
                            kg_cut_within(to, own.first, own.n));
        s->in[r] = part_in(grads, cut.first, kg_cut_within(cut, theirs.first, theirs.n));
    }
    return exchange(s, err);
}

static kg_status all_to_owners(struct stream *s, struct kg_slab *grads,
                               struct kg_err *err)
{
    for (int i = 0; i < s->buckets->n; i++)
        KG_TRY(to_owners(s, grads, i, err));
    return failure(s, err);
}

kg_status kg_lane_stream_run(struct kg_lane_stream *memory, struct kg_slab *grads,
                             const struct kg_lane_job *job, const int32_t *lane,
                             struct kg_ranks *ranks, struct kg_err *err)
{
    struct stream s = {.memory = memory,
                       .job = job,
                       .buckets = &job->stages->buckets,
                       .ranks = ranks,
                       .backend = grads->backend};
    kg_status status = begin(&s, lane, err);

    assert(grads->n == kg_cut_of(s.buckets->elements, ranks->me, ranks->n).n);
    status = kg_ranks_agree(ranks, status, "gradient exchange", err);
    if (status == KG_OK)
        status = all_rounds(&s, err);
    if (status == KG_OK)
        status = kg_ranks_agree(ranks, all_to_owners(&s, grads, err), "gradient exchange",
                                err);
    end(&s);
    return status;
}
