/* Tensors of a GGUF file under transformers' names.
 *
 * Names are a table; the first row that matches applies. Three things differ in
 * llama.cpp: rows of queries and keys of its first architectures are in the order of rope
 * with adjacent pairs; Gemma's norms have 1 added; the experts of a layer are one tensor.
 */
#include "data/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARED "mlp.shared_expert"

static const struct {
    const char *name;  /* "blk.N.NAME.weight" or "NAME.weight" in GGUF */
    const char *here;  /* "model.layers.N.HERE.weight"; %d: number of the expert */
    const char *archs; /* GGUF architectures; NULL: all */
} NAMES[] = {
    {"token_embd", "model.embed_tokens", NULL},
    {"output_norm", "model.norm", NULL},
    {"output", "lm_head", NULL},
    {"attn_norm", "input_layernorm", NULL},
    {"post_attention_norm", "post_attention_layernorm", "gemma2 gemma3 olmo2"},
    {"ffn_norm", "pre_feedforward_layernorm", "gemma2 gemma3"},
    {"ffn_norm", "post_attention_layernorm", NULL},
    {"post_ffw_norm", "post_feedforward_layernorm", NULL},
    {"attn_q", "self_attn.q_proj", NULL},
    {"attn_k", "self_attn.k_proj", NULL},
    {"attn_v", "self_attn.v_proj", NULL},
    {"attn_qkv", "self_attn.qkv_proj", NULL},
    {"attn_output", "self_attn.o_proj", NULL},
    {"attn_q_norm", "self_attn.q_norm", NULL},
    {"attn_k_norm", "self_attn.k_norm", NULL},
    {"ffn_up", "mlp.gate_up_proj", "phi3"},
    {"ffn_gate", "mlp.gate_proj", NULL},
    {"ffn_up", "mlp.up_proj", NULL},
    {"ffn_down", "mlp.down_proj", NULL},
    {"ffn_gate_inp", "block_sparse_moe.gate", "llama"},
    {"ffn_gate_exps", "block_sparse_moe.experts.%d.w1", "llama"},
    {"ffn_down_exps", "block_sparse_moe.experts.%d.w2", "llama"},
    {"ffn_up_exps", "block_sparse_moe.experts.%d.w3", "llama"},
    {"ffn_gate_inp", "mlp.gate", NULL},
    {"ffn_gate_exps", "mlp.experts.%d.gate_proj", NULL},
    {"ffn_down_exps", "mlp.experts.%d.down_proj", NULL},
    {"ffn_up_exps", "mlp.experts.%d.up_proj", NULL},
    {"ffn_gate_inp_shexp", SHARED "_gate", NULL},
    {"ffn_gate_shexp", SHARED ".gate_proj", NULL},
    {"ffn_up_shexp", SHARED ".up_proj", NULL},
    {"ffn_down_shexp", SHARED ".down_proj", NULL},
};

/* Tensors that config.json holds as fields. */
const char *const kg_gguf_rope_names[3] = {
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"};

struct parts {
    long layer; /* -1: a tensor outside the layers */
    char name[KG_GGUF_NAME + 1];
    const char *end; /* ".weight", borrowed from the tensor's name; "": none */
};

static void split_name(struct parts *p, const char *name)
{
    char *end;

    p->layer = -1;
    if (strncmp(name, "blk.", 4) == 0 && name[4] >= '0' && name[4] <= '9') {
        p->layer = strtol(name + 4, &end, 10);
        name = *end == '.' ? end + 1 : end;
    }
    p->end = strrchr(name, '.');
    p->end = p->end ? p->end : name + strlen(name);
    snprintf(p->name, sizeof p->name, "%.*s", (int)(p->end - name), name);
}

/* returns NULL if no row has the name */
static const char *name_here(const char *name, const struct kg_gguf_arch *arch)
{
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (strcmp(NAMES[i].name, name) == 0 && kg_gguf_names(NAMES[i].archs, arch->name))
            return NAMES[i].here;
    return NULL;
}

struct adder {
    struct kg_st_set *set;
    const struct kg_gguf_arch *arch;
    int32_t head;
    struct kg_err *err;
};

static kg_status put(const struct adder *a, struct kg_st_tensor *t, const struct parts *p,
                     const char *here, int expert)
{
    char name[3 * KG_GGUF_NAME], own[2 * KG_GGUF_NAME];
    const char *each = strstr(here, "%d");

    if (each)
        snprintf(own, sizeof own, "%.*s%d%s", (int)(each - here), here, expert, each + 2);
    else
        snprintf(own, sizeof own, "%s", here);
    if (p->layer < 0)
        snprintf(name, sizeof name, "%s%s", own, p->end);
    else
        snprintf(name, sizeof name, "model.layers.%ld.%s%s", p->layer, own, p->end);
    t->name = name;
    return kg_st_add(a->set, t, a->err);
}

/* Splits a tensor of three dimensions into one matrix per expert. */
static kg_status put_experts(const struct adder *a, struct kg_st_tensor t,
                             const struct parts *p, const char *here)
{
    const int64_t n = t.shape[0];

    if (t.n_dims != 3)
        return kg_fail(a->err, KG_ESHAPE,
                       "%s: tensor blk.%ld.%s: expected 3 dimensions, found %d", t.file,
                       p->layer, p->name, t.n_dims);
    t.n_dims = 2;
    t.shape[0] = t.shape[1];
    t.shape[1] = t.shape[2];
    t.bytes /= (uint64_t)n;
    for (int64_t i = 0; i < n; i++) {
        KG_TRY(put(a, &t, p, here, (int)i));
        t.data += t.bytes;
    }
    return KG_OK;
}

static bool is_norm(const char *name)
{
    const size_t n = strlen(name);

    return n >= 4 && strcmp(name + n - 4, "norm") == 0;
}

static kg_status add(const struct adder *a, const struct kg_gguf_tensor *from,
                     const char *file)
{
    struct kg_st_tensor t = {.dtype = from->type->name,
                             .n_dims = from->n_dims,
                             .bytes = from->bytes,
                             .data = from->data,
                             .file = file,
                             .block = from->type->widen ? from->type : NULL};
    const bool turned = a->arch->flags & KG_GGUF_PAIRED;
    struct parts p;

    for (size_t i = 0; i < 3; i++)
        if (strcmp(from->name, kg_gguf_rope_names[i]) == 0)
            return KG_OK;
    memcpy(t.shape, from->shape, (size_t)from->n_dims * sizeof *t.shape);
    split_name(&p, from->name);
    const char *here = name_here(p.name, a->arch);
    if (turned && (strcmp(p.name, "attn_q") == 0 || strcmp(p.name, "attn_k") == 0))
        t.paired = a->head;
    if ((a->arch->flags & KG_GGUF_NORM_1) && is_norm(p.name))
        t.added = 1;
    if (here && strcmp(here, SHARED "_gate") == 0 && t.n_dims == 1) {
        t.n_dims = 2; /* one row */
        t.shape[1] = t.shape[0];
        t.shape[0] = 1;
    }
    if (here && strstr(here, "%d"))
        return put_experts(a, t, &p, here);
    t.name = from->name;
    return here ? put(a, &t, &p, here, 0) : kg_st_add(a->set, &t, a->err);
}

/* One pass suffices, because g->tensors is in the order of the files. */
static kg_status add_all(struct adder *a, struct kg_gguf *g)
{
    size_t i = 0;

    for (size_t f = 0; f < g->n_files; f++) {
        const char *where, *path = g->files[f].path;

        KG_TRY(kg_st_take_file(a->set, &where, &g->files[f].map, path, a->err));
        for (; i < g->n_tensors && g->tensors[i].file == path; i++)
            KG_TRY(add(a, &g->tensors[i], where));
    }
    return kg_st_end(a->set, a->err);
}

kg_status kg_gguf_tensors(struct kg_st_set **set, const char *path, struct kg_err *err)
{
    struct adder a = {.err = err};
    struct kg_gguf g;
    kg_status status;

    *set = NULL;
    KG_TRY(kg_gguf_open(&g, path, err));
    KG_TRY_GOTO(out, kg_gguf_find_arch(&a.arch, &g, err));
    a.head = (int32_t)kg_gguf_head_dim(&g, a.arch);
    KG_TRY_GOTO(out, kg_st_begin(&a.set, g.n_files, err));
    KG_TRY_GOTO(out, add_all(&a, &g));
    *set = a.set;
    a.set = NULL;
out:
    kg_st_close(a.set);
    kg_gguf_close(&g);
    return status;
}

/* ---- from transformers to GGUF ---- */

/* Whether a row names this tensor of a layer, such as "mlp.experts.7.up_proj". */
static bool is_row(const char *here, const char *name, size_t n)
{
    const char *each = strstr(here, "%d");
    const size_t front = each ? (size_t)(each - here) : strlen(here);
    size_t digits = 0;

    if (n < front || strncmp(here, name, front) != 0)
        return false;
    if (!each)
        return n == front;
    digits = strspn(name + front, "0123456789");
    return digits > 0 && n == front + digits + strlen(each + 2) &&
           strncmp(name + front + digits, each + 2, strlen(each + 2)) == 0;
}

kg_status kg_gguf_name_of(char to[KG_GGUF_NAME + 1], const char *name,
                          const struct kg_gguf_arch *arch, struct kg_err *err)
{
    static const char layers[] = "model.layers.";
    const bool layer = strncmp(name, layers, sizeof layers - 1) == 0;
    const long l = layer ? strtol(name + sizeof layers - 1, NULL, 10) : -1;
    const char *own = layer ? strchr(name + sizeof layers - 1, '.') : NULL;
    const char *end = strrchr(name, '.');

    own = own ? own + 1 : name;
    for (size_t i = 0; end && i < sizeof NAMES / sizeof *NAMES; i++) {
        const char *read_as = name_here(NAMES[i].name, arch);

        if (!read_as || strcmp(read_as, NAMES[i].here) != 0 ||
            !is_row(NAMES[i].here, own, (size_t)(end - own)))
            continue;
        if (layer)
            snprintf(to, KG_GGUF_NAME + 1, "blk.%ld.%s%s", l, NAMES[i].name, end);
        else
            snprintf(to, KG_GGUF_NAME + 1, "%s%s", NAMES[i].name, end);
        return KG_OK;
    }
    return kg_fail(
        err, KG_EUNSUPPORTED,
        "tensor %s: expected a tensor that GGUF has a name for in models of type %s",
        name, arch->name);
}

/* ---- files ---- */

static const struct {
    const char *file;
    kg_status (*put)(struct kg_str *out, const struct kg_gguf *g, struct kg_err *err);
} FILES[] = {
    {"config.json", kg_gguf_config},
    {"tokenizer.json", kg_gguf_tokenizer_json},
    {"tokenizer.model", kg_gguf_tokenizer_model},
    {"tokenizer_config.json", kg_gguf_tokenizer_config},
};

kg_status kg_gguf_read(struct kg_str *out, const char *path, const char *file,
                       struct kg_err *err)
{
    const size_t n = sizeof FILES / sizeof *FILES;
    struct kg_gguf g;
    size_t i = 0;

    while (i < n && strcmp(FILES[i].file, file) != 0)
        i++;
    if (i == n)
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected a file that kedge derives from GGUF, found %s", path,
                       file);
    KG_TRY(kg_gguf_open(&g, path, err));
    kg_status status = FILES[i].put(out, &g, err);
    kg_gguf_close(&g);
    return status;
}
