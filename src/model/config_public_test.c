/* config.json of 90 public models: each is read as transformers 5.24 reads it, or refused
 * with a reason, and a small model of random weights with its settings is saved and
 * opened again. tests/data/configs/README.md has the sources. */
#include "data/jsonl.h"
#include "model/model_testing.h"

#define CONFIGS "tests/data/configs/"

struct row {
    const struct kg_json *config, *read;
    const char *name, *refused, *passed;
    const char *ignore; /* field without which the row is read */
};

/* ---- a row ---- */

static const char *text_of(const struct kg_json *row, const char *key)
{
    return kg_json_text(kg_json_get(row, key), NULL);
}

static kg_status open_config(struct kg_model_config *c, const struct row *r,
                             const char *ignore, struct kg_err *why)
{
    const struct kg_opt_list list = {&ignore, ignore != NULL};
    struct kg_str text = {0};
    char dir[128];
    test_dir(dir, "public");
    NEED(kg_json_put_value(&text, r->config, err));
    NEED(kg_file_write_atomic(kg_path_in(dir, "config.json").text, text.data, text.len,
                              err));
    const kg_status status = kg_model_config_open(c, dir, &list, why);
    test_dir_remove(dir);
    kg_str_release(&text);
    return status;
}

static void same_as_read(const struct kg_model_config *c, const struct row *r)
{
    const struct kg_json *read = r->read;
    int windows = 0;
    for (int32_t l = 0; l < c->layers; l++)
        windows += c->layer[l] & KG_LAYER_WINDOW;
    if (c->rope_theta != kg_json_real(kg_json_get(read, "rope_theta"), -1) ||
        strcmp(kg_rope_name(c->rope), text_of(read, "rope_type")) != 0 ||
        c->kv_heads != kg_json_int(kg_json_get(read, "kv_heads"), -1) ||
        c->head_dim != kg_json_int(kg_json_get(read, "head_dim"), -1) ||
        c->norm_eps != (float)kg_json_real(kg_json_get(read, "eps"), -1) ||
        c->tied != kg_json_bool(kg_json_get(read, "tied"), !c->tied))
        fail_msg("%s: theta %g, rope %s, %d heads of keys of %d, eps %g, tied %d",
                 r->name, c->rope_theta, kg_rope_name(c->rope), c->kv_heads, c->head_dim,
                 (double)c->norm_eps, c->tied);
    /* transformers reports no windows for classes without layer_types */
    if (c->arch->reads & KG_READS_LAYER_TYPES &&
        windows != kg_json_int(kg_json_get(read, "windows"), -1))
        fail_msg("%s: %d layers have a window", r->name, windows);
}

/* Written together with the file's other fields and read again, the config is the
 * same. */
static void written_as_read(const struct kg_model_config *c, const struct row *r)
{
    struct kg_model_config again;
    struct kg_str text = {0};
    NEED(kg_model_config_write(&text, c, "float32", r->config, err));
    NEED(kg_model_config_parse(&again, text.data, text.len, r->name, err));
    assert_memory_equal(c, &again, offsetof(struct kg_model_config, dtype_name));
    assert_string_equal(c->passed, again.passed);
    kg_str_release(&text);
}

/* Saves and opens a model of two narrow layers of this config, with random weights. */
static void loads_with_random_weights(struct kg_model_config c)
{
    const struct kg_model_opts opts = {.ct = KG_F32, .trainable = true};
    struct kg_model *m = NULL, *again = NULL;
    char dir[128];
    c.vocab = 48;
    c.heads = c.kv_heads = 2;
    c.hidden = 2 * c.head_dim;
    c.ffn = 16;
    c.layers = 2;
    c.n_eos = 0;
    c.bos = -1;
    if (c.experts.n)
        c.experts = (struct kg_experts_config){
            4, 2, 16, c.experts.shared_ffn ? 16 : 0, c.experts.normalise, 1, {0}};
    test_dir(dir, "random");
    NEED(kg_model_create(&m, &c, &opts, 7, err));
    NEED(kg_model_save(m, dir, &(struct kg_model_save){.dtype = KG_F32}, err));
    NEED(kg_model_open(&again, dir, &opts, err));
    assert_memory_equal(again->master.data, m->master.data,
                        (size_t)m->n_elements * sizeof(float));
    kg_model_free(m);
    kg_model_free(again);
    test_dir_remove(dir);
}

static void check_row(const struct row *r, bool loads)
{
    struct kg_model_config c;
    struct kg_err why = {0};
    if (r->refused && (open_config(&c, r, NULL, &why) != KG_EUNSUPPORTED ||
                       !strstr(why.message, r->refused)))
        fail_msg("%s: expected %s, found %s", r->name, r->refused, why.message);
    if (!r->read)
        return;
    if (open_config(&c, r, r->ignore, &why) != KG_OK)
        fail_msg("%s: %s", r->name, why.message);
    assert_string_equal(c.passed, r->passed ? r->passed : "");
    same_as_read(&c, r);
    written_as_read(&c, r);
    if (loads)
        loads_with_random_weights(c);
}

static int check_file(const char *path, bool loads)
{
    struct kg_json_doc doc = {0};
    struct kg_jsonl *lines;
    bool more = true;
    int n = 0;
    NEED(kg_jsonl_open(&lines, path, err));
    for (;; n++) {
        NEED(kg_jsonl_next(lines, &doc, &more, err));
        if (!more)
            break;
        const struct kg_json *row = doc.root;
        const struct row r = {kg_json_get(row, "config"), kg_json_get(row, "read"),
                              text_of(row, "name"),       text_of(row, "refused"),
                              text_of(row, "passed"),     text_of(row, "ignore")};
        check_row(&r, loads);
    }
    kg_json_release(&doc);
    kg_jsonl_close(lines);
    return n;
}

static void public_models_are_read_or_refused_with_a_reason(void **state)
{
    (void)state;
    assert_int_equal(check_file(CONFIGS "public.jsonl", true), 92);
}

/* Writers of the new layout omit the type of the rope, or everything but sizes. */
static void what_is_left_out_is_the_class_default(void **state)
{
    (void)state;
    assert_int_equal(check_file(CONFIGS "untyped.jsonl", false), 84);
}

int main(void)
{
    kg_threads_set(1); /* models of a few hundred values */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(public_models_are_read_or_refused_with_a_reason),
        cmocka_unit_test(what_is_left_out_is_the_class_default),
    };
    return RUN_SHOWN(tests, NULL, NULL);
}
