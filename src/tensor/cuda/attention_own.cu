/* Attention by the matrix instruction: attention_mma.cu and attention_bwd_mma.cu, and for
 * many rows attention_wgmma.cu and attention_bwd_wgmma.cu where these give the same bits.
 *
 * Whether they do depends on the device, as for products (product_own.cu). So all are
 * tried when the backend is opened, once per process, on a sequence of several parts;
 * outputs, lse and gradients are compared in fp32, before o is rounded. If a head width
 * has other bits forward or backward, kedge uses mma there and reports it.
 */
#include "tensor/cuda/attention_internal.h"
#include "tensor/cuda/trial_internal.h"
#include <stdio.h>

extern "C" {
#include "tensor/cuda/boxes.h"
}

/* Results of the trial, for heads of 64 and of 128. */
struct way {
    bool refused; /* a kernel was not launched */
    struct kg_cuda_others of[2];
};
static struct {
    bool done, left_out;
    struct way forward, backward;
} found;

enum { TRIED = KG_DEV_TRIED, HEADS = 2, KV_HEADS = 1, GRADIENTS = 3 };

struct trial {
    struct kg_attn a;
    struct kg_mat dout;
    struct kg_mat o[2], lse[2], gradients[2][GRADIENTS]; /* by mma, by wgmma */
    struct kg_cuda_brought *rows;
    struct kg_attn_seq *seq;
    struct kg_cuda_others *room;
};

/* memory NULL: only *bytes. */
static void place(struct trial *t, char *memory, uint64_t *bytes, int hd)
{
    struct kg_cuda_piece p = {memory, 0};
    struct kg_attn *a = &t->a;

    *a = {};
    a->q = kg_cuda_trial_take(&p, KG_BF16, TRIED, HEADS * hd);
    a->k = kg_cuda_trial_take(&p, KG_BF16, TRIED, KV_HEADS * hd);
    a->v = kg_cuda_trial_take(&p, KG_BF16, TRIED, KV_HEADS * hd);
    t->dout = kg_cuda_trial_take(&p, KG_BF16, TRIED, HEADS * hd);
    for (int i = 0; i < 2; i++) {
        t->o[i] = kg_cuda_trial_take(&p, KG_F32, TRIED, HEADS * hd);
        t->lse[i] = kg_cuda_trial_take(&p, KG_F32, TRIED, HEADS);
        for (int g = 0; g < GRADIENTS; g++)
            t->gradients[i][g] = kg_cuda_trial_take(&p, KG_F32, TRIED,
                                                    (g == 0 ? HEADS : KV_HEADS) * hd);
    }
    kg_cuda_take(&p, &t->rows, TRIED * (HEADS + 1) / 2);
    kg_cuda_take(&p, &t->seq, 1);
    kg_cuda_take(&p, &t->room, KG_TRIAL_BLOCKS);
    a->n_heads = HEADS;
    a->n_kv_heads = KV_HEADS;
    a->head_dim = hd;
    a->scale = 2.0f; /* scores from about -8 to 8 */
    a->seqs = t->seq;
    a->n_seqs = 1;
    *bytes = p.used;
}

static kg_status try_forward(struct trial *t, struct kg_cuda_others *of,
                             struct kg_err *err)
{
    struct kg_vec lse[2];

    for (int i = 0; i < 2; i++)
        lse[i] = kg_vec((float *)t->lse[i].data, TRIED * HEADS);
    kg_cuda_attention_mma(t->o[0], lse[0], &t->a);
    if (!kg_cuda_attention_wgmma(t->o[1], lse[1], &t->a)) {
        found.forward.refused = true;
        return KG_OK;
    }
    KG_TRY(kg_cuda_trial_compare(of, t->o[0], t->o[1], t->room, err));
    return kg_cuda_trial_compare(of, t->lse[0], t->lse[1], t->room, err);
}

/* Uses the results of try_forward. */
static kg_status try_backward(struct trial *t, struct kg_cuda_others *of,
                              struct kg_err *err)
{
    const struct kg_vec lse = kg_vec((float *)t->lse[0].data, TRIED * HEADS);
    const struct kg_cuda_given g = {t->a, t->dout, {}, t->rows, lse, kg_cuda_scores(t->a),
                                    {}};
    const struct kg_mat(*const to)[GRADIENTS] = t->gradients;

    kg_cuda_attention_bwd_prepare(&g, {}, t->o[0]);
    kg_cuda_attention_bwd_mma_queries(to[0][0], &g);
    kg_cuda_attention_bwd_mma_keys(to[0][1], to[0][2], &g);
    if (!kg_cuda_attention_bwd_wgmma_queries(to[1][0], &g) ||
        !kg_cuda_attention_bwd_wgmma_keys(to[1][1], to[1][2], &g)) {
        found.backward.refused = true;
        return KG_OK;
    }
    for (int i = 0; i < GRADIENTS; i++)
        KG_TRY(kg_cuda_trial_compare(of, to[0][i], to[1][i], t->room, err));
    return KG_OK;
}

static kg_status try_width(char *memory, int hd, struct kg_err *err)
{
    const struct kg_attn_seq seq = {0, TRIED, 0, 0};
    struct trial t;
    uint64_t bytes;

    place(&t, memory, &bytes, hd);
    kg_dev_put(t.seq, &seq, sizeof seq);
    kg_cuda_trial_fill(t.a.q, true, false, 0);
    kg_cuda_trial_fill(t.a.k, true, false, 1);
    kg_cuda_trial_fill(t.a.v, true, true, 2);
    kg_cuda_trial_fill(t.dout, true, true, 3);
    KG_TRY(try_forward(&t, &found.forward.of[hd / 128], err));
    return try_backward(&t, &found.backward.of[hd / 128], err);
}

void kg_cuda_attention_leave_out(bool yes) { found.left_out = yes; }

kg_status kg_cuda_attention_try(struct kg_err *err)
{
    kg_status status = KG_OK;
    struct trial t;
    uint64_t bytes;
    char *memory;

    if (found.done || kg_dev_hoppers() == 0)
        return KG_OK;
    place(&t, NULL, &bytes, 128);
    memory = (char *)kg_dev_alloc(bytes, "trial of attention", err);
    if (!memory)
        return err->code;
    for (int hd = 64; hd <= 128 && status == KG_OK; hd += 64)
        status = try_width(memory, hd, err);
    kg_dev_free(memory);
    found.done = status == KG_OK;
    return status;
}

/* Heads of 64 and of 128 have different kernels. */
static bool is_same(const struct way &w, int head_dim)
{
    return found.done && !found.left_out && !w.refused && w.of[head_dim / 128].n == 0;
}
static bool is_same(const struct way &w) { return is_same(w, 64) && is_same(w, 128); }

/* returns the number of characters;   a, b: elements compared, for heads of 64, 128 */
static int describe_way(char *text, size_t bytes, const char *name, const struct way &w,
                        int a, int b)
{
    if (w.refused)
        return snprintf(text, bytes, "; %s not by wgmma: not launched", name);
    if (is_same(w))
        return snprintf(text, bytes, "; %s of many rows by wgmma, with the same bits",
                        name);
    return snprintf(text, bytes,
                    "; %s not by wgmma: other bits of %d and %d in %d and %d", name,
                    w.of[0].n, w.of[1].n, a, b);
}

/* Describes the backward only if it or the forward does not use wgmma. */
void kg_cuda_attention_describe(char *text, size_t bytes)
{
    enum { OUT = TRIED * HEADS, GRADIENT = TRIED * (HEADS + 2 * KV_HEADS) };

    text[0] = 0;
    if (!found.done || found.left_out)
        return;
    const int n = describe_way(text, bytes, "attention", found.forward, OUT * (64 + 1),
                               OUT * (128 + 1));

    if (n < (int)bytes && !(is_same(found.forward) && is_same(found.backward)))
        describe_way(text + n, bytes - (size_t)n, "its backward", found.backward,
                     GRADIENT * 64, GRADIENT * 128);
}

/* ---- choice of the kernel ---- */
/* Only the device knows the rows of each sequence. On average, a sequence must have a
 * pair of tiles per KV head, and there must be pairs for a third of the multiprocessors.
 * With fewer rows, the small blocks of the mma kernel are faster. */
static bool is_large(const struct kg_attn *a)
{
    enum { PAIR = 2 * KG_ATTN_ROWS, SHARE = 3 };

    return a->q.rows * kg_cuda_group(*a) >= (int64_t)PAIR * a->n_seqs &&
           SHARE * (a->q.rows * a->n_heads / PAIR) >= kg_dev_hoppers();
}

void kg_cuda_attention_own(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a)
{
    if (!is_same(found.forward, a->head_dim) || !is_large(a) ||
        !kg_cuda_attention_wgmma(o, lse, a))
        kg_cuda_attention_mma(o, lse, a);
}

/* Starting and ending a block of threads takes as long as about three turns, with heads
 * of 64 more; and short sequences have few turns. */
static bool is_long(const struct kg_attn *a)
{
    return is_large(a) &&
           a->q.rows * a->head_dim >= (int64_t)KG_DEV_LONG * 128 * a->n_seqs;
}

/* Requires pairs of key blocks for one and a half times the multiprocessors: then the
 * longest walks over all heads of a group end at about the same time as the others. */
bool kg_cuda_attention_in_turn(const struct kg_attn *a)
{
    enum { PAIR = 2 * KG_KV_BLOCK };

    return is_same(found.backward, a->head_dim) && is_long(a) && a->window == 0 &&
           a->softcap == 0.0f &&
           2 * (a->k.rows / PAIR * a->n_kv_heads) >= 3 * kg_dev_hoppers();
}

void kg_cuda_attention_bwd_own(struct kg_mat dq, struct kg_mat dk, struct kg_mat dv,
                               const struct kg_cuda_given *g)
{
    const bool four = is_same(found.backward, g->a.head_dim) && is_long(&g->a);

    if (!four || !kg_cuda_attention_bwd_wgmma_queries(dq, g))
        kg_cuda_attention_bwd_mma_queries(dq, g);
    if (!four || !kg_cuda_attention_bwd_wgmma_keys(dk, dv, g))
        kg_cuda_attention_bwd_mma_keys(dk, dv, g);
    if (g->apart[0].data)
        kg_cuda_attention_add_heads(dk, dv, g);
}
