/* Shared by the readers of config.json: the file, and typed values of its fields.
 *
 * Internal to src/model. Errors name the file, the field and its value: EFORMAT, EINVAL,
 * EUNSUPPORTED.
 */
#ifndef KG_MODEL_CONFIG_INTERNAL_H
#define KG_MODEL_CONFIG_INTERNAL_H

#include "base/option.h"
#include "data/json.h"
#include "model/config.h"

enum { KG_MAX_WIDTH = 1 << 20, KG_MAX_POSITIONS = 1 << 27 };

struct kg_config_reader {
    struct kg_model_config *c;
    const struct kg_json_doc *doc;
    const struct kg_json *root;
    const struct kg_opt_list *ignore; /* fields that the user declared unused; or NULL */
    struct kg_err *err;
};

/* Fails with EUNSUPPORTED, "<file>: key is <value>, expected <expected>" */
kg_status kg_config_refuse(const struct kg_config_reader *r, const char *key,
                           const struct kg_json *value, const char *expected);
bool kg_config_is_text(const struct kg_json *value, const char *text);
/* An integer from 1 to max. A field that is absent or null takes the fallback; with
 * fallback 0 the field is required. */
kg_status kg_config_size(const struct kg_config_reader *r, const char *key, int64_t max,
                         int32_t fallback, int32_t *out) KG_MUST_CHECK;
/* A positive finite number in `object`, with a fallback as in kg_config_size. */
kg_status kg_config_real(const struct kg_config_reader *r, const struct kg_json *object,
                         const char *key, double fallback, double *out) KG_MUST_CHECK;
kg_status kg_config_bool(const struct kg_config_reader *r, const char *key, bool fallback,
                         bool *out) KG_MUST_CHECK;

/* Checks every field against its rule. An unknown field is ignored if r->ignore has it,
 * else refused or added to c->passed. */
kg_status kg_config_check_fields(const struct kg_config_reader *r) KG_MUST_CHECK;
bool kg_config_ignores(const struct kg_config_reader *r, const char *key);

/* Each reads the fields named at the top of its file; class and sizes must already be
 * read. */
kg_status kg_config_layers(const struct kg_config_reader *r) KG_MUST_CHECK;
/* Whether the class needs use_sliding_window for its window. */
bool kg_config_has_switch(const struct kg_arch *arch);
kg_status kg_config_experts(const struct kg_config_reader *r) KG_MUST_CHECK;
kg_status kg_config_rope(const struct kg_config_reader *r) KG_MUST_CHECK;

/* files.c: sets c->tied from the weight files in dir, if there are any. */
kg_status kg_config_settle_head(struct kg_model_config *c, const char *dir,
                                struct kg_err *err) KG_MUST_CHECK;

/* Default attention_factor of longrope, from c's factor and original positions: sqrt(1 +
 * log factor / log original) */
double kg_longrope_attention(const struct kg_model_config *c);

#endif
