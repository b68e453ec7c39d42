/* kedge embed: texts to vectors, by an encoder.
 *
 * Lines are read into windows, and a window is embedded as one batch; the vectors do not
 * depend on the windows. Before a malformed line is reported, the vectors of the lines
 * before it are printed; but a file of vectors is written completely or not at all.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/signal.h"
#include "data/jsonl.h"
#include "retriever/cli_encoder.h"
#include "retriever/vectors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64 };

static const char *model_dir, *side_name = "text", *npy_path;
static bool plain_lines;

const struct kg_flag kg_embed_flags[] = {
    {"model", 'm', KG_TO(model_dir), KG_MODEL_ARG,
     "folder of the encoder, or ORG/NAME of the hub's cache"},
    {"as", 0, KG_TO(side_name), "SIDE",
     "add the prefix of a query, of a passage, or none (text) (default text)", 0, 0,
     "query|passage|text"},
    {"lines", 0, KG_TO(plain_lines), NULL,
     "each line is plain text instead of {\"text\"}", 0, 0, NULL},
    {"npy", 0, KG_TO(npy_path), "FILE",
     "write vectors as a NumPy matrix (fp32, one row per text) instead of JSON lines"},
    KG_FLAGS_OF(kg_encoder_flags),
    {"device", 0, KG_TO(kg_load.device), "DEVICE",
     "cpu, cuda, cuda:N, or auto: a GPU if one is usable (default: cpu)"},
    {"threads", 0, KG_TO(kg_load.threads), "N", "threads (default: all cores)", 0, 1024},
    {0},
};

struct window {
    struct kg_encoder *encoder;
    struct kg_embedder *embedder;
    enum kg_text_side side;
    struct kg_jsonl *in; /* for JSON lines */
    struct kg_json_doc doc;
    struct kg_str bytes; /* all texts, concatenated */
    size_t ends[WINDOW];
    size_t n;
    int64_t line;   /* of the first text */
    float *vectors; /* (WINDOW, D) owned */
    int32_t dim;
    struct kg_cli_target target;
    struct kg_npy npy;
    struct kg_str out;
};

/* ---- reading ---- */
static kg_status next_json(struct window *w, bool *more, struct kg_err *err)
{
    const struct kg_json *v;
    size_t n;

    KG_TRY(kg_jsonl_next(w->in, &w->doc, more, err));
    if (!*more)
        return KG_OK;
    KG_TRY(kg_json_need(&v, &w->doc, w->doc.root, "text", KG_JSON_STRING, err));
    const char *text = kg_json_text(v, &n);
    return kg_str_append(&w->bytes, text, n, err);
}

static kg_status next_line(struct window *w, bool *more, struct kg_err *err)
{
    char *line = NULL; /* getline's own */
    size_t room = 0;
    const ssize_t n = getline(&line, &room, stdin);
    kg_status status = KG_OK;

    *more = n >= 0;
    if (n < 0 && ferror(stdin))
        status = kg_fail(err, KG_EIO, "stdin: cannot read: %s", strerror(errno));
    else if (n > 0)
        status = kg_str_append(&w->bytes, line, (size_t)n - (line[n - 1] == '\n' ? 1 : 0),
                               err);
    free(line);
    return status;
}

/* On an error, the window holds the lines before the refused one. */
static kg_status read_window(struct window *w, bool *more, struct kg_err *err)
{
    kg_str_clear(&w->bytes);
    w->line += (int64_t)w->n;
    for (w->n = 0; w->n < WINDOW; w->n++) {
        KG_TRY(plain_lines ? next_line(w, more, err) : next_json(w, more, err));
        if (!*more)
            return KG_OK;
        w->ends[w->n] = w->bytes.len;
    }
    return KG_OK;
}

/* ---- answering ---- */
static kg_status put_lines(struct window *w, struct kg_err *err)
{
    for (size_t i = 0; i < w->n; i++) {
        KG_TRY(kg_str_puts(&w->out, "{\"vector\": [", err));
        for (int32_t d = 0; d < w->dim; d++) {
            KG_TRY(kg_str_puts(&w->out, d ? ", " : "", err));
            KG_TRY(kg_json_put_float(&w->out, w->vectors[i * (size_t)w->dim + (size_t)d],
                                     err));
        }
        KG_TRY(kg_str_puts(&w->out, "]}\n", err));
    }
    return kg_cli_put(&w->out, err);
}

static kg_status answer_window(struct window *w, struct kg_err *err)
{
    struct kg_text texts[WINDOW];
    size_t from = 0;

    if (w->n == 0)
        return KG_OK;
    for (size_t i = 0; i < w->n; i++) {
        texts[i] = (struct kg_text){kg_str_text(&w->bytes) + from, w->ends[i] - from};
        from = w->ends[i];
    }
    if (kg_embed(w->vectors, w->embedder, texts, w->n, w->side, err) != KG_OK)
        return kg_err_prefix(err, "stdin: texts from number %lld on",
                             (long long)w->line + 1);
    return npy_path ? kg_npy_put(&w->npy, w->vectors, (int64_t)w->n, err)
                    : put_lines(w, err);
}

static kg_status check_stop(struct kg_err *err)
{
    if (!npy_path || !kg_signal_stop_requested())
        return KG_OK;
    return kg_fail(err, KG_EINTERRUPTED, "%s: stopped by a signal, nothing written",
                   npy_path);
}

static kg_status answer_all(struct window *w, struct kg_err *err)
{
    bool more = true;

    while (more) {
        struct kg_err input_err;
        const kg_status input = read_window(w, &more, &input_err);

        KG_TRY(check_stop(err)); /* first, because a signal also makes a read fail */
        if (npy_path && input != KG_OK) {
            *err = input_err;
            return input;
        }
        KG_TRY(answer_window(w, err));
        if (input != KG_OK) {
            *err = input_err;
            return input;
        }
    }
    return w->line + (int64_t)w->n > 0
               ? KG_OK
               : kg_fail(err, KG_EFORMAT,
                         "stdin: expected at least one line, found none");
}

/* ---- the command ---- */
static kg_status open_window(struct window *w, struct kg_err *err)
{
    struct kg_encoder_info info;

    w->side = strcmp(side_name, "query") == 0     ? KG_TEXT_QUERY
              : strcmp(side_name, "passage") == 0 ? KG_TEXT_PASSAGE
                                                  : KG_TEXT_PLAIN;
    kg_threads_set((int)kg_load.threads);
    KG_TRY(kg_cli_encoder(&w->encoder, model_dir, err));
    KG_TRY(kg_embedder_open(&w->embedder, w->encoder, err));
    kg_encoder_info(&info, w->encoder);
    w->dim = info.dim;
    KG_TRY(kg_mem_new(&w->vectors, WINDOW * (size_t)info.dim, sizeof *w->vectors,
                      "vectors", err));
    if (!plain_lines)
        KG_TRY(kg_jsonl_open_stream(&w->in, stdin, "stdin", err));
    if (!npy_path)
        return KG_OK;
    kg_signal_install_waking();
    KG_TRY(kg_cli_target_open(&w->target, npy_path, err));
    return kg_npy_open(&w->npy, w->target.name.data, info.dim, err);
}

static kg_status run(struct window *w, struct kg_err *err)
{
    /* A prefix has an effect only on texts of its own side. */
    const struct {
        const char *given, *side;
    } prefixes[] = {{kg_encoder_how.query_prefix, "query"},
                    {kg_encoder_how.passage_prefix, "passage"}};

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (prefixes[i].given && strcmp(prefixes[i].side, side_name) != 0)
            return kg_fail(
                err, KG_EINVAL,
                "--%s-prefix: expected it together with --as %s, found --as %s",
                prefixes[i].side, prefixes[i].side, side_name);
    KG_TRY(open_window(w, err));
    KG_TRY(answer_all(w, err));
    if (!npy_path)
        return KG_OK;
    KG_TRY(kg_npy_close(&w->npy, err));
    return kg_cli_target_settle(&w->target, err);
}

int kg_cmd_embed(int argc, char **argv)
{
    struct window w = {0};
    struct kg_err err;

    (void)argc;
    (void)argv;
    if (!model_dir)
        return kg_cli_usage("expected --model DIR");
    kg_status status = run(&w, &err);
    kg_npy_abort(&w.npy);
    kg_cli_target_release(&w.target);
    kg_jsonl_close(w.in);
    kg_json_release(&w.doc);
    kg_str_release(&w.bytes);
    kg_str_release(&w.out);
    kg_mem_free(w.vectors);
    kg_embedder_close(w.embedder);
    kg_encoder_close(w.encoder);
    return kg_cli_exit(status, &err);
}
