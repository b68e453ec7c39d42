/* Training steps of a dense model. Only useful work is counted (bench.h). */
#include "bench/measure.h"

#include "base/clock.h"
#include "base/rng.h"
#include "model/optim.h"
#include "model/rows.h"

#include <stdio.h>

/* ---- a step ---- */

struct training {
    struct kg_model *model; /* owned */
    struct kg_optim *optim; /* owned */
    struct kg_rows *rows;   /* owned */
    int n_seqs;
    int seq_len;
    int prompt;                /* tokens that all sequences begin with, without targets */
    bool share;                /* compute them once */
    struct kg_traffic traffic; /* of all steps */
};

static void fill_rows(struct training *t)
{
    struct kg_rng_key key = {1, KG_RNG_TEST};
    int32_t tokens[2048];

    kg_rows_begin(t->rows, t->model, 0);
    for (int s = 0; s < t->n_seqs; s++) {
        for (int i = 0; i < t->seq_len; i++)
            tokens[i] = (int32_t)kg_rng_below(key, i < t->prompt ? 0 : (uint64_t)s,
                                              (uint32_t)i, 0,
                                              (uint64_t)t->model->config.vocab);
        kg_rows_add_seq(t->rows, &(struct kg_rows_seq){.tokens = tokens,
                                                       .n = (size_t)t->seq_len,
                                                       .most = (size_t)t->prompt});
        for (int i = t->prompt > 0 ? t->prompt : 1; i < t->seq_len; i++)
            kg_rows_want(t->rows, kg_rows_at(t->rows, (size_t)i - 1), tokens[i], 1.0f,
                         NULL);
    }
}

static kg_status forward_backward(double *seconds, void *user, struct kg_err *err)
{
    struct training *t = user;
    double start = kg_clock_seconds();

    fill_rows(t);
    KG_TRY(kg_rows_forward(t->rows, true, err));
    KG_TRY(kg_rows_ask(t->rows, NULL, err));
    for (int64_t i = 0; i < t->rows->n_rows; i++)
        t->rows->a_logp[i] = -1.0 / (double)t->rows->n_rows;
    KG_TRY(kg_rows_backward(t->rows, t->optim->grads.data, false, err));
    KG_TRY(kg_bench_settle(t->model->backend, t->optim->grads.data, err));
    *seconds = kg_clock_seconds() - start;
    return KG_OK;
}

static kg_status run_training(double *seconds, void *user, struct kg_err *err)
{
    struct training *t = user;
    const struct kg_traffic before = kg_buf_traffic(t->model->backend);
    double start = kg_clock_seconds(), norm, lr;

    KG_TRY(kg_slab_zero(&t->optim->grads, err));
    KG_TRY(forward_backward(seconds, user, err));
    KG_TRY(kg_optim_update(t->optim, t->model, &norm, &lr, err));
    KG_TRY(kg_bench_settle(t->model->backend, t->optim->grads.data, err));
    *seconds = kg_clock_seconds() - start;
    kg_buf_traffic_add(&t->traffic, t->model->backend, before);
    return KG_OK;
}

static double training_flops(const struct training *t)
{
    const struct kg_model_config *c = &t->model->config;
    double tokens = (double)t->n_seqs * t->seq_len;
    double attention = 6.0 * t->n_seqs * (double)t->seq_len * t->seq_len * c->heads *
                       c->head_dim * c->layers;

    return 6.0 * kg_bench_parameters(t->model) * tokens + attention;
}

static void training_release(struct training *t)
{
    kg_rows_free(t->rows);
    kg_optim_free(t->optim);
    kg_model_free(t->model);
}

static struct kg_rows_opts rows_opts(int n_seqs, int seq_len)
{
    return (struct kg_rows_opts){.max_tokens = (int64_t)n_seqs * seq_len,
                                 .backward = true};
}

static kg_status training_rows(struct training *t, int n_seqs, int seq_len,
                               struct kg_err *err)
{
    struct kg_rows_opts opts = rows_opts(n_seqs, seq_len);

    opts.share = t->share;
    kg_rows_free(t->rows);
    t->rows = NULL;
    t->n_seqs = n_seqs;
    t->seq_len = seq_len;
    return kg_rows_create(&t->rows, t->model, &opts, err);
}

static kg_status training_begin(struct training *t, int n_seqs, int seq_len,
                                struct kg_err *err)
{
    struct kg_optim_opts opts = {.lr = 1e-5,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .eps = 1e-8,
                                 .clip_norm = 1,
                                 .decay_all = true};

    KG_TRY(kg_optim_create(&t->optim, t->model, &opts, err));
    return training_rows(t, n_seqs, seq_len, err);
}

static kg_status training_init(struct training *t, const struct kg_bench_report *r,
                               const struct kg_bench_shape *s, int n_seqs, int seq_len,
                               struct kg_err *err)
{
    KG_TRY(kg_bench_model(&t->model, r, s, true, err));
    return training_begin(t, n_seqs, seq_len, err);
}

static kg_status time_training(struct kg_bench_timing *timing, struct kg_bench_report *r,
                               struct training *t, int repeats, struct kg_err *err)
{
    const struct kg_bench_job job = {.run = run_training,
                                     .user = t,
                                     .repeats = repeats,
                                     .ceiling = kg_bench_compute(r, false)};

    t->traffic = (struct kg_traffic){0};
    return kg_bench_time(timing, r, &job, err);
}

static kg_status put_training(struct kg_bench_report *r, const char *name,
                              const struct training *t,
                              const struct kg_bench_timing *timing, double bar,
                              struct kg_err *err)
{
    const struct kg_bench_rate rate = {name, training_flops(t), "GFLOP/s", {bar, false}};

    return kg_bench_put_rate(r, &rate, timing, err);
}

/* Prints what crosses in `steps` steps. Up per token: id, position, sequence and row;
 * target, for the head's forward; place and coefficient, for its backward (docs/gpu.md).
 * Down per token: log sum exp and log-prob; per step: the gradient's norm, and twice a
 * float that the clock waits for. */
static kg_status train_bus(struct kg_bench_report *r, const struct training *t,
                           const char *name, int steps, struct kg_err *err)
{
    return kg_bench_put_traffic(r, name, &t->traffic,
                                (double)steps * t->n_seqs * t->seq_len, steps,
                                "32 and 12 and 3 and 4 and 4", err);
}

/* A shape whose training is measured: as a row of `train`, and by parts. */
struct step_row {
    const struct kg_bench_shape *shape;
    int n_seqs, seq_len, repeats;
    double bar;
};

static kg_status train_row(struct kg_bench_report *r, const struct step_row *row,
                           const char *name, struct training *t, struct kg_err *err)
{
    struct kg_bench_timing timing;

    KG_TRY(time_training(&timing, r, t, row->repeats, err));
    KG_TRY(put_training(r, name, t, &timing, row->bar, err));
    return train_bus(r, t, name, row->repeats, err);
}

kg_status kg_bench_train_bus(struct kg_bench_report *r, const struct kg_bench_shape *s,
                             int n_seqs, int seq_len, struct kg_err *err)
{
    struct training t = {0};
    double seconds;
    kg_status status;

    KG_TRY_GOTO(out, training_init(&t, r, s, n_seqs, seq_len, err));
    KG_TRY_GOTO(out, run_training(&seconds, &t, err));
    t.traffic = (struct kg_traffic){0};
    KG_TRY_GOTO(out, run_training(&seconds, &t, err));
    status = train_bus(r, &t, "train", 1, err);
out:
    training_release(&t);
    return status;
}

/* ---- the benchmarks ---- */

enum { SEQS = 8, LENGTH = 256 };

static const struct step_row step_rows[] = {
    {&kg_bench_small, SEQS, LENGTH, 5, 0.5},
    {&kg_bench_narrow, 16, 512, 2, 0.5},
    {&kg_bench_half_b, SEQS, LENGTH, 2, 0.5},
    {&kg_bench_half_b, 1, SEQS *LENGTH, 2, 0},
};

/* Measures a row with a model that was made for it. */
typedef kg_status (*measure_fn)(struct kg_bench_report *r, const struct step_row *row,
                                const char *name, struct training *t, struct kg_err *err);

static kg_status one_step_row(struct kg_bench_report *r, const struct step_row *row,
                              measure_fn measure, struct kg_err *err)
{
    struct training t = {0};
    char name[80];
    kg_status status;

    snprintf(name, sizeof name, "train %s, %d x %d tokens", row->shape->name, row->n_seqs,
             row->seq_len);
    if (!kg_bench_wants(r, name))
        return KG_OK;
    KG_TRY_GOTO(out, training_init(&t, r, row->shape, row->n_seqs, row->seq_len, err));
    status = measure(r, row, name, &t, err);
out:
    training_release(&t);
    return status;
}

static kg_status each_step_row(struct kg_bench_report *r, measure_fn measure,
                               struct kg_err *err)
{
    for (size_t i = 0; i < sizeof step_rows / sizeof *step_rows; i++)
        KG_TRY(one_step_row(r, &step_rows[i], measure, err));
    return KG_OK;
}

/* Completions of one prompt, which is three quarters of their tokens, with and without
 * sharing it; more and longer ones on a device. */
static kg_status shared_row(struct kg_bench_report *r, struct kg_err *err)
{
    const bool host = r->be->host_memory;
    const int n_seqs = host ? SEQS : 2 * SEQS, seq_len = host ? LENGTH : 4 * LENGTH;
    struct kg_bench_share share = {.unit = "steps/s", .of = "the rate without sharing"};
    struct kg_bench_timing timing;
    struct training t = {.prompt = 3 * seq_len / 4};
    double *const rates[] = {&share.whole, &share.part};
    char name[80];
    kg_status status;

    snprintf(name, sizeof name, "train %s, %d x %d tokens, prompts of %d shared",
             kg_bench_half_b.name, n_seqs, seq_len, t.prompt);
    share.name = name;
    if (!kg_bench_wants(r, name))
        return KG_OK;
    KG_TRY_GOTO(out, training_init(&t, r, &kg_bench_half_b, n_seqs, seq_len, err));
    for (int i = 0; i < 2; i++) {
        t.share = i == 1;
        KG_TRY_GOTO(out, training_rows(&t, n_seqs, seq_len, err));
        KG_TRY_GOTO(out, time_training(&timing, r, &t, 2, err));
        *rates[i] = 1 / kg_bench_best(&timing);
    }
    status = kg_bench_put_share(r, &share, err);
out:
    training_release(&t);
    return status;
}

kg_status kg_bench_train(struct kg_bench_report *r, struct kg_err *err)
{
    KG_TRY(each_step_row(r, train_row, err));
    return shared_row(r, err);
}

static kg_status step_parts(struct kg_bench_report *r, const struct step_row *row,
                            const char *name, struct training *t, struct kg_err *err)
{
    (void)row;
    return kg_bench_best_parts(r, name, run_training, t, err);
}

kg_status kg_bench_train_parts_of(struct kg_bench_report *r,
                                  const struct kg_bench_shape *s, int n_seqs, int seq_len,
                                  struct kg_err *err)
{
    const struct step_row row = {.shape = s, .n_seqs = n_seqs, .seq_len = seq_len};

    return one_step_row(r, &row, step_parts, err);
}

kg_status kg_bench_train_parts(struct kg_bench_report *r, struct kg_err *err)
{
    return each_step_row(r, step_parts, err);
}
