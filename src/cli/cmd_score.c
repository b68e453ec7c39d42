/* kedge score: log-probs of given ids by the training forward pass.
 *
 * Lines are read into windows; a window is scored in packs and printed in order. The
 * numbers do not depend on the packs. If a line is malformed, the results of the lines
 * before it are printed first.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/mem.h"
#include "rollout/score.h"

#include <stdio.h>

enum { WINDOW = 256, WINDOW_TOKENS = 4096 };

static float temperature = 1;
static bool entropy;

const struct kg_flag kg_score_flags[] = {
    KG_FLAGS_OF(kg_model_flags),
    KG_FLAGS_OF(kg_ignore_flags),
    KG_FLAGS_OF(kg_compute_flags),
    KG_FLAGS_OF(kg_device_flags),
    {"temperature", 't', KG_TO(temperature), "T",
     "log-probs of softmax(logits / T) (default 1; 0 counts as 1)", 1e-4, 1e4, NULL,
     true},
    {"entropy", 0, KG_TO(entropy), NULL,
     "add \"entropy\" of each token's distribution, in nats"},
    {0},
};

/* Lines to be scored; ids has the ids of all lines. */
struct window {
    struct kg_ids ids;
    size_t from[WINDOW + 1]; /* line i has ids[from[i]] to ids[from[i + 1] - 1] */
    size_t n;
    float *logp;    /* per id */
    float *entropy; /* per id, or NULL */
    struct kg_score_seq seqs[WINDOW];
    struct kg_rows *rows; /* owned; grows to the longest line */
};

/* Reads lines until the window is full or the input ends. If a line is refused, the
 * window keeps only the lines before it. */
static kg_status read_window(struct window *w, bool *more, struct kg_jsonl *in,
                             struct kg_json_doc *doc, const struct kg_model *m,
                             struct kg_err *err)
{
    w->n = 0;
    w->ids.n = 0;
    w->from[0] = 0;
    while (w->n < WINDOW && w->ids.n < WINDOW_TOKENS) {
        KG_TRY(kg_jsonl_next(in, doc, more, err));
        if (!*more)
            return KG_OK;
        KG_TRY(kg_load_ids(&w->ids, doc, m->config.vocab, err));
        size_t n = w->ids.n - w->from[w->n];
        if (n == 0)
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected at least one id, found an empty list",
                           doc->where);
        if (n > (size_t)m->config.max_positions)
            return kg_fail(err, KG_EFORMAT,
                           "%s: %zu ids exceed the model's limit of %d positions",
                           doc->where, n, m->config.max_positions);
        w->from[++w->n] = w->ids.n;
    }
    return KG_OK;
}

static kg_status need_rows(struct window *w, const struct kg_model *m, struct kg_err *err)
{
    size_t longest = 0;
    for (size_t i = 0; i < w->n; i++)
        if (w->seqs[i].n > longest)
            longest = w->seqs[i].n;
    size_t total = w->from[w->n];
    size_t pack = total < 2048 ? total : 2048;
    struct kg_rows_opts opts = {.max_tokens = (int64_t)(longest > pack ? longest : pack),
                                .share = true};
    if (w->rows && opts.max_tokens <= w->rows->max_tokens)
        return KG_OK;
    kg_rows_free(w->rows);
    w->rows = NULL;
    return kg_rows_create(&w->rows, m, &opts, err);
}

static kg_status score_window(struct window *w, const struct kg_model *m,
                              struct kg_err *err)
{
    kg_mem_free(w->logp);
    kg_mem_free(w->entropy);
    w->entropy = NULL;
    KG_TRY(kg_mem_new(&w->logp, w->from[w->n], sizeof *w->logp, "log-probs", err));
    if (entropy) {
        KG_TRY(
            kg_mem_new(&w->entropy, w->from[w->n], sizeof *w->entropy, "entropies", err));
    }
    for (size_t i = 0; i < w->n; i++) {
        size_t at = w->from[i];
        w->seqs[i] = (struct kg_score_seq){.tokens = w->ids.ids + at,
                                           .n = w->from[i + 1] - at,
                                           .temperature = temperature,
                                           .logp = w->logp + at,
                                           .entropy = w->entropy ? w->entropy + at
                                                                 : NULL};
    }
    KG_TRY(need_rows(w, m, err));
    return kg_score(w->rows, m, w->seqs, w->n, 0, 0, err);
}

/* [null, x[1], ...]: the first token has no log-prob. */
static kg_status put_numbers(struct kg_str *out, const char *key, const float *x,
                             size_t n, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "\"%s\": [null", key));
    for (size_t i = 1; i < n; i++) {
        KG_TRY(kg_str_puts(out, ", ", err));
        KG_TRY(kg_json_put_float(out, x[i], err));
    }
    return kg_str_putc(out, ']', err);
}

static kg_status put_line(struct kg_str *out, const struct kg_score_seq *q,
                          struct kg_err *err)
{
    KG_TRY(kg_str_putc(out, '{', err));
    KG_TRY(put_numbers(out, "logprobs", q->logp, q->n, err));
    if (q->entropy) {
        KG_TRY(kg_str_puts(out, ", ", err));
        KG_TRY(put_numbers(out, "entropy", q->entropy, q->n, err));
    }
    return kg_str_puts(out, "}\n", err);
}

static kg_status answer_window(struct window *w, struct kg_str *out,
                               const struct kg_model *m, struct kg_err *err)
{
    if (w->n == 0)
        return KG_OK;
    KG_TRY(score_window(w, m, err));
    for (size_t i = 0; i < w->n; i++)
        KG_TRY(put_line(out, &w->seqs[i], err));
    return kg_cli_put(out, err);
}

static kg_status score_lines(struct window *w, struct kg_jsonl *in,
                             const struct kg_model *m, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str out = {0};
    bool more = true;
    size_t n = 0;
    kg_status status = KG_OK;
    while (more) {
        struct kg_err input_err;
        kg_status input = read_window(w, &more, in, &doc, m, &input_err);
        KG_TRY_GOTO(out, answer_window(w, &out, m, err));
        if (input != KG_OK) {
            *err = input_err;
            status = input;
            break;
        }
        n += w->n;
    }
    if (status == KG_OK && n == 0)
        status = kg_fail(err, KG_EFORMAT,
                         "stdin: expected at least one line, found none");
out:
    kg_json_release(&doc);
    kg_str_release(&out);
    return status;
}

static void window_free(struct window *w)
{
    if (w == NULL)
        return;
    kg_ids_release(&w->ids);
    kg_mem_free(w->logp);
    kg_mem_free(w->entropy);
    kg_rows_free(w->rows);
    kg_mem_free(w);
}

int kg_cmd_score(int argc, char **argv)
{
    struct kg_loaded l = {0};
    struct kg_jsonl *in = NULL;
    struct window *w = NULL;
    struct kg_err err;
    kg_status status = KG_OK;
    (void)argc;
    (void)argv;
    if (kg_load.dir == NULL)
        return kg_cli_usage("expected --model DIR");
    KG_TRY_GOTO(out, kg_load_model(&l, &kg_load, &err));
    KG_TRY_GOTO(out, kg_jsonl_open_stream(&in, stdin, "stdin", &err));
    w = kg_mem_calloc(1, sizeof *w, "window of lines", &err);
    status = w ? score_lines(w, in, l.model, &err) : err.code;
out:
    window_free(w);
    kg_jsonl_close(in);
    kg_load_release(&l);
    return kg_cli_exit(status, &err);
}
