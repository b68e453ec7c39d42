/* Attention by the matrix instruction: attention_mma.cu, and for many rows
 * attention_wgmma.cu if it gives the same bits.
 *
 * That depends on the device, as for products (product_own.cu). So both are tried when
 * the backend is opened, once per process, on sequences of several parts; outputs and lse
 * are compared in fp32, before o is rounded. If the bits differ, kedge uses
 * attention_mma.cu alone and reports it.
 */
#include "tensor/cuda/attention_internal.h"
#include "tensor/cuda/trial_internal.h"
#include <stdio.h>

extern "C" {
#include "tensor/cuda/boxes.h"
}

/* What the trial found. */
static struct {
    bool done, left_out;
    bool refused;                /* a kernel was not launched */
    struct kg_cuda_others of[2]; /* of heads of 64 and 128 */
} found;

enum { TRIED = KG_DEV_TRIED, HEADS = 2, KV_HEADS = 1 };

struct trial {
    struct kg_attn a;
    struct kg_mat o[2], lse[2]; /* by mma, by wgmma */
    struct kg_attn_seq *seq;
    struct kg_cuda_others *room;
};

/* Over NULL: *bytes alone. */
static void place(struct trial *t, char *memory, uint64_t *bytes, int hd)
{
    struct kg_cuda_piece p = {memory, 0};
    struct kg_attn *a = &t->a;

    *a = {};
    a->q = kg_cuda_trial_take(&p, KG_BF16, TRIED, HEADS * hd);
    a->k = kg_cuda_trial_take(&p, KG_BF16, TRIED, KV_HEADS * hd);
    a->v = kg_cuda_trial_take(&p, KG_BF16, TRIED, KV_HEADS * hd);
    for (int i = 0; i < 2; i++) {
        t->o[i] = kg_cuda_trial_take(&p, KG_F32, TRIED, HEADS * hd);
        t->lse[i] = kg_cuda_trial_take(&p, KG_F32, TRIED, HEADS);
    }
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

static kg_status try_width(char *memory, int hd, struct kg_err *err)
{
    const struct kg_attn_seq seq = {0, TRIED, 0, 0};
    struct kg_cuda_others *of = &found.of[hd / 128];
    struct kg_vec lse[2];
    struct trial t;
    uint64_t bytes;

    place(&t, memory, &bytes, hd);
    kg_dev_put(t.seq, &seq, sizeof seq);
    kg_cuda_trial_fill(t.a.q, true, false, 0);
    kg_cuda_trial_fill(t.a.k, true, false, 1);
    kg_cuda_trial_fill(t.a.v, true, true, 2);
    for (int i = 0; i < 2; i++)
        lse[i] = kg_vec((float *)t.lse[i].data, TRIED * HEADS);
    kg_cuda_attention_mma(t.o[0], lse[0], &t.a);
    if (!kg_cuda_attention_wgmma(t.o[1], lse[1], &t.a)) {
        found.refused = true;
        return KG_OK;
    }
    KG_TRY(kg_cuda_trial_compare(of, t.o[0], t.o[1], t.room, err));
    return kg_cuda_trial_compare(of, t.lse[0], t.lse[1], t.room, err);
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

void kg_cuda_attention_describe(char *text, size_t bytes)
{
    text[0] = 0;
    if (!found.done || found.left_out)
        return;
    if (found.refused)
        snprintf(text, bytes, "; attention not by wgmma: not launched");
    else if (found.of[0].n + found.of[1].n == 0)
        snprintf(text, bytes, "; attention of many rows by wgmma, with the same bits");
    else
        snprintf(text, bytes,
                 "; attention not by wgmma: other bits of %d and %d in %d and %d",
                 found.of[0].n, found.of[1].n, TRIED * HEADS * (64 + 1),
                 TRIED * HEADS * (128 + 1));
}

/* ---- who computes it ---- */
/* Only the device knows how many rows a sequence has: on average a pair of tiles for each
 * KV head, and pairs for a third of the multiprocessors. Fewer rows want the small blocks
 * of the other kernel. */
static bool is_large(const struct kg_attn *a)
{
    enum { PAIR = 2 * KG_ATTN_ROWS, SHARE = 3 };

    return a->q.rows * kg_cuda_group(*a) >= (int64_t)PAIR * a->n_seqs &&
           SHARE * (a->q.rows * a->n_heads / PAIR) >= kg_dev_hoppers();
}

void kg_cuda_attention_own(struct kg_mat o, struct kg_vec lse, const struct kg_attn *a)
{
    const bool same = found.done && !found.left_out && !found.refused &&
                      found.of[0].n + found.of[1].n == 0;

    if (!same || !is_large(a) || !kg_cuda_attention_wgmma(o, lse, a))
        kg_cuda_attention_mma(o, lse, a);
}
