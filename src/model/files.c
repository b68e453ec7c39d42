/* A checkpoint's tensors by the names of its architecture. Wrappers of torch
 * (torch.compile, DDP, FSDP) add prefixes to names, and a class without a head omits
 * "model."; both are undone here. Tensors without effect on log-probs are known and
 * ignored: heads for values or labels, layers that predict further tokens, and
 * frequencies that config.json determines. Any other tensor is refused. */
#include "model/config_internal.h"
#include "model/model_internal.h"

#include "base/log.h"
#include "data/source.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HEAD[] = "lm_head.weight", EMBED[] = "model.embed_tokens.weight";

/* ---- names ---- */

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* Length of the wrapper's name, with its dot, at the beginning of `part`; 0: none. */
static size_t wrapper_bytes(const char *part)
{
    static const char *const wrappers[] = {
        "_orig_mod.", "module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.",
        "pretrained_model."};
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        if (begins(part, wrappers[i]))
            return strlen(wrappers[i]);
    return 0;
}

/* A kg_st_rename.   context: bool, whether to name the head as the embedding */
static bool own_name(char to[KG_ST_MAX_NAME], const char *name, void *context)
{
    const bool *head_is_embed = context;
    size_t used = 0;
    for (const char *p = name; *p;) {
        size_t n;
        while ((n = wrapper_bytes(p)) > 0)
            p += n;
        n = strcspn(p, ".");
        n += p[n] == '.';
        memcpy(to + used, p, n);
        used += n;
        p += n;
    }
    to[used] = '\0';
    if (begins(to, "layers.") || begins(to, "embed_tokens.") || begins(to, "norm.")) {
        memmove(to + strlen("model."), to, used + 1);
        memcpy(to, "model.", strlen("model."));
    }
    if (*head_is_embed && strcmp(to, HEAD) == 0)
        memcpy(to, EMBED, sizeof EMBED);
    return strcmp(to, name) != 0;
}

static kg_status open_named(struct kg_st_set **set, bool tied, const char *dir,
                            struct kg_err *err)
{
    char name[KG_ST_MAX_NAME];
    bool head_is_embed = tied, no = false;
    KG_TRY(kg_source_tensors(set, dir, err));
    for (size_t i = 0; i < kg_st_count(*set) && head_is_embed; i++) {
        const char *given = kg_st_at(*set, i)->name;
        if (strlen(given) < sizeof name / 2) {
            own_name(name, given, &no);
            head_is_embed = strcmp(name, EMBED) != 0;
        }
    }
    const kg_status status = kg_st_rename_all(*set, own_name, &head_is_embed, err);
    if (status != KG_OK) {
        kg_st_close(*set);
        *set = NULL;
    }
    return status;
}

kg_status kg_model_open_files(struct kg_st_set **set, const struct kg_model *m,
                              const char *dir, struct kg_err *err)
{
    return open_named(set, m->config.tied, dir, err);
}

/* ---- the head ---- */

static bool same_values(const struct kg_st_tensor *a, const struct kg_st_tensor *b)
{
    return strcmp(a->dtype, b->dtype) == 0 && a->bytes == b->bytes &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

kg_status kg_config_settle_head(struct kg_model_config *c, const char *dir,
                                struct kg_err *err)
{
    struct kg_st_set *set;
    if (!c->tied)
        return KG_OK;
    const kg_status status = open_named(&set, false, dir, err);
    if (status == KG_ENOTFOUND)
        return KG_OK; /* only a config */
    KG_TRY(status);
    const struct kg_st_tensor *head = kg_st_find(set, HEAD);
    const struct kg_st_tensor *embed = kg_st_find(set, EMBED);
    c->tied = !head || !embed || same_values(head, embed);
    kg_st_close(set);
    return KG_OK;
}

/* ---- other tensors ---- */

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), m = strlen(with);
    return n >= m && strcmp(name + n - m, with) == 0;
}

/* returns the number of the tensor's layer, if that is one after the last, which predicts
 * further tokens; else -1 */
static long next_layer(const struct kg_model *m, const char *name)
{
    static const char layer[] = "model.layers.";
    const char *number = name + sizeof layer - 1;
    if (!begins(name, layer) || !isdigit((unsigned char)*number))
        return -1;
    const long l = strtol(number, NULL, 10);
    return l >= m->config.layers && l - m->config.layers < m->config.next_layers ? l : -1;
}

static bool is_without_effect(const struct kg_model *m, const char *name)
{
    static const char *const heads[] = {"v_head.", "value_head.", "score.", "mtp",
                                        "model.mtp"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (begins(name, heads[i]))
            return true;
    return next_layer(m, name) >= 0 || ends(name, "rotary_emb.inv_freq");
}

struct passed {
    char names[256]; /* "a.*.b, c": each pattern once */
    size_t n;
};

/* The name with * for numbers; one pattern for all of a layer after the last. */
static void pattern_of(char *to, size_t bytes, const struct kg_model *m, const char *name)
{
    const long beyond = next_layer(m, name);
    size_t n = 0;
    if (beyond >= 0) {
        snprintf(to, bytes, "model.layers.%ld.*", beyond);
        return;
    }
    for (; *name && n < bytes - 1; n++) {
        const bool number = isdigit((unsigned char)*name) && n > 0 && to[n - 1] == '.';
        to[n] = number ? '*' : *name;
        name += number ? strspn(name, "0123456789") : 1;
    }
    to[n] = '\0';
}

static kg_status pass_others(struct passed *p, const bool *own, const struct kg_model *m,
                             const struct kg_st_set *set, struct kg_err *err)
{
    for (size_t i = 0; i < kg_st_count(set); i++) {
        const struct kg_st_tensor *t = kg_st_at(set, i);
        if (own[i])
            continue;
        if (!is_without_effect(m, t->name))
            return kg_fail(err, KG_EUNSUPPORTED,
                           "%s: tensor %s: not a tensor of a %s model with this "
                           "config.json",
                           t->file, t->name, m->config.arch->model_type);
        char pattern[96];
        const size_t used = strlen(p->names);
        pattern_of(pattern, sizeof pattern, m, t->name);
        if (!strstr(p->names, pattern))
            snprintf(p->names + used, sizeof p->names - used, "%s%s", used ? ", " : "",
                     pattern);
        p->n++;
    }
    return KG_OK;
}

static void say(const struct kg_model *m, const struct passed *p)
{
    if (p->n)
        kg_log_warn("%s: tensors without effect on log-probs are ignored: %s (%zu)",
                    m->dir, p->names, p->n);
    if (m->config.passed[0])
        kg_log_warn("%s/config.json: fields that kedge does not know are ignored: %s",
                    m->dir, m->config.passed);
    if (m->config.tied_said && !m->config.tied)
        kg_log_warn("%s: tie_word_embeddings is true, but %s differs from the embedding: "
                    "both are used, as in transformers",
                    m->dir, HEAD);
}

kg_status kg_model_check_others(const struct kg_model *m, const struct kg_st_set *set,
                                struct kg_err *err)
{
    struct passed passed = {.n = 0};
    bool *own = kg_mem_calloc(kg_st_count(set), sizeof *own, "tensors", err);
    if (!own)
        return KG_ENOMEM;
    /* tensors of parameters, and the head if it equals the embedding */
    const struct kg_st_tensor *first = kg_st_at(set, 0);
    const struct kg_st_tensor *head = m->config.tied ? kg_st_find(set, HEAD) : NULL;
    for (size_t i = 0; i < m->n_base; i++)
        own[kg_st_find(set, m->params[i].name) - first] = true;
    if (head)
        own[head - first] = true;
    const kg_status status = pass_others(&passed, own, m, set, err);
    kg_mem_free(own);
    if (status == KG_OK)
        say(m, &passed);
    return status;
}
