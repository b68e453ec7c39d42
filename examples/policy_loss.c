/* A step of EMA-PG's loss on a linear "model", from rewards to new weights.
 *
 *     cc policy_loss.c $(pkg-config --cflags --libs kedge) -o policy_loss && ./policy_loss
 *
 * Four answers to one prompt, three tokens each. The head's weights are all there is to
 * train; the anchor is the weights before the step, so that its KL starts at 0. */
#include <kedge.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { S = 4, N = 12, D = 16, V = 1000, K = 8 };

static struct kedge_err err;

static void must(int status)
{
    if (status != KEDGE_OK) {
        fprintf(stderr, "%s: %s\n", kedge_status_name(status), err.message);
        exit(1);
    }
}

static float hidden[N * D], weight[V * D], dhidden[N * D], dweight[V * D];
static double lse[N], logp[N], old[N], at[N * K], old_at[N * K], advantage[N];
static double a_logp[N], a_at[N * K];
static int32_t tokens[N], ids[N * K];

int main(void)
{
    const int64_t seq_begin[S + 1] = {0, 3, 6, 9, 12}, group_begin[2] = {0, S};
    const double reward[S] = {1, 0, 0, 1};
    struct kedge_head head = {.size = sizeof head, .n_rows = N, .width = D, .vocab = V};
    struct kedge_head_rows out = {.size = sizeof out, .lse = lse, .logp = logp};
    struct kedge_scores scores = {.size = sizeof scores, .n_seqs = S, .n_groups = 1};
    struct kedge_advantage adv = {.size = sizeof adv, .token = advantage};
    struct kedge_rows rows = {.size = sizeof rows, .n_seqs = S, .n_tokens = N};
    struct kedge_grad grad = {.size = sizeof grad, .a_logp = a_logp, .a_at = a_at};
    struct kedge_head_grad back = {.size = sizeof back, .lse = lse, .a_logp = a_logp};
    struct kedge_algo *algo;

    for (int i = 0; i < N * D; i++)
        hidden[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int i = 0; i < V * D; i++)
        weight[i] = (float)(i * 53 % 211) / 105 - 1;
    for (int n = 0; n < N; n++)
        tokens[n] = n * 83 % V;
    must(kedge_algo_create(&algo, "ema-pg", &err));
    must(kedge_algo_set(algo, "kl.top_k", "8", &err));

    /* the sampler's rows: its K largest ids are recorded, and are the anchor's rows too */
    head.hidden = hidden, head.weight = weight, head.tokens = tokens, head.top_k = K;
    out.top_ids = ids, out.top_logp = old_at;
    must(kedge_head(&out, &head, &err));
    memcpy(old, logp, sizeof old);

    scores.reward = reward, scores.seq_begin = seq_begin,
    scores.group_begin = group_begin;
    must(kedge_advantages(&adv, algo, &scores, &err));

    head.ids = ids, head.k = K, head.top_k = 0;
    out.top_ids = NULL, out.top_logp = NULL, out.logp_at = at;
    rows.seq_begin = seq_begin, rows.tokens = tokens, rows.logp = logp;
    rows.old_logp = rows.anchor_logp = old, rows.advantage = advantage;
    rows.k_sampler = K, rows.ids = ids, rows.logp_at = at, rows.anchor_at = old_at;
    back.a_at = a_at, back.dhidden = dhidden, back.dweight = dweight;
    for (int step = 0; step < 3; step++) {
        must(kedge_head(&out, &head, &err));
        must(kedge_loss(&grad, algo, &rows, &err));
        printf("step %d: loss %9.6f, KL %.6f\n", step, grad.loss, grad.kl);
        memset(dweight, 0, sizeof dweight);
        must(kedge_head_backward(&back, &head, &err));
        for (int i = 0; i < V * D; i++)
            weight[i] -= 0.5f * dweight[i];
    }
    kedge_algo_free(algo);
    return 0;
}
