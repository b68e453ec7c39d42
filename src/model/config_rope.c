/* Rotary frequencies, in float32 and in the order of operations of transformers'
 * modeling_rope_utils, so that a checkpoint gets the same angles in both.
 *
 * Pair i of a head rotates by pos theta^(-i/pairs); if the whole head rotates, that is
 * pos theta^(-2i/head_dim). The last bit matters: at position 30,000 it is an angle of
 * some thousandths. Powers are exp and log of base/real.h, which are the same on every
 * machine.
 */
#include "base/real.h"
#include "model/config.h"

#include <math.h>

static const float TWO_PI = 6.283185307179586f;

/* llama3: long wavelengths are stretched by `factor`, short ones kept, those between are
 * blended linearly. */
static float scale_llama3(float inv_freq, const struct kg_model_config *c)
{
    const float factor = (float)c->rope_factor;
    const float low = (float)c->rope_low_freq_factor;
    const float band = (float)(c->rope_high_freq_factor - c->rope_low_freq_factor);
    const float original = (float)c->rope_original_positions;
    const float wavelength = TWO_PI / inv_freq;
    if (wavelength < (float)(c->rope_original_positions / c->rope_high_freq_factor))
        return inv_freq;
    if (wavelength > (float)(c->rope_original_positions / c->rope_low_freq_factor))
        return inv_freq / factor;
    const float smooth = (original / wavelength - low) / band;
    return (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
}

/* yarn: the pair that turns `rotations` times over the original positions. */
static double pair_of(double rotations, const struct kg_model_config *c)
{
    const double turns = (double)c->rope_original_positions / (rotations * 2 * M_PI);
    return 2 * kg_rope_pairs(c) * kg_log(turns) / (2 * kg_log(c->rope_theta));
}

/* The pairs between which yarn blends: those before are kept, those after stretched. */
struct band {
    float low;
    float high;
};

static struct band band_of(const struct kg_model_config *c)
{
    const double last = 2 * kg_rope_pairs(c) - 1;
    double low = pair_of(c->rope_beta_fast, c), high = pair_of(c->rope_beta_slow, c);
    if (!c->rope_untruncated) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < last ? high : last;
    return (struct band){(float)low, (float)(low == high ? high + 0.001 : high)};
}

static float scale_yarn(float inv_freq, int i, const struct kg_model_config *c)
{
    const struct band b = band_of(c);
    float ramp = ((float)i - b.low) / (b.high - b.low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    const float kept = 1.0f - ramp, stretched = inv_freq / (float)c->rope_factor;
    return stretched * (1.0f - kept) + inv_freq * kept;
}

/* theta^(i/pairs): the number of positions in which pair i rotates by one radian */
static float wave(double theta, int i, const struct kg_model_config *c)
{
    float exponent = (float)(2 * i) / (float)(2 * kg_rope_pairs(c));
    return (float)kg_exp((double)exponent * kg_log((double)(float)theta));
}

int32_t kg_rope_pairs(const struct kg_model_config *c)
{
    return c->rope_pairs ? c->rope_pairs : c->head_dim / 2;
}

void kg_rope_local_inv_freq(float *inv_freq, const struct kg_model_config *c)
{
    for (int i = 0; i < kg_rope_pairs(c); i++)
        inv_freq[i] = 1.0f / wave(c->rope_local_theta, i, c);
}

void kg_rope_inv_freq(float *inv_freq, const struct kg_model_config *c)
{
    for (int i = 0; i < kg_rope_pairs(c); i++) {
        inv_freq[i] = 1.0f / wave(c->rope_theta, i, c);
        if (c->rope == KG_ROPE_LLAMA3)
            inv_freq[i] = scale_llama3(inv_freq[i], c);
        else if (c->rope == KG_ROPE_LINEAR)
            inv_freq[i] /= (float)c->rope_factor;
        else if (c->rope == KG_ROPE_YARN)
            inv_freq[i] = scale_yarn(inv_freq[i], i, c);
        else if (c->rope == KG_ROPE_LONGROPE)
            inv_freq[i] = 1.0f / (c->rope_short[i] * wave(c->rope_theta, i, c));
    }
}
