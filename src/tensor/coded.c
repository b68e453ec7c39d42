/* Writes a row's quantized blocks into panels, and reads single values (coded.h). */
#include "tensor/coded.h"

#include "base/half.h"

#include <math.h>

/* Addresses of a row's parts in its panel. */
struct place {
    unsigned char *codes; /* dwords of one block */
    unsigned char *group; /* scales of a group of blocks */
    unsigned char *part;  /* scales of one block */
    int lane;
};

static struct place place_of(struct kg_mat m, int64_t r, int64_t block)
{
    const struct kg_quant *q = m.quant;
    const int64_t per = q->values / KG_PRODUCT_BLOCK;
    unsigned char *panel = (unsigned char *)m.data +
                           r / KG_PANEL * kg_coded_panel_bytes(q, m.cols);
    unsigned char *group = panel + m.cols / KG_PRODUCT_BLOCK * kg_coded_block_bytes(q) +
                           block / per * kg_coded_group_bytes(q);
    return (struct place){panel + block * kg_coded_block_bytes(q), group,
                          group + kg_coded_head_bytes(q) +
                              block % per * kg_coded_part_bytes(q),
                          (int)(r % KG_PANEL)};
}

/* Index of element i of a block, in 16-bit units: half code % 2 of step code / 2. */
static int code_of(enum kg_layout layout, int i)
{
    return layout == KG_PANELS ? i : i % 2 * 16 + (i / 2 ^ 1);
}

/* The dword that holds a code, and the code's first bit in it; a code may wrap around. */
static unsigned char *dword_of(int *bit, const struct place *p, enum kg_layout layout,
                               int bits, int i)
{
    const int code = code_of(layout, i), steps = 16 / bits, half = code % 2;
    const int k = code / 2 % steps * 2 + p->lane / 8;

    *bit = kg_coded_bit(k, bits);
    return p->codes + (code / 2 / steps * KG_PANEL + p->lane % 8 * 2 + half) * 4;
}

static uint32_t turn_left(uint32_t x, int by) { return x << (by & 31) | x >> (-by & 31); }

static void put_block(struct kg_mat m, const struct place *p,
                      const struct kg_quant_parts *parts, int64_t in)
{
    const struct kg_quant_form *f = &m.quant->form;

    for (int j = 0; j < f->scales; j++)
        p->part[j * KG_PANEL + p->lane] = (unsigned char)
                                              parts->scales[in * f->scales + j];
    if (f->scales && f->low)
        p->part[f->scales * KG_PANEL + p->lane] = (unsigned char)parts->lows[in];
    for (int i = 0; i < KG_PRODUCT_BLOCK; i++) {
        int bit;
        unsigned char *to = dword_of(&bit, p, m.layout, f->bits, i);
        uint32_t w;

        memcpy(&w, to, sizeof w);
        w |= turn_left(parts->q[in * KG_PRODUCT_BLOCK + i], bit);
        memcpy(to, &w, sizeof w);
    }
}

static bool is_finite(uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

kg_status kg_coded_put(struct kg_mat m, int64_t r, const unsigned char *blocks,
                       struct kg_err *err)
{
    const struct kg_quant *q = m.quant;
    const int64_t per = q->values / KG_PRODUCT_BLOCK;

    for (int64_t g = 0; g < m.cols / q->values; g++, blocks += q->bytes) {
        struct kg_quant_parts parts = {0};
        struct place p = place_of(m, r, g * per);

        q->form.part(&parts, blocks);
        if (!is_finite(parts.scale) || !is_finite(parts.low))
            return kg_fail(err, KG_ENONFINITE,
                           "row %lld: expected finite weights, found a scale that is NaN "
                           "or infinity",
                           (long long)r);
        memcpy(p.group + 2 * p.lane, &parts.scale, 2);
        if (q->form.low)
            memcpy(p.group + 2 * (KG_PANEL + p.lane), &parts.low, 2);
        for (int64_t in = 0; in < per; in++) {
            p = place_of(m, r, g * per + in);
            put_block(m, &p, &parts, in);
        }
    }
    return KG_OK;
}

uint16_t kg_coded_get(struct kg_mat m, int64_t r, int64_t c)
{
    const struct kg_quant_form *f = &m.quant->form;
    const struct place p = place_of(m, r, c / KG_PRODUCT_BLOCK);
    const int i = (int)(c % KG_PRODUCT_BLOCK);
    const bool second = f->scales == 2 && i >= KG_PRODUCT_BLOCK / 2;
    uint16_t scale, low = 0x8000u;
    int bit;
    uint32_t w;

    memcpy(&w, dword_of(&bit, &p, m.layout, f->bits, i), sizeof w);
    const int q = (int)(turn_left(w, 32 - bit) & ((1u << f->bits) - 1));

    memcpy(&scale, p.group + 2 * p.lane, 2);
    if (f->low)
        memcpy(&low, p.group + 2 * (KG_PANEL + p.lane), 2);
    float d = kg_half_float(scale), add = kg_half_float(low);

    if (f->scales)
        d *= (float)(int8_t)p.part[(second ? KG_PANEL : 0) + p.lane];
    if (f->scales && f->low)
        add *= (float)(int8_t)p.part[f->scales * KG_PANEL + p.lane];
    return kg_f32_to_bf16(fmaf(d, (float)(q - f->zero), add));
}
