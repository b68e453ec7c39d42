/* KL estimators from one sampled token y ~ p: the value, and c such that the gradient of
 * the term is c grad log p(y).
 *
 * d = log p(y) - log q(y), w = q/p = exp(-d). An unbiased value does not imply an
 * unbiased gradient, because y is sampled from the p that is differentiated:
 *     K1 = d            value unbiased; as a loss, E[grad log p] = 0: no gradient
 *     K2 = d^2 / 2      value biased; as a loss, the gradient of KL(p || q)
 *     K3 = w - 1 + d    value unbiased; as a loss, the gradient of KL(q || p)
 * The exact KL is here too; the vocabulary head supplies its value. The top-k estimators
 * are in kl_topk.c.
 */
#include "base/real.h"
#include "policy/policy_internal.h"

#include <math.h>

enum { LOG_W_MAX = 20, VALUE_MAX = 10 }; /* the published clamps */

enum sampled { K1, K2, K3, K3PP, K4, K5, ABS };
enum ratio_kind { FKL, RKL, UFKL, URKL, JEFFREYS, JEFFREYS_RELEASED };

static void none(struct kg_kl_out *out, const struct kg_kl_in *in,
                 const struct kg_kl_row *row, const struct kg_algo *algo)
{
    (void)out, (void)in, (void)row, (void)algo;
}

/* w - log w - 1 >= 0, with the published clamps: log w to +-20, the value to +-10.
 * slope: dvalue/dlogp = 1 - w, 0 where a clamp is active. */
static double k3_value(double *slope, double d, bool clamp)
{
    double value;

    if (!clamp || fabs(d) <= LOG_W_MAX) {
        value = kg_expm1(-d) + d;
        *slope = -kg_expm1(-d);
    } else {
        double x = d > 0 ? -LOG_W_MAX : LOG_W_MAX;

        value = kg_expm1(x) - x;
        *slope = 0;
    }
    if (clamp && value > VALUE_MAX) {
        value = VALUE_MAX;
        *slope = 0;
    }
    return value;
}

/* sg(w) log w + log r, where log r = 0: the value w log w, dvalue/dlogp = 1 - w. */
static double k5_value(double *slope, double d, bool clamp)
{
    double x = -d;

    *slope = -kg_expm1(x);
    if (clamp && fabs(d) > LOG_W_MAX) {
        x = d > 0 ? -LOG_W_MAX : LOG_W_MAX;
        *slope = 1;
    }
    return kg_exp(x) * x;
}

static void sampled(struct kg_kl_out *out, const struct kg_kl_in *in,
                    const struct kg_kl_row *row, const struct kg_algo *algo)
{
    double d = in->d, slope;

    switch ((enum sampled)row->kind) {
    case K1:
        out->value = d, out->coef = 1;
        break;
    case K2:
        out->value = d * d / 2, out->coef = d;
        break;
    case K3:
        out->value = k3_value(&out->coef, d, algo->kl_clamp);
        break;
    case K3PP:
        /* value r with r = p / sg(p): the product rule adds the value to k3's slope */
        out->value = k3_value(&slope, d, algo->kl_clamp);
        out->coef = algo->kl_clamp ? slope + out->value : d;
        break;
    case K4:
        out->value = d, out->coef = d;
        break;
    case K5:
        out->value = k5_value(&out->coef, d, algo->kl_clamp);
        break;
    case ABS:
        out->value = fabs(d), out->coef = d > 0 ? 1 : d < 0 ? -1 : 0;
        break;
    }
    out->value *= in->s;
    out->coef *= in->s;
}

static void clamp_value(struct kg_kl_out *out, const struct kg_algo *algo)
{
    if (!algo->kl_clamp || fabs(out->value) <= VALUE_MAX)
        return;
    out->value = out->value > 0 ? VALUE_MAX : -VALUE_MAX;
    out->coef = 0;
}

/* Estimators of the RPG code, u = p/q at tokens sampled from q. All but fkl clamp the
 * value to +-10. */
static void ratio(struct kg_kl_out *out, const struct kg_kl_in *in,
                  const struct kg_kl_row *row, const struct kg_algo *algo)
{
    double d = in->d, u = kg_exp(d);

    switch ((enum ratio_kind)row->kind) {
    case FKL:
        out->value = -d, out->coef = -1;
        return;
    case RKL:
        out->value = u * d, out->coef = u * (d + 1);
        break;
    case UFKL:
        out->value = kg_expm1(d) - d, out->coef = kg_expm1(d);
        break;
    case URKL:
        out->value = u * (d - 1) + 1, out->coef = u * d;
        break;
    case JEFFREYS:
        out->value = (u * d - d) / 2, out->coef = (u * (d + 1) - 1) / 2;
        break;
    case JEFFREYS_RELEASED:
        out->value = (u * d + d) / 2, out->coef = (u * (d + 1) + 1) / 2;
        break;
    }
    clamp_value(out, algo);
}

/* Weights of grad log p in the gradients of four KLs, for rewards; clamped to +-10. */
static void reward(struct kg_kl_out *out, const struct kg_kl_in *in,
                   const struct kg_kl_row *row, const struct kg_algo *algo)
{
    double d = in->d, u = kg_exp(d);

    switch ((enum ratio_kind)row->kind) {
    case FKL:
        out->value = -1, out->coef = 0;
        break;
    case RKL:
        out->value = u * (d + 1), out->coef = u * (d + 2);
        break;
    case UFKL:
        out->value = kg_expm1(d), out->coef = u;
        break;
    default:
        out->value = u * d, out->coef = u * (d + 1);
    }
    clamp_value(out, algo);
}

static void exact(struct kg_kl_out *out, const struct kg_kl_in *in,
                  const struct kg_kl_row *row, const struct kg_algo *algo)
{
    (void)row, (void)algo;
    out->value = in->exact;
    out->exact = 1;
}

#define VALUE    KG_UNBIASED_VALUE
#define GRADIENT KG_UNBIASED_GRADIENT
#define BOTH     (KG_UNBIASED_VALUE | KG_UNBIASED_GRADIENT)
#define TOKEN    KG_SCOPE_TOKEN
#define EMA      "Zhang & Ba 2026, arXiv 2602.04417"
#define SCHULMAN "Schulman 2020, Approximating KL divergence"
#define RPG      "Zhang et al. 2025, arXiv 2505.17508"
#define BUCKET   "arXiv 2601.19897; OpenClaw-RL, whose rest is at least 1e-7"
/* limits of kl.clamp, for the plan */
#define CLAMP_TAIL  "log w of the tail within +-20"
#define CLAMP_LOG   "log w within +-20"
#define CLAMP_BOTH  CLAMP_LOG ", the value below 10"
#define CLAMP_VALUE "the value within +-10"
static const struct kg_kl_row rows[] = {
    {{"none", "no KL term", "0", "", TOKEN, 0, NULL}, .token = none},
    {{"k1", "log-ratio; as a loss its expected gradient is zero on-policy", "d", SCHULMAN,
      TOKEN, KG_NEED_ANCHOR | KG_NEED_ON_POLICY_OR_IW, NULL},
     .claims = {"c = s", KG_TARGET_REVERSE, VALUE, VALUE, 0, "O(1)"},
     .token = sampled,
     .kind = K1,
     .weighted = true},
    {{"k2", "half squared log-ratio; gradient of the reverse KL", "d^2 / 2", SCHULMAN,
      TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = s d", KG_TARGET_REVERSE, GRADIENT, GRADIENT, 0, "O(1)"},
     .token = sampled,
     .kind = K2,
     .weighted = true},
    {{"k3", "low-variance value of the reverse KL, gradient of the forward KL",
      "w + d - 1", SCHULMAN, TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = s (1 - w)", KG_TARGET_REVERSE, VALUE, VALUE, 0, "O(1)"},
     .clamps = CLAMP_BOTH,
     .token = sampled,
     .kind = K3,
     .weighted = true},
    {{"k3++", "k3 times p/sg(p): reverse KL in value and gradient",
      "(p/sg(p)) (w + d - 1)", EMA, TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = s d", KG_TARGET_REVERSE, BOTH, BOTH, 0, "O(1)"},
     .clamps = CLAMP_BOTH,
     .token = sampled,
     .kind = K3PP,
     .weighted = true},
    {{"k4", "reverse KL in value and gradient", "(p/sg(p)) sg(d)", EMA, TOKEN,
      KG_NEED_ANCHOR, NULL},
     .claims = {"c = s d", KG_TARGET_REVERSE, BOTH, BOTH, 0, "O(1)"},
     .token = sampled,
     .kind = K4,
     .weighted = true},
    {{"k5", "forward KL in value and gradient", "sg(w) log w + log(p/sg(p))", EMA, TOKEN,
      KG_NEED_ANCHOR, NULL},
     .claims = {"c = s (1 - w)", KG_TARGET_FORWARD, BOTH, BOTH, 0, "O(1)"},
     .clamps = CLAMP_LOG,
     .token = sampled,
     .kind = K5,
     .forward = true,
     .weighted = true},
    {{"abs", "absolute log-ratio; not a KL", "|d|", "verl", TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = s sign d", KG_TARGET_NONE, 0, 0, 0, "O(1)"},
     .token = sampled,
     .kind = ABS,
     .weighted = true},
    {{"exact-reverse", "KL(p||q) over the whole vocabulary", "sum_v p_v d_v", "", TOKEN,
      KG_NEED_EXACT_REVERSE, NULL},
     .claims = {"in logits: p_v (d_v - KL)", KG_TARGET_REVERSE, BOTH, BOTH, 0, "a tile"},
     .token = exact,
     .of_context = true},
    {{"exact-forward", "KL(q||p) over the whole vocabulary", "-sum_v q_v d_v", "", TOKEN,
      KG_NEED_EXACT_FORWARD, NULL},
     .claims = {"in logits: p_v - q_v", KG_TARGET_FORWARD, BOTH, BOTH, 0, "a tile"},
     .token = exact,
     .forward = true,
     .of_context = true},
    {{"topk-reverse", "KL(p||q): exact on the sampler's top k, K4 on the rest",
      "sum_{j in H} p_j d_j + s 1[y not in H] (p/sg(p)) sg(d)", EMA, TOKEN,
      KG_NEED_ANCHOR | KG_NEED_TOP_SAMPLER, "kl.top_k kl.tail kl.gradient"},
     .claims = {"a_j = p_j d_j (published: p_j (d_j + 1)); tail: s d", KG_TARGET_REVERSE,
                BOTH, BOTH, VALUE, "O(k)"},
     .token = kg_kl_topk_reverse,
     .weighted = true},
    {{"topk-forward", "KL(q||p): exact on the anchor's top k, K5 on the rest",
      "-sum_{j in G} q_j d_j + s 1[y not in G] (sg(w) log w + log(p/sg(p)))", EMA, TOKEN,
      KG_NEED_ANCHOR | KG_NEED_TOP_ANCHOR, "kl.top_k kl.tail kl.gradient"},
     .claims = {"a_j = p_j - q_j (published: -q_j); tail: s (1 - w)", KG_TARGET_FORWARD,
                BOTH, BOTH, VALUE, "O(k)"},
     .clamps = CLAMP_TAIL,
     .token = kg_kl_topk_forward,
     .forward = true,
     .weighted = true},
    {{"truncated-reverse", "KL(p||q) on the anchor's top k, p and q renormalised there",
      "sum_{j in G} a_j log(a_j / b_j), a = p / p(G), b = q / q(G)",
      "arXiv 2603.25562, appendix G.3", TOKEN, KG_NEED_ANCHOR | KG_NEED_TOP_ANCHOR,
      "kl.top_k"},
     .claims = {"a_j (log(a_j / b_j) - KL)", KG_TARGET_REVERSE, 0, 0, 0, "O(k)"},
     .token = kg_kl_truncated,
     .head_only = true,
     .of_context = true},
    {{"truncated-forward", "KL(q||p) on the anchor's top k, p and q renormalised there",
      "sum_{j in G} b_j log(b_j / a_j), a = p / p(G), b = q / q(G)",
      "arXiv 2603.25562, appendix G.3", TOKEN, KG_NEED_ANCHOR | KG_NEED_TOP_ANCHOR,
      "kl.top_k"},
     .claims = {"a_j - b_j", KG_TARGET_FORWARD, 0, 0, 0, "O(k)"},
     .token = kg_kl_truncated,
     .forward = true,
     .head_only = true,
     .of_context = true},
    {{"bucket-reverse",
      "KL(p||q) on the anchor's top k and the rest as one event; never above the exact "
      "KL",
      "sum_{j in G} p_j d_j + p' log(p' / q'), p' = 1 - p(G), q' = 1 - q(G)", BUCKET,
      TOKEN, KG_NEED_ANCHOR | KG_NEED_TOP_ANCHOR, "kl.top_k"},
     .claims = {"a_j = p_j (d_j - log(p' / q'))", KG_TARGET_REVERSE, 0, 0, 0, "O(k)"},
     .token = kg_kl_bucket,
     .head_only = true,
     .of_context = true},
    {{"bucket-forward",
      "KL(q||p) on the anchor's top k and the rest as one event; never above the exact "
      "KL",
      "-sum_{j in G} q_j d_j + q' log(q' / p'), p' = 1 - p(G), q' = 1 - q(G)", BUCKET,
      TOKEN, KG_NEED_ANCHOR | KG_NEED_TOP_ANCHOR, "kl.top_k"},
     .claims = {"a_j = p_j q' / p' - q_j", KG_TARGET_FORWARD, 0, 0, 0, "O(k)"},
     .token = kg_kl_bucket,
     .forward = true,
     .head_only = true,
     .of_context = true},
    {{"generalised-reverse",
      "KL(p||q) on the anchor's top k, unnormalised: no term is below 0, and the rest "
      "does not count",
      "sum_{j in G} p_j d_j - p_j + q_j", "Ma et al. 2026, arXiv 2606.30406 (MOPD)",
      TOKEN, KG_NEED_ANCHOR | KG_NEED_TOP_ANCHOR, "kl.top_k"},
     .claims = {"a_j = p_j d_j", KG_TARGET_REVERSE, 0, 0, 0, "O(k)"},
     .token = kg_kl_generalised,
     .head_only = true,
     .of_context = true},
    {{"rpg-fkl", "KL(q||p) from tokens sampled by q", "-log u, u = p/q", RPG, TOKEN,
      KG_NEED_ANCHOR, NULL},
     .claims = {"c = -1", KG_TARGET_FORWARD, BOTH, BOTH, 0, "O(1)"},
     .token = ratio,
     .kind = FKL,
     .forward = true,
     .iterative = true},
    {{"rpg-rkl", "KL(p||q) from tokens sampled by q", "u log u", RPG, TOKEN,
      KG_NEED_ANCHOR, NULL},
     .claims = {"c = u (log u + 1)", KG_TARGET_REVERSE, BOTH, BOTH, 0, "O(1)"},
     .clamps = CLAMP_VALUE,
     .token = ratio,
     .kind = RKL,
     .iterative = true},
    {{"rpg-ufkl", "unnormalised KL(q||p) from tokens sampled by q", "u - log u - 1", RPG,
      TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = u - 1", KG_TARGET_FORWARD, BOTH, BOTH, 0, "O(1)"},
     .clamps = CLAMP_VALUE,
     .token = ratio,
     .kind = UFKL,
     .forward = true,
     .iterative = true},
    {{"rpg-urkl", "unnormalised KL(p||q) from tokens sampled by q", "u log u - u + 1",
      RPG, TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = u log u", KG_TARGET_REVERSE, BOTH, BOTH, 0, "O(1)"},
     .clamps = CLAMP_VALUE,
     .token = ratio,
     .kind = URKL,
     .iterative = true},
    {{"jeffreys", "half of KL(p||q) + KL(q||p) from tokens sampled by q",
      "(u log u - log u) / 2", RPG ", code (rpg_ujs)", TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = (u (log u + 1) - 1) / 2", KG_TARGET_JEFFREYS, BOTH, BOTH, 0, "O(1)"},
     .clamps = CLAMP_VALUE,
     .token = ratio,
     .kind = JEFFREYS,
     .iterative = true},
    {{"jeffreys-released", "released rpg_js: the second sign is wrong, not a divergence",
      "(u log u + log u) / 2", RPG ", code (rpg_js)", TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = (u (log u + 1) + 1) / 2", KG_TARGET_JEFFREYS, BOTH, 0, 0, "O(1)"},
     .clamps = CLAMP_VALUE,
     .token = ratio,
     .kind = JEFFREYS_RELEASED,
     .iterative = true},
    {{"reward-fkl", "shapes rewards: weight of KL(q||p)", "-1", RPG ", code", TOKEN,
      KG_NEED_ANCHOR, NULL},
     .claims = {"c = 0", KG_TARGET_NONE, 0, 0, 0, "O(1)"},
     .token = reward,
     .kind = FKL,
     .forward = true,
     .iterative = true,
     .reward_only = true},
    {{"reward-rkl", "shapes rewards: weight of KL(p||q)", "u (log u + 1)", RPG ", code",
      TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = u (log u + 2)", KG_TARGET_NONE, 0, 0, 0, "O(1)"},
     .clamps = CLAMP_VALUE,
     .token = reward,
     .kind = RKL,
     .iterative = true,
     .reward_only = true},
    {{"reward-ufkl", "shapes rewards: weight of the unnormalised KL(q||p)", "u - 1",
      RPG ", code", TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = u", KG_TARGET_NONE, 0, 0, 0, "O(1)"},
     .clamps = CLAMP_VALUE,
     .token = reward,
     .kind = UFKL,
     .forward = true,
     .iterative = true,
     .reward_only = true},
    {{"reward-urkl", "shapes rewards: weight of the unnormalised KL(p||q)", "u log u",
      RPG ", code", TOKEN, KG_NEED_ANCHOR, NULL},
     .claims = {"c = u (log u + 1)", KG_TARGET_NONE, 0, 0, 0, "O(1)"},
     .clamps = CLAMP_VALUE,
     .token = reward,
     .kind = URKL,
     .iterative = true,
     .reward_only = true},
};

struct kg_policy_rows kg_kl_rows(void)
{
    return (struct kg_policy_rows){rows, KG_COUNT(rows), sizeof rows[0]};
}
