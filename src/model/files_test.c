/* Checkpoints as users have them: the same model with other tensor names, another kind of
 * head, further tensors, other types. Each row expects what transformers 5.24 gives
 * (from_pretrained and the logits of 7 tokens), with two exceptions: it does not know the
 * names that wrappers add, and initialises all weights; and it makes a random head for an
 * untied model that has none. */
#include "model/model_testing.h"

#include "base/log.h"

#define SOURCE "tests/data/reference/qwen2"
#define EMBED  "model.embed_tokens.weight"
#define HEAD   "lm_head.weight"

enum head { NO_HEAD, SAME_HEAD, ROLLED_HEAD, ONLY_HEAD };

struct variant {
    const char *name;
    const char *prefix;    /* added to the name of every tensor */
    const char *cut;       /* removed from every name that begins with it */
    const char *inside[2]; /* in names, [0] is replaced by [1] */
    enum head head;        /* in addition to the embedding, or instead of it */
    const char *dtype;     /* F64: of every tensor; F8_E4M3: of the last norm */
    const char *extra[4];  /* further tensors, of zeros */
    const char *config[2]; /* in config.json, [0] is replaced by [1] */
    const char *refused;   /* text of the error; NULL: accepted */
    const char *says;      /* text of a warning; NULL: no warning */
};

static const struct variant variants[] = {
    {.name = "as it is"},
    {.name = "compiled", .prefix = "_orig_mod."},
    {.name = "distributed", .prefix = "module."},
    {.name = "both", .prefix = "module._orig_mod."},
    {.name = "compiled by layers", .inside = {".self_attn", "._orig_mod.self_attn"}},
    {.name = "fsdp", .inside = {"model.layers", "model._fsdp_wrapped_module.layers"}},
    {.name = "checkpointed", .inside = {".mlp", "._checkpoint_wrapped_module.mlp"}},
    {.name = "trl", .prefix = "pretrained_model."},
    {.name = "without a head's class",
     .cut = "model.",
     .config = {"Qwen2ForCausalLM", "Qwen2Model"}},
    {.name = "value head",
     .extra = {"v_head.summary.weight", "v_head.summary.bias"},
     .says = "tensors without effect on log-probs are ignored: v_head.summary.bias, "
             "v_head.summary.weight (2)"},
    {.name = "wrapped with a value head",
     .prefix = "pretrained_model.",
     .extra = {"v_head.summary.weight"},
     .says = "ignored: v_head.summary.weight"},
    {.name = "reward model",
     .extra = {"score.weight"},
     .config = {"Qwen2ForCausalLM", "Qwen2ForSequenceClassification"},
     .says = "ignored: score.weight"},
    {.name = "further tokens",
     .extra = {"model.mtp_layers.0.input_layernorm.weight", "mtp.fc.weight",
               "model.layers.2.input_layernorm.weight", "model.layers.2.eh_proj.weight"},
     .config = {"\"num_hidden_layers\": 2",
                "\"num_hidden_layers\": 2, \"num_nextn_predict_layers\": 1"},
     .says = "ignored: model.layers.2.*, model.mtp_layers.*.input_layernorm.weight, "
             "mtp.fc.weight"},
    {.name = "frequencies",
     .extra = {"model.layers.0.self_attn.rotary_emb.inv_freq",
               "model.layers.1.self_attn.rotary_emb.inv_freq"},
     .says = "ignored: model.layers.*.self_attn.rotary_emb.inv_freq"},
    {.name = "an embedding twice", .head = SAME_HEAD},
    {.name = "a head that is tied and differs",
     .head = ROLLED_HEAD,
     .says = "tie_word_embeddings is true, but lm_head.weight differs"},
    {.name = "a head of its own",
     .head = ROLLED_HEAD,
     .config = {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"}},
    {.name = "the head alone", .head = ONLY_HEAD},
    {.name = "the head alone, compiled", .head = ONLY_HEAD, .prefix = "_orig_mod."},
    {.name = "no head",
     .config = {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"},
     .refused = "tensor lm_head.weight is missing from the checkpoint, whose config.json "
                "has tie_word_embeddings false"},
    {.name = "double", .dtype = "F64"},
    {.name = "double and compiled", .dtype = "F64", .prefix = "_orig_mod."},
    {.name = "a norm that it has not",
     .extra = {"model.layers.0.self_attn.q_norm.weight"},
     .refused = "tensor model.layers.0.self_attn.q_norm.weight: not a tensor of a qwen2"},
    {.name = "more layers than it says",
     .extra = {"model.layers.2.input_layernorm.weight"},
     .refused = "tensor model.layers.2.input_layernorm.weight: not a tensor of a qwen2"},
    {.name = "another's head",
     .extra = {"output.weight"},
     .refused = "tensor output.weight: not a tensor of a qwen2 model"},
    {.name = "one name twice",
     .extra = {"module." EMBED},
     .refused = "tensor 'model.embed_tokens.weight': expected in one file"},
    {.name = "fp8",
     .dtype = "F8_E4M3",
     .refused = "tensor model.norm.weight: expected dtype BF16, F16, F32 or F64, found "
                "F8_E4M3: quantised weights are not supported"},
};

/* ---- writing one ---- */

struct folder {
    struct kg_st_decl decls[64];
    char names[64][128];
    char *data[64]; /* owned */
    size_t bytes[64];
    size_t n;
};

static void add(struct folder *f, const char *name, const struct kg_st_tensor *like,
                const char *dtype, const void *data)
{
    struct kg_st_decl *d = &f->decls[f->n];
    size_t elements = 1;
    for (int i = 0; i < like->n_dims; i++)
        elements *= (size_t)(d->shape[i] = like->shape[i]);
    snprintf(f->names[f->n], sizeof f->names[0], "%s", name);
    d->name = f->names[f->n];
    d->dtype = dtype;
    d->n_dims = like->n_dims;
    f->bytes[f->n] = elements * (*dtype == 'B' ? 2 : strcmp(dtype, "F64") == 0 ? 8 : 1);
    f->data[f->n] = test_alloc(f->bytes[f->n], 1);
    for (size_t i = 0; data && i < elements; i++) {
        const uint16_t h = ((const uint16_t *)data)[i];
        const double wide = (double)kg_bf16_to_f32(h);
        if (f->bytes[f->n] == 2 * elements)
            memcpy(f->data[f->n] + 2 * i, &h, 2);
        else if (f->bytes[f->n] == 8 * elements)
            memcpy(f->data[f->n] + 8 * i, &wide, 8);
    }
    f->n++;
}

static void name_of(char to[128], const struct variant *v, const char *name)
{
    const char *at = v->inside[0] ? strstr(name, v->inside[0]) : NULL;
    if (v->cut && strncmp(name, v->cut, strlen(v->cut)) == 0)
        name += strlen(v->cut);
    if (at)
        snprintf(to, 128, "%.*s%s%s", (int)(at - name), name, v->inside[1],
                 at + strlen(v->inside[0]));
    else
        snprintf(to, 128, "%s%s", v->prefix ? v->prefix : "", name);
}

/* The embedding with its rows moved up by one; the first row becomes the last. */
static void add_rolled(struct folder *f, const char *name, const struct kg_st_tensor *t)
{
    const size_t row = t->bytes / (size_t)t->shape[0];
    char *rolled = test_alloc(t->bytes, 1);
    memcpy(rolled, t->data + row, t->bytes - row);
    memcpy(rolled + t->bytes - row, t->data, row);
    add(f, name, t, "BF16", rolled);
    kg_mem_free(rolled);
}

static void fill(struct folder *f, const struct variant *v, const struct kg_st_set *set)
{
    const struct kg_st_tensor *norm = kg_st_find(set, "model.norm.weight");
    char name[128];
    for (size_t i = 0; i < kg_st_count(set); i++) {
        const struct kg_st_tensor *t = kg_st_at(set, i);
        const bool embed = strcmp(t->name, EMBED) == 0;
        const bool other = v->dtype && (t == norm || strcmp(v->dtype, "F64") == 0);
        const char *dtype = other ? v->dtype : "BF16";
        name_of(name, v, embed && v->head == ONLY_HEAD ? HEAD : t->name);
        add(f, name, t, dtype, t->data);
        name_of(name, v, HEAD);
        if (embed && v->head == SAME_HEAD)
            add(f, name, t, dtype, t->data);
        if (embed && v->head == ROLLED_HEAD)
            add_rolled(f, name, t);
    }
    for (int i = 0; i < 4 && v->extra[i]; i++)
        add(f, v->extra[i], norm, "BF16", NULL);
}

static void write_config(const char *dir, const struct variant *v)
{
    struct kg_str text = {0}, out = {0};
    NEED(kg_file_read(&text, SOURCE "/config.json", 1 << 20, err));
    const char *at = v->config[0] ? strstr(kg_str_text(&text), v->config[0]) : NULL;
    assert_true(!v->config[0] || at);
    const size_t before = at ? (size_t)(at - text.data) : text.len;
    NEED(kg_str_append(&out, text.data, before, err));
    if (at)
        NEED(kg_str_printf(&out, err, "%s%s", v->config[1], at + strlen(v->config[0])));
    NEED(kg_file_write_atomic(kg_path_in(dir, "config.json").text, out.data, out.len,
                              err));
    kg_str_release(&text);
    kg_str_release(&out);
}

static void write_folder(const char *dir, const struct variant *v)
{
    struct kg_st_set *set;
    struct kg_st_writer *w;
    struct folder *f = test_alloc(1, sizeof *f);
    NEED(kg_st_open_dir(&set, SOURCE, err));
    fill(f, v, set);
    NEED(kg_st_writer_open(&w, kg_path_in(dir, "model.safetensors").text, f->decls, f->n,
                           err));
    for (size_t i = 0; i < f->n; i++) {
        NEED(kg_st_writer_put(w, i, 0, f->data[i], f->bytes[i], err));
        kg_mem_free(f->data[i]);
    }
    NEED(kg_st_writer_close(w, err));
    kg_st_close(set);
    kg_mem_free(f);
    write_config(dir, v);
}

/* ---- reading it ---- */

static void same_weights(const struct variant *v, const struct kg_model *m,
                         const struct kg_model *source)
{
    const bool rolled = v->head == ROLLED_HEAD;
    const float *embed = source->embed->master, *head = m->head->master;
    const size_t cols = (size_t)m->embed->cols, n = (size_t)m->embed->rows * cols;
    assert_int_equal(m->config.tied, !rolled);
    assert_int_equal(m->n_params, source->n_params + rolled);
    for (size_t i = 0; i < source->n_params; i++)
        assert_memory_equal(m->params[i].master, source->params[i].master,
                            (size_t)(m->params[i].rows * m->params[i].cols) *
                                sizeof(float));
    if (rolled) {
        assert_memory_equal(head, embed + cols, (n - cols) * sizeof *head);
        assert_memory_equal(head + n - cols, embed, cols * sizeof *head);
    }
}

static void check(const struct variant *v, const struct kg_model *source, FILE *said)
{
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model *m = NULL;
    struct kg_err why;
    char dir[128], line[1024] = "";
    test_dir(dir, "as-people-have-them");
    write_folder(dir, v);
    rewind(said);
    assert_int_equal(ftruncate(fileno(said), 0), 0);
    const kg_status status = kg_model_open(&m, dir, &opts, &why);
    rewind(said);
    line[fread(line, 1, sizeof line - 1, said)] = '\0';
    if ((status != KG_OK) != (v->refused != NULL) ||
        (v->refused && !strstr(why.message, v->refused)))
        fail_msg("%s: status %d: %s", v->name, status, status ? why.message : "");
    if (v->says ? !strstr(line, v->says) : *line != '\0')
        fail_msg("%s: said '%s'", v->name, line);
    if (m)
        same_weights(v, m, source);
    kg_model_free(m);
    test_dir_remove(dir);
}

static void checkpoints_are_read_as_people_have_them(void **state)
{
    struct kg_model *source = test_open(SOURCE, KG_F32, true);
    FILE *said = tmpfile();
    (void)state;
    assert_non_null(said);
    kg_log_set_stream(said, false);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        check(&variants[i], source, said);
    kg_log_set_stream(NULL, false);
    fclose(said);
    kg_model_free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_are_read_as_people_have_them),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
