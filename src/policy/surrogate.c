/* The table of policy-gradient terms, and the plain ones: ratios to the old policy,
 * clipped or not.
 *
 * Every function returns the value of the loss term and its derivative with respect to
 * the sampled token's log-prob. What the published loss detaches is a number here.
 * Trust-region masks are in surrogate_mask.c, whole-sequence ratios in surrogate_seq.c,
 * the RPG family in surrogate_rpg.c.
 */
#include "base/real.h"
#include "policy/policy_internal.h"

#include <math.h>

/* The log-ratio clamped to +- algo.ratio_clamp.   *inside: the gradient passes */
double kg_pg_log_ratio(double log_ratio, const struct kg_algo *algo, bool *inside)
{
    double limit = algo->ratio_clamp;

    *inside = !(limit > 0) || fabs(log_ratio) <= limit;
    if (*inside)
        return log_ratio;
    return log_ratio > 0 ? limit : -limit;
}

static double clip(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* value = max(-A r, -A clip(r, 1-lo, 1+hi)), then min with -A c where A < 0;  dvalue/dlog
 * r = -A r on the first branch and 0 on the others, which are constants. */
void kg_pg_dual_clip(struct kg_pg_out *out, double ratio, bool inside, double advantage,
                     const struct kg_algo *algo)
{
    double plain = -advantage * ratio;
    double bound = -advantage * clip(ratio, 1 - algo->clip_low, 1 + algo->clip_high);

    out->ratio = ratio;
    out->value = fmax(plain, bound);
    out->coef = inside ? plain : 0;
    if (bound > plain) {
        out->coef = 0;
        out->clip = advantage > 0 ? KG_CLIP_HIGH : KG_CLIP_LOW;
        out->clips = 1;
    }
    if (algo->dual_clip > 0 && advantage < 0 &&
        out->value > -advantage * algo->dual_clip) {
        out->value = -advantage * algo->dual_clip;
        out->coef = 0;
        out->clip = KG_CLIP_DUAL;
        out->clips_lower = 1;
    }
}

static void pg_ppo_clip(struct kg_pg_out *out, const struct kg_pg_in *in,
                        struct kg_pg_call call)
{
    bool inside;
    double r = kg_exp(kg_pg_log_ratio(in->logp - in->old, call.algo, &inside));

    kg_pg_dual_clip(out, r, inside, in->advantage, call.algo);
}

/* No policy term; the ratio is for metrics. */
void kg_pg_none(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call)
{
    (void)call;
    out->ratio = kg_exp(in->logp - in->old);
}

/* -A log p: the ratio is 1 by definition. */
static void pg_reinforce(struct kg_pg_out *out, const struct kg_pg_in *in,
                         struct kg_pg_call call)
{
    (void)call;
    out->ratio = kg_exp(in->logp - in->old);
    out->value = -in->advantage * in->logp;
    out->coef = -in->advantage;
}

/* -A r, unclipped */
static void pg_importance(struct kg_pg_out *out, const struct kg_pg_in *in,
                          struct kg_pg_call call)
{
    bool inside;
    double r = kg_exp(kg_pg_log_ratio(in->logp - in->old, call.algo, &inside));

    out->ratio = r;
    out->value = -in->advantage * r;
    out->coef = inside ? out->value : 0;
}

/* -sg(clip(r)) A log p: no token loses its gradient. */
static void pg_cispo(struct kg_pg_out *out, const struct kg_pg_in *in,
                     struct kg_pg_call call)
{
    const struct kg_algo *algo = call.algo;
    bool inside;
    double r = kg_exp(kg_pg_log_ratio(in->logp - in->old, algo, &inside));
    double bounded = clip(r, 1 - algo->clip_low, 1 + algo->clip_high);

    out->ratio = r;
    out->value = -bounded * in->advantage * in->logp;
    out->coef = -bounded * in->advantage;
    out->clips = bounded != r;
    if (out->clips)
        out->clip = r > bounded ? KG_CLIP_HIGH : KG_CLIP_LOW;
}

/* -A sigmoid(tau (r - 1)) 4 / tau;  d/dlog r = -4 A g (1 - g) r */
static void pg_sapo(struct kg_pg_out *out, const struct kg_pg_in *in,
                    struct kg_pg_call call)
{
    double tau = in->advantage > 0 ? call.algo->tau_pos : call.algo->tau_neg;
    bool inside;
    double r = kg_exp(kg_pg_log_ratio(in->logp - in->old, call.algo, &inside));
    double gate = 1 / (1 + kg_exp(-tau * (r - 1)));

    out->ratio = r;
    out->value = -in->advantage * gate * 4 / tau;
    out->coef = inside ? -4 * in->advantage * gate * (1 - gate) * r : 0;
}

/* -A r, plus cov_coef |log r| for selected tokens */
void kg_pg_kl_cov(struct kg_pg_out *out, const struct kg_pg_in *in,
                  struct kg_pg_call call)
{
    double n = in->logp - in->old, r = kg_exp(n);
    double push = in->selected ? call.algo->cov_coef : 0;

    out->ratio = r;
    out->value = -in->advantage * r + push * fabs(n);
    out->coef = -in->advantage * r + (n > 0 ? push : n < 0 ? -push : 0);
    out->clips = in->selected;
}

/* The clipped term, 0 for selected tokens. */
void kg_pg_clip_cov(struct kg_pg_out *out, const struct kg_pg_in *in,
                    struct kg_pg_call call)
{
    double r = kg_exp(in->logp - in->old);

    kg_pg_dual_clip(out, r, true, in->advantage, call.algo);
    if (in->selected) {
        out->value = out->coef = 0;
        out->clips = 1;
    }
}

/* -A r, 0 for selected tokens */
void kg_pg_m2po(struct kg_pg_out *out, const struct kg_pg_in *in, struct kg_pg_call call)
{
    double r = kg_exp(in->logp - in->old);

    (void)call;
    out->ratio = r;
    out->masked = in->selected;
    out->clips = in->selected;
    out->clips_lower = in->selected && in->advantage < 0;
    out->value = out->coef = in->selected ? 0 : -in->advantage * r;
}

#define GRADIENT KG_UNBIASED_GRADIENT
#define BOTH     (KG_UNBIASED_VALUE | KG_UNBIASED_GRADIENT)
#define MASK_CLAIMS(memory, bounds)                                                      \
    {                                                                                    \
        "c = -A min(r_mu, C) M", KG_TARGET_RETURN, GRADIENT, GRADIENT, 0, memory, bounds \
    }
#define TOKEN  KG_SCOPE_TOKEN
#define PPO    "max(-A r, -A clip(r, 1 - low, 1 + high)); min with -A c where A < 0"
#define MASKED "-A sg(min(r_mu, C)) M log p"
#define DPPO   "Qi et al. 2026, arXiv 2602.04879"
#define CPPO   "Mao et al. 2026, arXiv 2606.10968"
#define M2PO   "Zheng et al. 2025, arXiv 2510.01161"
#define RPG    "Zhang et al. 2025, arXiv 2505.17508"
/* keys that rows read */
#define CLIP     "algo.clip_low algo.clip_high"
#define CLAMP    "algo.ratio_clamp"
#define DUAL     "algo.dual_clip"
#define DELTAS   "algo.delta_low algo.delta_high"
#define TRUNCATE "algo.truncate"
#define PREFIX   "algo.prefix_weight algo.prefix_budget"
/* beta times the negative weight of grad log p in the KL's gradient */
#define C_KG_RPG_FKL          "beta"
#define C_KG_RPG_RKL          "-beta r (log r + 1)"
#define C_KG_RPG_UFKL         "beta (1 - r)"
#define C_KG_RPG_URKL         "-beta r log r"
#define READS_KG_RPG_PAPER    CLIP " " DUAL
#define READS_KG_RPG_HARD     CLIP
#define READS_KG_RPG_CLIP     CLIP " " DUAL
#define READS_KG_RPG_CLIP_V3  CLIP " " DUAL
#define BOUNDS_KG_RPG_PAPER   "r above if A > 0, below if A < 0"
#define BOUNDS_KG_RPG_HARD    "the weight r of a token"
#define BOUNDS_KG_RPG_CLIP    BOUNDS_KG_RPG_PAPER
#define BOUNDS_KG_RPG_CLIP_V3 BOUNDS_KG_RPG_PAPER
/* A score-function row of the RPG family. */
#define RF(name, help, kind_, style_)                                                    \
    {                                                                                    \
        {                                                                                \
            name, help,          "-sg(r A + C) log p, C = " C_##kind_, RPG, TOKEN,       \
            0,    READS_##style_},                                                       \
            .claims = {"c = -(r A + C)", KG_TARGET_RETURN, GRADIENT, GRADIENT, 0,        \
                       "O(1)",           BOUNDS_##style_},                               \
            .token = kg_pg_rpg_reinforce, .kind = (kind_), .style = (style_),            \
            .own_kl = true                                                               \
    }
static const struct kg_surrogate_row rows[] = {
    {{"ppo-clip", "ratio to the old policy, clipped low and high, optional dual clip",
      PPO, "Schulman et al. 2017, arXiv 1707.06347; dual clip: Ye et al. 2019", TOKEN, 0,
      CLIP " " CLAMP " " DUAL},
     .claims = {"c = -A r; 0 where clipped", KG_TARGET_RETURN, BOTH, BOTH, 0, "O(1)",
                "r above if A > 0, below if A < 0"},
     .token = pg_ppo_clip},
    {{"none", "no policy term: distillation, where the KL is the whole loss", "0", "",
      TOKEN, 0, NULL},
     .claims = {"c = 0", KG_TARGET_NONE, 0, 0, 0, "O(1)", ""},
     .token = kg_pg_none},
    {{"reinforce", "plain score function, no ratio", "-A log p", "Williams 1992", TOKEN,
      0, NULL},
     .claims = {"c = -A", KG_TARGET_RETURN, GRADIENT, 0, 0, "O(1)", "nothing"},
     .token = pg_reinforce},
    {{"gpg",
      "reinforce, under the name of the method that pairs it with algo.advantage gpg",
      "-A log p", "Chu et al. 2025, arXiv 2504.02546", TOKEN, 0, NULL},
     .claims = {"c = -A", KG_TARGET_RETURN, GRADIENT, 0, 0, "O(1)", "nothing"},
     .token = pg_reinforce},
    {{"importance", "ratio to the old policy, unclipped", "-A r", "surrogate of TRPO",
      TOKEN, 0, CLAMP},
     .claims = {"c = -A r", KG_TARGET_RETURN, BOTH, BOTH, 0, "O(1)", "nothing"},
     .token = pg_importance},
    {{"cispo", "score function weighted by the clipped ratio; no token is dropped",
      "-sg(clip(r, 1 - low, 1 + high)) A log p", "MiniMax 2025, arXiv 2506.13585", TOKEN,
      0, CLIP " " CLAMP},
     .claims = {"c = -A clip(r)", KG_TARGET_RETURN, GRADIENT, GRADIENT, 0, "O(1)",
                "the weight r of a token"},
     .token = pg_cispo},
    {{"sapo", "soft gate instead of a clip", "-A sigmoid(tau (r - 1)) 4 / tau",
      "Gao et al. 2025, arXiv 2511.20347", TOKEN, 0, "algo.tau_pos algo.tau_neg " CLAMP},
     .claims = {"c = -A 4 r g (1 - g), g = sigmoid(tau (r - 1))", KG_TARGET_RETURN,
                GRADIENT, 0, 0, "O(1)", "r, softly"},
     .token = pg_sapo},
    {{"gspo", "ratio of the whole sequence, geometric mean, clipped",
      "max(-A s, -A clip(s)), s = exp(mean_t log r)",
      "Zheng et al. 2025, arXiv 2507.18071", KG_SCOPE_SEQUENCE, 0, CLIP},
     .claims = {"c = -A s; 0 for the whole sequence where clipped", KG_TARGET_RETURN,
                BOTH, 0, 0, "O(1)",
                "geometric mean of r: above if A > 0, below if A < 0"},
     .sequence = kg_pg_gspo},
    {{"gmpo", "geometric mean of token ratios clipped in log space",
      "-A exp(mean_t clip(log r, -low, high))", "Zhao et al. 2025, arXiv 2507.20673",
      KG_SCOPE_SEQUENCE, 0, CLIP " algo.count_eps"},
     .claims = {"c = -A geometric mean; 0 where clipped", KG_TARGET_RETURN, BOTH, 0, 0,
                "O(1)",
                "r of each token inside the mean: above if A > 0, below if A < 0"},
     .sequence = kg_pg_gmpo,
     .own_is = true},
    {{"vespo",
      "score function weighted by a bounded function of the whole sequence's ratio to "
      "the sampler, k and lambda by the sign of the advantage",
      "-sg(phi(W)) A log p, phi(W) = W^k exp(lambda (1 - W)), W = prod_t p/mu",
      "Shen et al. 2026, arXiv 2602.10693", KG_SCOPE_SEQUENCE, 0,
      "algo.vespo_k_pos algo.vespo_k_neg algo.vespo_lambda_pos algo.vespo_lambda_neg"},
     .claims = {"c = -A phi(W), at most |A| (k / (e lambda))^k e^lambda",
                KG_TARGET_RETURN, GRADIENT, 0, 0, "O(1)", "the weight of a sequence"},
     .sequence = kg_pg_vespo,
     .to_mu = true},
    {{"clip-cov",
      "ppo-clip that drops random tokens among those whose covariance of advantage and "
      "log-prob is in a range",
      PPO, "Cui et al. 2025, arXiv 2505.22617", KG_SCOPE_BATCH, KG_NEED_SELECTION,
      CLIP " " DUAL " algo.cov_ratio algo.cov_low algo.cov_high"},
     .claims = {"c = -A r; 0 where clipped or selected", KG_TARGET_RETURN, 0, 0, 0,
                "O(1)", "r above if A > 0, below if A < 0"},
     .token = kg_pg_clip_cov},
    {{"kl-cov", "unclipped ratio; |log r| penalised where the covariance is largest",
      "-A r + 1[selected] coef |log r|", "Cui et al. 2025, arXiv 2505.22617",
      KG_SCOPE_BATCH, KG_NEED_SELECTION, "algo.cov_ratio algo.cov_coef"},
     .claims = {"c = -A r + 1[selected] coef sign(log r)", KG_TARGET_RETURN, BOTH, 0, 0,
                "O(1)", "log r of the selected tokens, softly"},
     .token = kg_pg_kl_cov},
    {{"m2po",
      "ratio to the old policy; drops the tokens that A pushes further from r = 1, the "
      "farthest first, until the mean of (log r)^2 is within the budget",
      "-A r M", M2PO, KG_SCOPE_BATCH, KG_NEED_SELECTION, "algo.m2_budget"},
     .claims = {"c = -A r M", KG_TARGET_RETURN, BOTH, BOTH, 0, "O(1)",
                "the mean of (log r)^2 over the batch's tokens whose r A pushes further "
                "from 1"},
     .token = kg_pg_m2po,
     .kind = KG_M2_PAPER},
    {{"m2po-released",
      "as in the authors' code: the farthest tokens are clipped and still count; tokens "
      "inside 1 - clip_low .. 1 + clip_high are never clipped",
      "-A r M", M2PO ", code", KG_SCOPE_BATCH, KG_NEED_SELECTION, "algo.m2_budget " CLIP},
     .claims = {"c = -A r M", KG_TARGET_RETURN, BOTH, BOTH, 0, "O(1)",
                "the mean of (log r)^2 over the batch's tokens whose r A pushes further "
                "from 1"},
     .token = kg_pg_m2po,
     .kind = KG_M2_RELEASED},

    {{"pg-is", "ratio to the sampler, truncated at C; no mask",
      "-A sg(min(r_mu, C)) log p", DPPO, TOKEN, 0, TRUNCATE},
     .claims = MASK_CLAIMS("O(1)", "the weight r_mu of a token"),
     .token = kg_pg_mask,
     .kind = KG_MASK_NEVER,
     .to_mu = true},
    {{"dppo-binary-tv",
      "masked where |mu - p| exceeds delta and A pushes p further from mu", MASKED, DPPO,
      TOKEN, 0, DELTAS " " TRUNCATE},
     .claims = MASK_CLAIMS("O(1)", "TV(mu, p) of (y, not y)"),
     .token = kg_pg_mask,
     .kind = KG_MASK_BINARY_TV,
     .to_mu = true,
     .divergence = true},
    {{"dppo-binary-kl", "masked where the KL of (y, not y) exceeds delta", MASKED, DPPO,
      TOKEN, 0, DELTAS " " TRUNCATE},
     .claims = MASK_CLAIMS("O(1)", "KL(mu||p) of (y, not y)"),
     .token = kg_pg_mask,
     .kind = KG_MASK_BINARY_KL,
     .to_mu = true,
     .divergence = true},
    {{"dppo-topk-tv",
      "masked where the TV over the sampler's top k, y and the rest exceeds delta",
      MASKED, DPPO, TOKEN, KG_NEED_TOP_SAMPLER | KG_NEED_MU_AT,
      DELTAS " " TRUNCATE " algo.top_k"},
     .claims = MASK_CLAIMS("O(k)", "TV(mu, p) of the top k, y and the rest"),
     .token = kg_pg_mask,
     .kind = KG_MASK_TOPK_TV,
     .to_mu = true,
     .divergence = true},
    {{"dppo-topk-kl",
      "masked where the KL over the sampler's top k, y and the rest exceeds delta",
      MASKED, DPPO, TOKEN, KG_NEED_TOP_SAMPLER | KG_NEED_MU_AT,
      DELTAS " " TRUNCATE " algo.top_k"},
     .claims = MASK_CLAIMS("O(k)", "KL(mu||p) of the top k, y and the rest"),
     .token = kg_pg_mask,
     .kind = KG_MASK_TOPK_KL,
     .to_mu = true,
     .divergence = true},
    {{"dppo-binary-tv-old", "dppo-binary-tv with the region around the old policy",
      MASKED, DPPO, TOKEN, 0, DELTAS " " TRUNCATE},
     .claims = MASK_CLAIMS("O(1)", "TV(old, p) of (y, not y)"),
     .token = kg_pg_mask,
     .kind = KG_MASK_BINARY_TV_OLD,
     .to_mu = true,
     .divergence = true},
    {{"dppo-binary-kl-old", "dppo-binary-kl with the region around the old policy",
      MASKED, DPPO, TOKEN, 0, DELTAS " " TRUNCATE},
     .claims = MASK_CLAIMS("O(1)", "KL(old||p) of (y, not y)"),
     .token = kg_pg_mask,
     .kind = KG_MASK_BINARY_KL_OLD,
     .to_mu = true,
     .divergence = true},
    {{"drpo", "weight that is 0 where A moved p by delta from mu, negative beyond",
      "-A r_mu + |A| mu (r_mu - 1)^2 / (2 delta)", "Yao et al. 2026, arXiv 2606.09821",
      TOKEN, 0, DELTAS},
     .claims = {"c = -A r_mu (1 - sign(A) (p - mu) / delta)", KG_TARGET_RETURN, BOTH, 0,
                0, "O(1)", "TV(mu, p) of (y, not y), softly"},
     .token = kg_pg_drpo,
     .to_mu = true,
     .divergence = true},
    {{"cppo",
      "masked where w |mu - p| exceeds delta minus the earlier excess over "
      "prefix_budget, and A pushes p further away; w falls from 1 to prefix_weight",
      MASKED, CPPO, KG_SCOPE_SEQUENCE, 0, DELTAS " " TRUNCATE " " PREFIX},
     .claims = MASK_CLAIMS("O(1)",
                           "TV(mu, p) of (y, not y), and its mean over every prefix"),
     .sequence = kg_pg_cppo,
     .kind = KG_CPPO_FIXED,
     .to_mu = true,
     .divergence = true},
    {{"cppo-calibrated",
      "cppo with the sequence's 90th percentile of |mu - p| as budget, at least "
      "prefix_budget and at most twice that (for base models, and as released)",
      MASKED, CPPO ", eq. 22, code", KG_SCOPE_SEQUENCE, 0,
      DELTAS " " TRUNCATE " " PREFIX},
     .claims = MASK_CLAIMS("O(1)",
                           "TV(mu, p) of (y, not y), and its mean over every prefix"),
     .sequence = kg_pg_cppo,
     .kind = KG_CPPO_CALIBRATED,
     .to_mu = true,
     .divergence = true},
    {{"ratio-mask", "masked where the ratio to the sampler leaves 1 - low .. 1 + high",
      MASKED, DPPO, TOKEN, 0, CLIP " " TRUNCATE},
     .claims = MASK_CLAIMS("O(1)", "r_mu above if A > 0, below if A < 0"),
     .token = kg_pg_mask,
     .kind = KG_MASK_RATIO_MU,
     .to_mu = true},
    {{"minirl", "ratio-mask tested on the ratio to the old policy", MASKED,
      "Zheng et al. 2025, arXiv 2512.01374", TOKEN, 0, CLIP " " TRUNCATE},
     .claims = MASK_CLAIMS("O(1)", "r above if A > 0, below if A < 0"),
     .token = kg_pg_mask,
     .kind = KG_MASK_RATIO_OLD,
     .to_mu = true},
    {{"ratio-relax-positive",
      "ablation: A > 0 masked at 1.28 only where mu >= delta_high", MASKED, DPPO, TOKEN,
      0, "algo.clip_low algo.delta_high " TRUNCATE},
     .claims = MASK_CLAIMS("O(1)",
                           "r_mu above if A > 0, below if A < 0; not if mu is small"),
     .token = kg_pg_mask,
     .kind = KG_MASK_RELAX_POSITIVE,
     .to_mu = true},
    {{"ratio-relax-negative", "ablation: A < 0 masked at 0.8 only where mu >= delta_low",
      MASKED, DPPO, TOKEN, 0, "algo.clip_high algo.delta_low " TRUNCATE},
     .claims = MASK_CLAIMS("O(1)",
                           "r_mu above if A > 0, below if A < 0; not if mu is small"),
     .token = kg_pg_mask,
     .kind = KG_MASK_RELAX_NEGATIVE,
     .to_mu = true},
    {{"ratio-relax-both",
      "ablation: ratio-relax-positive and ratio-relax-negative together", MASKED, DPPO,
      TOKEN, 0, DELTAS " " TRUNCATE},
     .claims = MASK_CLAIMS("O(1)",
                           "r_mu above if A > 0, below if A < 0; not if mu is small"),
     .token = kg_pg_mask,
     .kind = KG_MASK_RELAX_BOTH,
     .to_mu = true},
    {{"ipo",
      "masked where |mu - p| exceeds delta, for either sign of A; kl.beta times the "
      "squared log-ratio inside the loss",
      "-A r_mu M + beta (log r_mu)^2", "prime-rl, loss type ipo", TOKEN, 0, DELTAS},
     .claims = {"c = -A r_mu M + 2 beta log r_mu", KG_TARGET_RETURN, BOTH, 0, 0, "O(1)",
                "TV(mu, p) of (y, not y) for either sign of A; log r_mu, softly"},
     .token = kg_pg_ipo,
     .to_mu = true,
     .divergence = true,
     .own_kl = true},

    {{"rpg-fkl", "differentiable, clipped; KL(old||p) with kl.beta inside the loss",
      "dualclip(r A) - beta log r", RPG, TOKEN, 0, CLIP " " CLAMP " " DUAL},
     .claims = {"c = -r A - beta; -beta where clipped", KG_TARGET_RETURN, BOTH, BOTH, 0,
                "O(1)", "r above if A > 0, below if A < 0"},
     .token = kg_pg_rpg,
     .kind = KG_RPG_FKL,
     .own_kl = true},
    {{"rpg-ufkl", "differentiable, clipped; unnormalised forward KL inside the loss",
      "dualclip(r A) + beta (r - log r - 1)", RPG, TOKEN, 0, CLIP " " CLAMP " " DUAL},
     .claims = {"c = -r A + beta (r - 1); beta (r - 1) where clipped", KG_TARGET_RETURN,
                BOTH, BOTH, 0, "O(1)", "r above if A > 0, below if A < 0"},
     .token = kg_pg_rpg,
     .kind = KG_RPG_UFKL,
     .own_kl = true},
    {{"rpg-rkl", "differentiable; the clip applies to the advantage minus its KL term",
      "dualclip(r Ahat), Ahat = A - beta (log r + 1), constant if algo.rpg_detach", RPG,
      TOKEN, 0, CLIP " " CLAMP " " DUAL " algo.rpg_detach"},
     .claims = {"c = -r Ahat; 0 where clipped (attached: + beta r)", KG_TARGET_RETURN,
                GRADIENT, GRADIENT, 0, "O(1)", "r above if A > 0, below if A < 0"},
     .token = kg_pg_rpg,
     .kind = KG_RPG_RKL,
     .own_kl = true},
    {{"rpg-urkl", "differentiable; unnormalised reverse KL in the advantage",
      "dualclip(r Ahat), Ahat = A - beta log r, constant if algo.rpg_detach", RPG, TOKEN,
      0, CLIP " " CLAMP " " DUAL " algo.rpg_detach"},
     .claims = {"c = -r Ahat; 0 where clipped (attached: + beta r)", KG_TARGET_RETURN,
                BOTH, BOTH, 0, "O(1)", "r above if A > 0, below if A < 0"},
     .token = kg_pg_rpg,
     .kind = KG_RPG_URKL,
     .own_kl = true},
    RF("rpg-reinforce-fkl", "score function, Algorithm 2's clip, KL(old||p)", KG_RPG_FKL,
       KG_RPG_PAPER),
    RF("rpg-reinforce-rkl", "score function, Algorithm 2's clip, KL(p||old)", KG_RPG_RKL,
       KG_RPG_PAPER),
    RF("rpg-reinforce-ufkl",
       "score function, Algorithm 2's clip, unnormalised forward KL", KG_RPG_UFKL,
       KG_RPG_PAPER),
    RF("rpg-reinforce-urkl",
       "score function, Algorithm 2's clip, unnormalised reverse KL", KG_RPG_URKL,
       KG_RPG_PAPER),
    RF("rpg-rf-fkl", "released code, ratio clamped to the clip range", KG_RPG_FKL,
       KG_RPG_HARD),
    RF("rpg-rf-rkl", "released code, ratio clamped to the clip range", KG_RPG_RKL,
       KG_RPG_HARD),
    RF("rpg-rf-ufkl", "released code, ratio clamped to the clip range", KG_RPG_UFKL,
       KG_RPG_HARD),
    RF("rpg-rf-urkl", "released code, ratio clamped to the clip range", KG_RPG_URKL,
       KG_RPG_HARD),
    RF("rpg-rf-fkl-clip-ppo", "released code, branch on A > 0", KG_RPG_FKL, KG_RPG_CLIP),
    RF("rpg-rf-rkl-clip-ppo", "released code, branch on A > 0", KG_RPG_RKL, KG_RPG_CLIP),
    RF("rpg-rf-ufkl-clip-ppo", "released code, branch on A > 0", KG_RPG_UFKL,
       KG_RPG_CLIP),
    RF("rpg-rf-urkl-clip-ppo", "released code, branch on A > 0", KG_RPG_URKL,
       KG_RPG_CLIP),
    RF("rpg-rf-fkl-clip-ppo-v3", "released code, inverse of Algorithm 2's branch",
       KG_RPG_FKL, KG_RPG_CLIP_V3),
    RF("rpg-rf-rkl-clip-ppo-v3", "released code, inverse of Algorithm 2's branch",
       KG_RPG_RKL, KG_RPG_CLIP_V3),
    RF("rpg-rf-ufkl-clip-ppo-v3", "released code, inverse of Algorithm 2's branch",
       KG_RPG_UFKL, KG_RPG_CLIP_V3),
    RF("rpg-rf-urkl-clip-ppo-v3", "released code, inverse of Algorithm 2's branch",
       KG_RPG_URKL, KG_RPG_CLIP_V3),
};

struct kg_policy_rows kg_surrogate_rows(void)
{
    return (struct kg_policy_rows){rows, KG_COUNT(rows), sizeof rows[0]};
}
