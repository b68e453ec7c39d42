/* What the readers of config.json share: the file that is read, and values of its fields.
 *
 * Not a contract: nothing outside src/model includes it. Errors name the file, the field
 * and its value: EFORMAT, EINVAL, UNSUPPORTED.
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
    const struct kg_opt_list *ignore; /* fields without effect, by the user; or NULL */
    struct kg_err *err;
};

/* "<file>: key is <value>, expected <expected>", UNSUPPORTED */
kg_status kg_config_refuse(const struct kg_config_reader *r, const char *key,
                           const struct kg_json *value, const char *expected);
bool kg_config_is_text(const struct kg_json *value, const char *text);
/* A number from 1 to max. A field that is absent or null takes the fallback; a fallback
 * of 0 demands the field. */
kg_status kg_config_size(const struct kg_config_reader *r, const char *key, int64_t max,
                         int32_t fallback, int32_t *out) KG_MUST_CHECK;
/* A positive finite number of `object`, with a fallback as above. */
kg_status kg_config_real(const struct kg_config_reader *r, const struct kg_json *object,
                         const char *key, double fallback, double *out) KG_MUST_CHECK;
kg_status kg_config_bool(const struct kg_config_reader *r, const char *key, bool fallback,
                         bool *out) KG_MUST_CHECK;

/* Every field has a value that its rule allows; what is in no table is ignored by the
 * user's word, refused, or noted in c->passed. */
kg_status kg_config_check_fields(const struct kg_config_reader *r) KG_MUST_CHECK;
bool kg_config_ignores(const struct kg_config_reader *r, const char *key);

/* Each reads what its file says it does, of a family and sizes that are read. */
kg_status kg_config_layers(const struct kg_config_reader *r) KG_MUST_CHECK;
/* Whether the class has a window only with use_sliding_window. */
bool kg_config_has_switch(const struct kg_arch *arch);
kg_status kg_config_experts(const struct kg_config_reader *r) KG_MUST_CHECK;
kg_status kg_config_rope(const struct kg_config_reader *r) KG_MUST_CHECK;

/* files.c: c->tied as the weights of dir say, where there are any. */
kg_status kg_config_settle_head(struct kg_model_config *c, const char *dir,
                                struct kg_err *err) KG_MUST_CHECK;

/* attention_factor of longrope where the file has none, of c's factor and original
 * positions: sqrt(1 + log factor / log original) */
double kg_longrope_attention(const struct kg_model_config *c);

#endif
