/* kedge generate: prompts to completions.
 *
 * All input is read and checked before anything is computed, so a malformed line costs no
 * work and leaves no output. A completion is printed as soon as all earlier ones are, in
 * the order of the input.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/signal.h"
#include "rollout/rollout.h"
#include "text/prompt.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PROMPTS = 1 << 24 };

static bool jsonl;
static bool json;
static bool logprobs;
static bool ignore_eos;
static bool parse_special = true;
static bool add_special = true;
static bool served;
static struct kg_sampling sampled = {.temperature = 1, KG_TRUNCATION_OFF};
static int64_t max_tokens = 256;
static int64_t max_batch = KG_GENERATE_BATCH;
static int64_t prefill_chunk = 512;
static int64_t n_samples = 1;
static int64_t seed;
static struct kg_flag_list stops;

const struct kg_flag kg_generate_flags[] = {
    KG_FLAGS_OF(kg_model_flags),
    KG_FLAGS_OF(kg_ignore_flags),
    {"jsonl", 0, KG_TO(jsonl), NULL, "read prompts from stdin, one JSON object per line"},
    {"json", 0, KG_IF("--jsonl=", json), NULL, "print JSON lines for a PROMPT too"},
    {"logprobs", 0, KG_TO(logprobs), NULL,
     "print each new token's log-prob (implies --json)"},
    {"max-tokens", 0, KG_TO(max_tokens), "N",
     "largest number of new tokens (default 256)", 1, INT_MAX / 2},
    KG_TEMPERATURE_FLAG(1, sampled),
    KG_TRUNCATION_FLAGS(sampled),
    {"n", 'n', KG_TO(n_samples), "N", "completions per prompt (default 1)", 1, 1 << 20},
    {"seed", 0, KG_TO(seed), "S",
     "seed of sampling; completions depend only on seed, input and model (default 0)", 0,
     1e18},
    {"served", 0, KG_TO(served), NULL,
     "completion i of every prompt equals that of `kedge serve` for seed + i"},
    {"stop", 0, KG_TO(stops), "STR",
     "end a completion before this text; may be repeated"},
    {"ignore-eos", 0, KG_TO(ignore_eos), NULL, "ignore end tokens: sample to the limit"},
    KG_FLAGS_OF(kg_prompt_flags),
    {"no-parse-special", 0, KG_CLEARS(parse_special), NULL,
     "read special tokens in a prompt as plain text"},
    {"no-add-special", 0, KG_CLEARS(add_special), NULL,
     "do not add the special tokens of the tokenizer's post-processor (BOS)"},
    KG_FLAGS_OF(kg_compute_flags),
    KG_FLAGS_OF(kg_device_flags),
    {"max-batch", 0, KG_TO(max_batch), "N", "sequences computed together (default 32)", 1,
     65536},
    {"prefill-chunk", 0, KG_TO(prefill_chunk), "N",
     "prompt tokens computed together (default 512)", 1, 1 << 20},
    {0},
};

/* One run of the command. */
struct job {
    struct kg_loaded l;
    struct kg_chat_template *chat;
    bool chat_chosen;
    struct kg_ids ids; /* tokens of all prompts, concatenated */
    size_t *from;      /* (n + 1); prompt i has ids[from[i]] to ids[from[i + 1] - 1] */
    size_t from_capacity;
    struct kg_request *requests; /* (n) */
    size_t n;
    struct kg_sampling sampling;
    struct kg_traj *trajs; /* (n_trajs) in the order of the input */
    size_t n_trajs;
    size_t n_printed;
    struct kg_str out;
    struct kg_str text;
    double start; /* of the command, clock seconds */
};

/* ---- input ---- */

/* Encodes as training does, unless flags say otherwise. */
static kg_status encode(struct job *j, const struct kg_str *text, bool rendered,
                        struct kg_err *err)
{
    enum kg_special special = add_special ? KG_SPECIAL_AUTO : KG_SPECIAL_NONE;
    struct kg_encode_opts plain = {.add_special = kg_special_adds(special, rendered)};
    const char *t = kg_str_text(text);

    if (parse_special)
        return kg_prompt_encode(&j->ids, j->l.tok, t, text->len, rendered, special, err);
    return kg_tokenizer_encode(&j->ids, j->l.tok, t, text->len, plain, err);
}

static kg_status add_text(struct job *j, const struct kg_prompt_source *from,
                          const char *where, struct kg_err *err)
{
    struct kg_str text = {0};
    bool rendered;

    if (j->l.tok == NULL)
        return kg_fail(
            err, KG_EINVAL,
            "%s: a prompt of text needs a tokenizer, and %s has none: give \"ids\"",
            where, kg_load.dir);
    kg_status status = kg_prompt_put(&text, &rendered, from, &kg_prompt_how, err);
    if (status == KG_OK)
        status = encode(j, &text, rendered, err);
    kg_str_release(&text);
    return status == KG_OK ? KG_OK : kg_err_prefix(err, "%s", where);
}

/* Ids added since the last prompt become a prompt. */
static kg_status end_prompt(struct job *j, const char *where, struct kg_err *err)
{
    size_t n = j->ids.n - j->from[j->n];
    int32_t limit = j->l.model->config.max_positions;
    if (n == 0)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected a prompt of at least one token, found none", where);
    if (n >= (size_t)limit)
        return kg_fail(err, KG_EINVAL,
                       "%s: a prompt of %zu tokens leaves no room for a completion: the "
                       "model has %d positions",
                       where, n, limit);
    KG_TRY(kg_mem_grow(&j->from, &j->from_capacity, j->n + 2, sizeof *j->from,
                       MAX_PROMPTS, "prompts", err));
    j->from[++j->n] = j->ids.n;
    return KG_OK;
}

/* Opens the template once, at the first input that needs it: plain text needs none, so an
 * invalid template does not matter then. */
static kg_status need_chat(struct job *j, struct kg_err *err)
{
    if (j->chat_chosen)
        return KG_OK;
    j->chat_chosen = true;
    KG_TRY(kg_prompt_choose(&j->chat, &kg_prompt_how,
                            kg_prompt_chat ? kg_prompt_chat : "auto", kg_load.dir, err));
    return kg_prompt_check(&kg_prompt_how, err);
}

/* Only flags set how completions are sampled, so these keys are refused in a line: a user
 * would expect an effect. Other keys are the user's data. */
static bool is_sampling(const char *key)
{
    static const char *const names[] = {
        "max_tokens", "max_completion_tokens", "max_new_tokens", "n", "seed", "stop",
        "ignore_eos"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(key, names[i]) == 0)
            return true;
    return kg_sampling_row(key);
}

static kg_status check_keys(const struct kg_json_doc *doc, struct kg_err *err)
{
    if (kg_json_type(kg_json_get(doc->root, "tools")) == KG_JSON_ARRAY &&
        kg_json_type(kg_json_get(doc->root, "prompt")) != KG_JSON_ARRAY)
        return kg_fail(err, KG_EFORMAT, "%s: tools: expected messages as prompt",
                       doc->where);
    for (size_t i = 0; i < kg_json_size(doc->root); i++) {
        const char *key = kg_json_key_at(doc->root, i);

        if (is_sampling(key) &&
            kg_json_type(kg_json_value_at(doc->root, i)) != KG_JSON_NULL)
            return kg_fail(err, KG_EFORMAT,
                           "%s: %s: expected no such key, because flags set the sampling "
                           "of all lines",
                           doc->where, key);
    }
    return KG_OK;
}

static kg_status add_line(struct job *j, const struct kg_json_doc *doc,
                          struct kg_err *err)
{
    const struct kg_json *prompt = kg_json_get(doc->root, "prompt");
    const struct kg_json *ids = kg_json_get(doc->root, "ids");
    struct kg_prompt_source from = {.tools = kg_json_get(doc->root, "tools")};
    if ((prompt == NULL) == (ids == NULL))
        return kg_fail(err, KG_EFORMAT, "%s: expected \"prompt\" or \"ids\", found %s",
                       doc->where, ids ? "both" : "neither");
    KG_TRY(check_keys(doc, err));
    if (ids) {
        KG_TRY(kg_load_ids(&j->ids, doc, j->l.model->config.vocab, err));
    } else {
        from.messages = kg_json_type(prompt) == KG_JSON_ARRAY ? prompt : NULL;
        if (from.messages)
            KG_TRY(need_chat(j, err));
        else
            KG_TRY(kg_json_need(&prompt, doc, doc->root, "prompt", KG_JSON_STRING, err));
        from.text = kg_json_text(prompt, &from.n);
        KG_TRY(add_text(j, &from, doc->where, err));
    }
    return end_prompt(j, doc->where, err);
}

static kg_status read_lines(struct job *j, struct kg_err *err)
{
    struct kg_jsonl *in = NULL;
    struct kg_json_doc doc = {0};
    bool more = true;
    kg_status status = kg_jsonl_open_stream(&in, stdin, "stdin", err);
    while (status == KG_OK) {
        KG_TRY_GOTO(out, kg_jsonl_next(in, &doc, &more, err));
        if (!more)
            break;
        KG_TRY_GOTO(out, add_line(j, &doc, err));
    }
    if (j->n == 0)
        status = kg_fail(err, KG_EFORMAT,
                         "stdin: expected at least one line, found none");
out:
    kg_json_release(&doc);
    kg_jsonl_close(in);
    return status;
}

static kg_status read_prompts(struct job *j, const char *prompt, struct kg_err *err)
{
    bool named = kg_prompt_chat && strcmp(kg_prompt_chat, "auto") != 0;

    if (named || kg_prompt_how.user_turn || kg_prompt_how.system ||
        kg_prompt_how.opening || kg_prompt_how.date)
        KG_TRY(need_chat(j, err));
    KG_TRY(kg_prompt_check(&kg_prompt_how, err));
    KG_TRY(kg_mem_grow(&j->from, &j->from_capacity, 1, sizeof *j->from, MAX_PROMPTS,
                       "prompts", err));
    if (prompt == NULL)
        return read_lines(j, err);
    KG_TRY(add_text(j, &(struct kg_prompt_source){.text = prompt, .n = strlen(prompt)},
                    "prompt", err));
    return end_prompt(j, "prompt", err);
}

/* ---- plan ---- */

/* A completion ends at the model's last position. */
static int32_t limit_of(const struct job *j, size_t prompt_n)
{
    int64_t room = j->l.model->config.max_positions - (int64_t)prompt_n;
    return (int32_t)(room < max_tokens ? room : max_tokens);
}

static kg_status make_requests(struct job *j, int32_t *longest, struct kg_err *err)
{
    size_t n_short = 0;
    *longest = 2;
    KG_TRY(kg_mem_new(&j->requests, j->n, sizeof *j->requests, "requests", err));
    for (size_t i = 0; i < j->n; i++) {
        size_t n = j->from[i + 1] - j->from[i];
        int32_t limit = limit_of(j, n);
        j->requests[i] = (struct kg_request){.prompt = j->ids.ids + j->from[i],
                                             .prompt_n = n,
                                             .prompt_index = (int64_t)i,
                                             .draw = i,
                                             .n_samples = (int32_t)n_samples,
                                             .max_tokens = limit};
        if (served) {
            j->requests[i].draw = kg_seed_draw((uint64_t)seed);
            j->requests[i].first_sample = kg_seed_sample((uint64_t)seed);
        }
        n_short += limit < max_tokens;
        if ((int32_t)n + limit > *longest)
            *longest = (int32_t)n + limit;
    }
    if (n_short > 0)
        kg_log_warn("%zu of %zu prompts get fewer than %lld new tokens: the model has %d "
                    "positions",
                    n_short, j->n, (long long)max_tokens,
                    j->l.model->config.max_positions);
    j->n_trajs = j->n * (size_t)n_samples;
    return kg_mem_new(&j->trajs, j->n_trajs, sizeof *j->trajs, "completions", err);
}

/* ---- output ---- */

static kg_status put_json(struct kg_str *out, const struct kg_traj *t,
                          const struct kg_str *text, struct kg_err *err)
{
    KG_TRY(kg_str_puts(out, "{\"ids\": ", err));
    KG_TRY(kg_json_put_ints(out, t->tokens + t->prompt_n, t->n - t->prompt_n, err));
    if (logprobs) {
        KG_TRY(kg_str_puts(out, ", \"logprobs\": [", err));
        for (size_t i = t->prompt_n; i < t->n; i++) {
            if (i > t->prompt_n)
                KG_TRY(kg_str_puts(out, ", ", err));
            KG_TRY(kg_json_put_float(out, t->logp[i], err));
        }
        KG_TRY(kg_str_putc(out, ']', err));
    }
    if (text) {
        KG_TRY(kg_str_puts(out, ", \"text\": ", err));
        KG_TRY(kg_json_put_string(out, kg_str_text(text), text->len, err));
    }
    return kg_str_printf(out, err, ", \"finish_reason\": \"%s\"}\n",
                         kg_finish_name(t->finish));
}

static kg_status print_answer(struct job *j, const struct kg_traj *t, struct kg_err *err)
{
    const struct kg_tokenizer *tok = j->l.tok;
    kg_str_clear(&j->text);
    if (tok)
        KG_TRY(kg_rollout_text(&j->text, tok, t, stops.items, stops.n, err));
    if (jsonl || json || logprobs) {
        KG_TRY(put_json(&j->out, t, tok ? &j->text : NULL, err));
    } else {
        KG_TRY(kg_str_append(&j->out, kg_str_text(&j->text), j->text.len, err));
        KG_TRY(kg_str_putc(&j->out, '\n', err));
    }
    return kg_cli_put(&j->out, err);
}

/* Prints completions that are finished, in the order of the input, and frees them. */
static kg_status on_done(void *user, const struct kg_traj *t, struct kg_err *err)
{
    struct job *j = user;
    (void)t;
    while (j->n_printed < j->n_trajs && j->trajs[j->n_printed].finish != KG_FINISH_NONE) {
        KG_TRY(print_answer(j, &j->trajs[j->n_printed], err));
        kg_traj_release(&j->trajs[j->n_printed++]);
    }
    kg_log_progress(10000, "%zu of %zu completions", j->n_printed, j->n_trajs);
    return KG_OK;
}

/* ---- the command ---- */

static void say_speed(const struct kg_rollout_stats *s, size_t n, double startup_ms)
{
    double seconds = s->prefill_seconds + s->decode_seconds;
    kg_log_progress_end();
    kg_log_info("%zu completion%s, %lld prompt and %lld decoded tokens in %.2f s (%.0f "
                "decoded tokens/s), %.0f ms to start",
                n, n == 1 ? "" : "s", (long long)s->prefill_tokens,
                (long long)s->decode_tokens, seconds,
                (double)s->decode_tokens /
                    (s->decode_seconds > 0 ? s->decode_seconds : 1),
                startup_ms);
}

static kg_status generate(struct job *j, struct kg_err *err)
{
    struct kg_rollout *r = NULL;
    int32_t longest;
    KG_TRY(make_requests(j, &longest, err));
    size_t batch = j->n_trajs < (size_t)max_batch ? j->n_trajs : (size_t)max_batch;
    struct kg_rollout_opts opts = {.max_batch = (int32_t)batch,
                                   .prefill_chunk = (int32_t)prefill_chunk,
                                   .max_len = longest,
                                   .stop_on_signal = true};
    KG_TRY(kg_rollout_create(&r, j->l.model, j->l.tok, &opts, err));
    kg_signal_install();
    double ready = kg_clock_seconds();
    kg_status status = kg_rollout_run(r, j->trajs, j->requests, j->n, &j->sampling,
                                      on_done, j, err);
    if (status == KG_OK)
        say_speed(kg_rollout_stats(r), j->n_trajs, 1e3 * (ready - j->start));
    kg_rollout_free(r);
    return status;
}

static struct kg_sampling sampling(void)
{
    const struct kg_rng_key own = {(uint64_t)seed, KG_RNG_SAMPLE};
    struct kg_sampling s = sampled;

    s.max_tokens = (int32_t)max_tokens;
    s.ignore_eos = ignore_eos;
    s.stops = stops.items;
    s.n_stops = stops.n;
    s.rng = served ? kg_seed_key() : own;
    return s;
}

int kg_cmd_generate(int argc, char **argv)
{
    struct job j = {.sampling = sampling(), .start = kg_clock_seconds()};
    struct kg_err err;
    kg_status status = KG_OK;
    if (kg_load.dir == NULL)
        return kg_cli_usage("expected --model DIR");
    if (jsonl == (argc > 0))
        return kg_cli_usage("expected either a PROMPT or --jsonl, found %s",
                            jsonl ? "both" : "neither");
    if (served && kg_seed_sample((uint64_t)seed) + n_samples > KG_SEED_SAMPLES)
        return kg_cli_usage(
            "--served: expected --seed + --n at most the next multiple of %d",
            KG_SEED_SAMPLES);
    KG_TRY_GOTO(out, kg_load_model(&j.l, &kg_load, &err));
    KG_TRY_GOTO(out, read_prompts(&j, argc > 0 ? argv[0] : NULL, &err));
    status = generate(&j, &err);
out:
    for (size_t i = 0; j.trajs && i < j.n_trajs; i++)
        kg_traj_release(&j.trajs[i]);
    kg_mem_free(j.trajs);
    kg_mem_free(j.requests);
    kg_mem_free(j.from);
    kg_ids_release(&j.ids);
    kg_str_release(&j.out);
    kg_str_release(&j.text);
    kg_chat_template_close(j.chat);
    kg_load_release(&j.l);
    return kg_cli_exit(status, &err);
}
