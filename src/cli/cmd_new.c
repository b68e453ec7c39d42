/* kedge new: a randomly initialised checkpoint in HuggingFace's layout.
 *
 * The configuration is written as config.json and read back before anything else, so the
 * checks of opening already refuse an invalid one here. The result is written to a
 * temporary folder next to DIR and renamed at the end: DIR is complete or absent.
 */
#include "cli/cli.h"
#include "cli/load.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DOCUMENTS = 1 << 24 };
static const uint64_t MAX_TEXT_BYTES = (uint64_t)1 << 30;

static const char *arch = "qwen2";
static const char *tokenizer_dir;
static const char *train_file;
static const char *dtype = "bf16";
static int64_t vocab;
static int64_t hidden = 256;
static int64_t ffn;
static int64_t layers = 4;
static int64_t heads;
static int64_t kv_heads;
static int64_t head_dim;
static int64_t max_positions = 2048;
static int64_t seed;
static double rope_theta = 10000;
static bool tied = true;

const struct kg_flag kg_new_flags[] = {
    {"arch", 0, KG_TO(arch), "NAME",
     "a model_type that `kedge inspect` reads, such as qwen2 (default), llama or gemma2"},
    {"tokenizer", 0, KG_IF("--train-tokenizer=", tokenizer_dir), KG_MODEL_ARG,
     "copy the tokenizer's files from this folder"},
    {"train-tokenizer", 0, KG_TO(train_file), "FILE",
     "train a byte-level BPE of --vocab ids on this text"},
    {"vocab", 0, KG_TO(vocab), "N", "vocabulary (default: the size of the tokenizer)", 1,
     INT_MAX},
    {"hidden", 0, KG_TO(hidden), "N", "model width (default 256)", 1, 1 << 20},
    {"ffn", 0, KG_TO(ffn), "N",
     "feed-forward width (default: 8/3 of hidden, rounded up to a multiple of 64)", 1,
     1 << 24},
    {"layers", 0, KG_TO(layers), "N", "layers (default 4)", 1, 4096},
    {"heads", 0, KG_TO(heads), "N", "attention heads (default: hidden / 64, at least 1)",
     1, 4096},
    {"kv-heads", 0, KG_TO(kv_heads), "N", "key and value heads (default: heads)", 1,
     4096},
    {"head-dim", 0, KG_TO(head_dim), "N", "width of a head (default: hidden / heads)", 2,
     KG_MAX_HEAD_DIM},
    {"max-positions", 0, KG_TO(max_positions), "N", "longest sequence (default 2048)", 2,
     INT_MAX / 2},
    {"rope-theta", 0, KG_TO(rope_theta), "X",
     "base of the rotary embedding (default 10000)", 1, 1e12},
    {"tie", 0, KG_IF("--no-tie=", tied), NULL,
     "tied: the head is the embedding (default)"},
    {"no-tie", 0, KG_CLEARS(tied), NULL, "untied: the head has its own weights"},
    {"seed", 0, KG_TO(seed), "S", "seed of the weights (default 0)", 0, 1e18},
    {"dtype", 0, KG_TO(dtype), "TYPE", "dtype of the file: bf16 or fp32 (default bf16)",
     0, 0, "bf16|fp32"},
    {0},
};

/* ---- the tokenizer ---- */

struct documents {
    struct kg_str bytes; /* texts, each with a NUL at its end */
    size_t *at;          /* (n) */
    size_t n;
    size_t capacity;
};

static kg_status add_document(struct documents *d, const char *text, size_t n,
                              struct kg_err *err)
{
    if (memchr(text, 0, n))
        return kg_fail(err, KG_EFORMAT, "%s: document %zu has a NUL byte", train_file,
                       d->n + 1);
    KG_TRY(kg_mem_grow(&d->at, &d->capacity, d->n + 1, sizeof *d->at, MAX_DOCUMENTS,
                       "documents", err));
    d->at[d->n++] = d->bytes.len;
    KG_TRY(kg_str_append(&d->bytes, text, n, err));
    return kg_str_putc(&d->bytes, 0, err);
}

static kg_status read_jsonl(struct documents *d, struct kg_err *err)
{
    struct kg_jsonl *in = NULL;
    struct kg_json_doc doc = {0};
    bool more = true;
    kg_status status = kg_jsonl_open(&in, train_file, err);
    while (status == KG_OK) {
        const struct kg_json *v;
        size_t n;
        KG_TRY_GOTO(out, kg_jsonl_next(in, &doc, &more, err));
        if (!more)
            break;
        KG_TRY_GOTO(out, kg_json_need(&v, &doc, doc.root, "text", KG_JSON_STRING, err));
        const char *text = kg_json_text(v, &n);
        KG_TRY_GOTO(out, add_document(d, text, n, err));
    }
out:
    kg_json_release(&doc);
    kg_jsonl_close(in);
    return status;
}

static kg_status read_lines(struct documents *d, struct kg_err *err)
{
    struct kg_str file = {0};
    kg_status status = kg_file_read_stream(&file, train_file, MAX_TEXT_BYTES, err);
    const char *p = kg_str_text(&file);
    const char *end = p + file.len;
    while (status == KG_OK && p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((eol ? eol : end) - p);
        if (n > 0)
            status = add_document(d, p, n, err);
        p += n + 1;
    }
    kg_str_release(&file);
    return status;
}

static bool ends_in(const char *text, const char *tail)
{
    size_t n = strlen(text);
    size_t m = strlen(tail);
    return n >= m && strcmp(text + n - m, tail) == 0;
}

static kg_status train_on(const struct documents *d, const char *dir, struct kg_err *err)
{
    const char *specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    struct kg_bpe_train opts = {
        .vocab_size = (int32_t)vocab, .specials = specials, .n_specials = 3};
    if (d->n == 0)
        return kg_fail(err, KG_EFORMAT, "%s: expected text to train on, found none",
                       train_file);
    const char **texts = kg_mem_calloc(d->n, sizeof *texts, "documents", err);
    if (texts == NULL)
        return err->code;
    for (size_t i = 0; i < d->n; i++)
        texts[i] = d->bytes.data + d->at[i];
    kg_status status = kg_bpe_train_write(dir, texts, d->n, &opts, err);
    kg_mem_free(texts);
    return status;
}

static kg_status train_tokenizer(const char *dir, struct kg_err *err)
{
    struct documents d = {0};
    kg_status status = KG_OK;
    KG_TRY_GOTO(out, ends_in(train_file, ".jsonl") ? read_jsonl(&d, err)
                                                   : read_lines(&d, err));
    KG_TRY_GOTO(out, kg_file_make_dirs(dir, err));
    status = train_on(&d, dir, err);
out:
    kg_str_release(&d.bytes);
    kg_mem_free(d.at);
    return status;
}

/* Sets the vocabulary size and the end token from the tokenizer in dir. */
static kg_status take_from_tokenizer(struct kg_model_config *c, const char *dir,
                                     struct kg_err *err)
{
    struct kg_tokenizer *tok = NULL;
    KG_TRY(kg_tokenizer_open(&tok, dir, err));
    int32_t ids = kg_tokenizer_vocab_size(tok);
    int32_t eos = kg_tokenizer_eos(tok);
    kg_tokenizer_close(tok);
    c->vocab = vocab > 0 ? (int32_t)vocab : ids;
    if (c->vocab < ids)
        return kg_fail(err, KG_EINVAL,
                       "--vocab: expected at least the %d ids of the tokenizer, found %d",
                       ids, c->vocab);
    if (eos >= 0) {
        c->eos[0] = eos;
        c->n_eos = 1;
    }
    return KG_OK;
}

/* ---- the model ---- */

static int32_t default_ffn(void) { return (int32_t)((hidden * 8 / 3 + 63) / 64 * 64); }

static int32_t given_or(int64_t given, int64_t otherwise)
{
    return (int32_t)(given > 0 ? given : otherwise);
}

static kg_status fill_config(struct kg_model_config *c, struct kg_err *err)
{
    KG_TRY(kg_arch_find(&c->arch, arch, err));
    if (c->arch->features & KG_EXPERTS)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "--arch: expected a model without experts (their sizes have no "
                       "flags), found %s",
                       arch);
    c->vocab = (int32_t)vocab;
    c->hidden = (int32_t)hidden;
    c->ffn = given_or(ffn, default_ffn());
    c->layers = (int32_t)layers;
    c->heads = given_or(heads, hidden / 64 > 0 ? hidden / 64 : 1);
    c->kv_heads = given_or(kv_heads, c->heads);
    c->head_dim = given_or(head_dim, hidden / c->heads);
    c->max_positions = (int32_t)max_positions;
    c->norm_eps = 1e-6f;
    c->rope_theta = rope_theta;
    c->tied = tied;
    KG_TRY(kg_model_config_usual(c, err));
    c->init_range = 0.02f;
    c->bos = -1;
    if (head_dim > 0 && !(c->arch->reads & KG_READS_HEAD_DIM) &&
        head_dim * c->heads != hidden)
        return kg_fail(
            err, KG_EINVAL,
            "--head-dim: %s has no head width of its own: expected hidden / heads = %d, "
            "found %lld",
            arch, (int)(hidden / c->heads), (long long)head_dim);
    return KG_OK;
}

/* Reads the written config.json of c back, so invalid sizes are refused as when a folder
 * is opened. */
static kg_status check_config(struct kg_model_config *c, struct kg_err *err)
{
    struct kg_str text = {0};
    struct kg_model_config read = {0};
    kg_status status = kg_model_config_write(&text, c, "float32", NULL, err);
    if (status == KG_OK)
        status = kg_model_config_parse(&read, text.data, text.len, "config", err);
    kg_str_release(&text);
    return status;
}

static kg_status save_model(const struct kg_model_config *c, const char *to,
                            const char *sidecars, struct kg_err *err)
{
    struct kg_model *m = NULL;
    struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model_save save = {.source_dir = sidecars};
    KG_TRY(kg_dtype_parse(&save.dtype, dtype, err));
    KG_TRY(kg_model_create(&m, c, &opts, (uint64_t)seed, err));
    kg_status status = kg_model_save(m, to, &save, err);
    if (status == KG_OK)
        kg_log_info("%s with %lld parameters", c->arch->class_name,
                    (long long)m->n_elements);
    if (status == KG_OK && c->n_eos == 0)
        kg_log_warn("no end token (the tokenizer has none): completions only end at "
                    "their token limit");
    kg_model_free(m);
    return status;
}

/* ---- the folder ---- */

static kg_status check_target(const char *dir, struct kg_err *err)
{
    char **names = NULL;
    size_t n = 0;
    if (!kg_file_exists(dir))
        return KG_OK;
    if (!kg_file_is_dir(dir))
        return kg_fail(err, KG_ECONFLICT, "%s: expected a folder, found a file", dir);
    KG_TRY(kg_file_list(&names, &n, dir, err));
    kg_file_names_free(names, n);
    if (n > 0)
        return kg_fail(err, KG_ECONFLICT,
                       "%s: expected an absent or empty folder, found %zu files", dir, n);
    return KG_OK;
}

/* Writes model and tokenizer into `work`, then renames it to dir. */
static kg_status make(const char *dir, const char *work, const char *trained,
                      struct kg_err *err)
{
    struct kg_model_config c = {0};
    const char *sidecars = train_file ? trained : tokenizer_dir;
    KG_TRY(fill_config(&c, err));
    if (train_file)
        KG_TRY(train_tokenizer(trained, err));
    if (sidecars)
        KG_TRY(take_from_tokenizer(&c, sidecars, err));
    KG_TRY(check_config(&c, err));
    KG_TRY(save_model(&c, work, sidecars, err));
    return kg_file_rename_dir(work, dir, err);
}

static size_t trimmed_length(const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    return n;
}

static kg_status make_in_place(const char *dir, struct kg_err *err)
{
    struct kg_str target = {0};
    struct kg_str work = {0};
    struct kg_str trained = {0};
    struct kg_err ignored;
    kg_status status = KG_OK;
    KG_TRY_GOTO(out, kg_str_append(&target, dir, trimmed_length(dir), err));
    KG_TRY_GOTO(out,
                kg_str_printf(&work, err, "%s.new-%ld", target.data, (long)getpid()));
    KG_TRY_GOTO(out, kg_str_printf(&trained, err, "%s.tokenizer-%ld", target.data,
                                   (long)getpid()));
    KG_TRY_GOTO(out, check_target(target.data, err));
    status = make(target.data, work.data, trained.data, err);
    if (train_file && kg_file_remove_tree(trained.data, &ignored) != KG_OK)
        kg_log_warn("%s", ignored.message);
    if (status != KG_OK && kg_file_remove_tree(work.data, &ignored) != KG_OK)
        kg_log_warn("%s", ignored.message);
out:
    kg_str_release(&target);
    kg_str_release(&work);
    kg_str_release(&trained);
    return status;
}

int kg_cmd_new(int argc, char **argv)
{
    struct kg_err err;
    if (argc != 1)
        return kg_cli_usage("expected DIR, the folder to write");
    if (vocab == 0 && tokenizer_dir == NULL)
        return kg_cli_usage("expected --vocab N or --tokenizer DIR");
    return kg_cli_exit(make_in_place(argv[0], &err), &err);
}
