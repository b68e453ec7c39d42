/* Opens a second checkpoint, and refuses one whose ids have other meanings.
 *
 * A KL between models with different vocabularies is a finite number without meaning, and
 * no metric would show it. So the tokenizers are compared id by id, as bytes, before any
 * log-prob is.
 */
#include "train/open/open.h"

static kg_status check_vocabulary(const struct kg_model *other, const char *dir,
                                  const char *key, const struct kg_model *m,
                                  const struct kg_tokenizer *tok, struct kg_err *err)
{
    struct kg_tokenizer *theirs;

    if (other->config.vocab != m->config.vocab)
        return kg_fail(
            err, KG_ECONFLICT,
            "%s: %s: expected the model's vocabulary of %lld tokens, found %lld", key,
            dir, (long long)m->config.vocab, (long long)other->config.vocab);
    if (kg_tokenizer_open(&theirs, dir, err) != KG_OK)
        return kg_err_prefix(err, "%s", key);
    kg_status status = kg_tokenizer_compare(tok, theirs, dir, err);
    kg_tokenizer_close(theirs);
    return status == KG_OK ? KG_OK : kg_err_prefix(err, "%s", key);
}

kg_status kg_reference_open(struct kg_model **out, const char *dir, const char *key,
                            const struct kg_model *m, const struct kg_tokenizer *tok,
                            const struct kg_model_opts *opts, struct kg_err *err)
{
    struct kg_model_opts own = *opts;
    struct kg_model *other;

    own.backend = m->backend;
    own.ct = m->ct;
    if (kg_model_open(&other, dir, &own, err) != KG_OK)
        return kg_err_prefix(err, "%s", key);
    kg_status status = check_vocabulary(other, dir, key, m, tok, err);
    if (status != KG_OK) {
        kg_model_free(other);
        return status;
    }
    *out = other;
    return KG_OK;
}

kg_status kg_run_reference_open(struct kg_run_inputs *in,
                                const struct kg_run_state *state, struct kg_err *err)
{
    const char *path = in->recipe.eval.reference;

    if (!*path)
        return KG_OK;
    return kg_reference_open(&in->reference, path, "eval.reference", state->model,
                             in->tok, &(struct kg_model_opts){.whose = "reference's "},
                             err);
}

kg_status kg_run_reference_outline(struct kg_run_inputs *in, const struct kg_model *m,
                                   struct kg_err *err)
{
    const char *path = in->recipe.eval.reference;
    const struct kg_model_opts opts = {.backend = m->backend, .ct = m->ct};
    struct kg_model_config config;

    if (!*path)
        return KG_OK;
    if (kg_model_config_open(&config, path, &in->recipe.model.ignore, err) != KG_OK)
        return kg_err_prefix(err, "eval.reference");
    return kg_model_outline(&in->reference, &config, &opts, err);
}
