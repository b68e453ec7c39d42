/* Reading the algorithm out of a config. */
#include "train/algo.h"

#include "base/log.h"
#include "rollout/rollout.h"

#include <string.h>

bool kg_config_truncates(const struct kg_config *config)
{
    return kg_config_real(config, "rollout.top_p") < 1 ||
           kg_config_int(config, "rollout.top_k") > 0 ||
           kg_config_real(config, "rollout.min_p") > 0;
}

static bool off_policy(const struct kg_config *c)
{
    return kg_config_int(c, "train.updates_per_step") > 1 ||
           kg_config_int(c, "rollout.lag") > 0 ||
           strcmp(kg_config_text(c, "rollout.dtype"), "same") != 0;
}

kg_status kg_algo_from_config(struct kg_algo *algo, const struct kg_config *config,
                              int64_t vocab, struct kg_err *err)
{
    struct kg_algo_setting setting = {
        .vocab = vocab,
        .samples = kg_config_int(config, "rollout.samples"),
        .off_policy = off_policy(config),
        .truncated_sampling = kg_config_truncates(config),
        .max_top_k = KG_MAX_KEPT,
        .reproduction = kg_config_bool(config, "algo.reproduction"),
    };

    kg_algo_init(algo);
    for (size_t i = 0; i < kg_algo_n_keys(); i++)
        KG_TRY(kg_algo_set(algo, kg_algo_key(i), kg_config_text(config, kg_algo_key(i)),
                           err));
    if (algo->length_norm <= 0)
        algo->length_norm = (double)kg_config_int(config, "rollout.max_tokens");
    if (algo->kl_top_k >= vocab && kg_algo_width(algo) > 0) {
        kg_log_info(
            "kl.top_k %d covers the vocabulary of %lld: the Top-k KL is the exact KL",
            algo->kl_top_k, (long long)vocab);
        algo->kl_top_k = (int)vocab; /* every id is recorded, the tail is empty */
    }
    return kg_algo_check(algo, &setting, err);
}
