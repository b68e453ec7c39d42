/* kedge replay: loss and gradient of a dumped step, under the run's algorithm or another.
 * The dump has the trajectories of the step, and a checkpoint the weights, so a "what if"
 * about the loss needs no new run. For a step and keys, it prints the parts of the loss
 * side by side: value, norm and variance of the gradient, and its cosines with the
 * gradients of the exact objective and of the exact KL. A part that the algorithm
 * lacks is a dash. */
#include "cli/cli.h"

#include "data/json.h"
#include "lab/replay.h"

#include <math.h>
#include <stdlib.h>

static bool json;

const struct kg_flag kg_replay_flags[] = {
    {"json", 0, KG_TO(json), NULL, "one JSON object on stdout"},
    {0},
};

/* ---- as JSON ---- */

static kg_status put_number(struct kg_str *out, const char *name, double x, bool there,
                            struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, ", \"%s\": ", name));
    return there && isfinite(x) ? kg_json_put_double(out, x, err)
                                : kg_str_puts(out, "null", err);
}

static kg_status put_json(struct kg_str *out, const struct kg_replay *r,
                          struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err,
                         "{\"step\": %lld, \"weights_step\": %lld, \"answers\": %zu, "
                         "\"groups\": %zu, \"left_out\": %zu, \"algorithm\": \"%s\"",
                         (long long)r->step, (long long)r->weights_step, r->answers,
                         r->groups, r->left_out, r->algorithm));
    KG_TRY(put_number(out, "apart_max", r->apart_max, true, err));
    KG_TRY(put_number(out, "advantage_apart_max", r->advantage_apart_max, true, err));
    KG_TRY(kg_str_puts(out, ", \"parts\": [", err));
    for (int i = 0; i < KG_REPLAY_PARTS; i++) {
        const struct kg_replay_row *row = &r->row[i];

        KG_TRY(kg_str_printf(out, err, "%s{\"part\": \"%s\"", i > 0 ? ", " : "",
                             kg_replay_part_name((enum kg_replay_part)i)));
        KG_TRY(put_number(out, "value", row->value, row->there, err));
        KG_TRY(put_number(out, "grad_norm", row->norm, row->there, err));
        KG_TRY(
            put_number(out, "variance", row->variance, row->there && r->groups > 1, err));
        KG_TRY(put_number(out, "cosine", row->cosine, row->there, err));
        KG_TRY(put_number(out, "cosine_objective", row->to_objective, row->there, err));
        if (i == KG_REPLAY_KL) {
            KG_TRY(put_number(out, "noise", row->noise, row->there, err));
            KG_TRY(put_number(out, "bias_squared", row->bias_squared, row->there, err));
        }
        KG_TRY(kg_str_putc(out, '}', err));
    }
    return kg_str_puts(out, "]}\n", err);
}

/* ---- as a table ---- */

static kg_status put_head(struct kg_str *out, const char *dir, const struct kg_replay *r,
                          struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "step %lld of %s: %zu completions in %zu groups",
                         (long long)r->step, dir, r->answers, r->groups));
    if (r->left_out > 0)
        KG_TRY(kg_str_printf(out, err, " (%zu that were not trained on are left out)",
                             r->left_out));
    KG_TRY(kg_str_printf(out, err, "\nweights     %s: %s\n",
                         r->checkpoint[0] ? r->checkpoint : "start of the run",
                         r->weights_step == r->step - 1
                             ? "the weights before the step"
                             : "older than the weights before the step"));
    KG_TRY(kg_str_printf(out, err,
                         "            recorded log-probs are at most %g apart, "
                         "advantages %g\n",
                         r->apart_max, r->advantage_apart_max));
    return kg_str_printf(out, err, "algorithm   %s\n\n", r->algorithm);
}

static kg_status put_cell(struct kg_str *out, double x, bool there, struct kg_err *err)
{
    if (there && isfinite(x))
        return kg_str_printf(out, err, " %14.6g", x);
    return kg_str_printf(out, err, " %14s", "-");
}

/* Noise and bias of the KL term's gradient. */
static kg_status put_bias(struct kg_str *out, const struct kg_replay *r,
                          struct kg_err *err)
{
    const struct kg_replay_row *row = &r->row[KG_REPLAY_KL];

    if (isfinite(row->noise))
        return kg_str_printf(
            out, err,
            "\nKL term minus exact KL, in units of the exact |gradient|: noise %.4g, "
            "bias^2 %.4g (a value below 0 is chance)\n",
            row->noise, row->bias_squared);
    if (row->there && r->group_bytes > KG_REPLAY_MOST_BYTES)
        return kg_str_printf(out, err,
                             "\nnoise and bias of the KL term: not computed, the "
                             "gradients of %zu groups take %.1f GB (limit %.1f GB)\n",
                             r->groups, (double)r->group_bytes / 1e9,
                             (double)KG_REPLAY_MOST_BYTES / 1e9);
    return KG_OK;
}

static kg_status put_table(struct kg_str *out, const char *dir, const struct kg_replay *r,
                           struct kg_err *err)
{
    KG_TRY(put_head(out, dir, r, err));
    KG_TRY(kg_str_printf(out, err, "%-11s %14s %14s %14s %14s %14s\n", "", "value",
                         "|gradient|", "variance", "cos objective", "cos exact KL"));
    for (int i = 0; i < KG_REPLAY_PARTS; i++) {
        const struct kg_replay_row *row = &r->row[i];

        KG_TRY(kg_str_printf(out, err, "%-11s",
                             kg_replay_part_name((enum kg_replay_part)i)));
        KG_TRY(put_cell(out, row->value, row->there, err));
        KG_TRY(put_cell(out, row->norm, row->there, err));
        KG_TRY(put_cell(out, row->variance, row->there && r->groups > 1, err));
        KG_TRY(put_cell(out, row->to_objective, row->there, err));
        KG_TRY(put_cell(out, row->cosine, row->there, err));
        KG_TRY(kg_str_putc(out, '\n', err));
    }
    return put_bias(out, r, err);
}

int kg_cmd_replay(int argc, char **argv)
{
    struct kg_str out = {0};
    struct kg_replay r;
    struct kg_err err;
    char *end;

    if (argc < 2)
        return kg_cli_usage("expected RUN and STEP");
    long long step = strtoll(argv[1], &end, 10);
    if (*end != '\0' || end == argv[1] || step < 1)
        return kg_cli_usage("expected a step from 1 on, found '%s'", argv[1]);
    kg_status status = kg_replay_run(&r, argv[0], step, argv + 2, (size_t)argc - 2, &err);
    if (status == KG_OK)
        status = json ? put_json(&out, &r, &err) : put_table(&out, argv[0], &r, &err);
    return kg_cli_exit(kg_cli_print(status, &out, &err), &err);
}
