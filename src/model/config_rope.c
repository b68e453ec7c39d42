/* Rotary frequencies, in float32 and in the order of operations of transformers'
 * modeling_rope_utils, so that a checkpoint sees the same angles here and there.
 *
 * Pair i of a head turns by pos theta^(-2i/head_dim). A last bit matters: at position
 * 30,000 it is an angle of some thousandths. Powers are exp and log of base/real.h, which
 * are the same on every machine.
 */
#include "base/real.h"
#include "model/config.h"

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

void kg_rope_inv_freq(float *inv_freq, const struct kg_model_config *c)
{
    for (int i = 0; i < c->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)c->head_dim;
        inv_freq[i] = 1.0f / (float)kg_exp((double)exponent *
                                           kg_log((double)(float)c->rope_theta));
        if (c->rope_llama3)
            inv_freq[i] = scale_llama3(inv_freq[i], c);
    }
}
