/* Blocks of codes as panels of bf16.
 *
 * A code q becomes the lowest bits of a float's integer, where it lies, by an exponent of
 * that place: 2^n + q; minus 2^n + zero, times the scale, plus the lowest value. All but
 * the last of these are exact, so one rounding to fp32 and one to bf16 are those of a
 * reader of the file.
 */
#include "tensor/coded.h"

#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/product_internal.h"

#define KG_ALWAYS_INLINE inline __attribute__((always_inline))

/* Of sixteen rows, for a block of 32 columns. */
struct scales {
    struct kg_v16 scale[2]; /* of its first and its last 16 columns */
    struct kg_v16 low;
};

static inline struct scales scales_of(const struct kg_quant *q, const char *group,
                                      int64_t in)
{
    const struct kg_quant_form *f = &q->form;
    const int8_t *part = (const int8_t *)group + kg_coded_head_bytes(q) +
                         in * kg_coded_part_bytes(q);
    const struct kg_v16 scale = kg_v16_load_half((const void *)group);
    struct scales s = {{scale, scale}, kg_v16_set1(-0.0f)}; /* which changes no zero */

    if (f->low)
        s.low = kg_v16_load_half((const void *)(group + 2 * KG_PANEL));
    for (int j = 0; j < 2 && f->scales > 0; j++)
        s.scale[j] = kg_v16_mul(
            scale, kg_v16_load_i8(part + (f->scales == 2 ? j : 0) * KG_PANEL));
    if (f->low && f->scales > 0)
        s.low = kg_v16_mul(s.low, kg_v16_load_i8(part + f->scales * KG_PANEL));
    return s;
}

/* Whether a step has columns of the second half of its block. */
static inline int half_of(int step)
{
    return KG_SIMD_AMX ? step >= KG_BLOCK_STEPS / 2 : step / 4 % 2;
}

/* Codes beyond bit 20 are moved to lower ones, a multiple of `bits`. */
enum { LAST_BIT = 20, PLACES = 5 };
/* Codes are prefetched this far ahead of the multiplication. */
enum { AHEAD_BYTES = 4096 };
static inline int moved(const int bits) { return bits == 4 ? 12 : 16; }

/* q - zero of the code at a bit.   late: w moved; zero: of each place; bits: constant */
static KG_ALWAYS_INLINE struct kg_v16 code_at(struct kg_pairs w, struct kg_pairs late,
                                              const struct kg_v16 *zero, const int at,
                                              const int bits)
{
    const int place = at + bits <= LAST_BIT ? at : at - moved(bits);

    return kg_v16_sub(kg_pairs_code(place == at ? w : late, place, bits),
                      zero[place / bits]);
}

static KG_ALWAYS_INLINE void widen_block(char *to, const char *codes,
                                         const struct scales *s,
                                         const struct kg_v16 *zero, const int bits)
{
    const int steps = 16 / bits; /* of a dword */

    KG_UNROLL
    for (int i = 0; i < KG_BLOCK_STEPS / steps; i++) {
        const struct kg_pairs w = kg_pairs_load(codes + i * KG_STEP_BYTES);
        const struct kg_pairs late = kg_pairs_after(w, moved(bits));

        __builtin_prefetch(codes + i * KG_STEP_BYTES + AHEAD_BYTES, 0, 3);

        KG_UNROLL
        for (int j = 0; j < steps; j++) {
            const struct kg_v16 scale = s->scale[half_of(i * steps + j)];
            const struct kg_v16 low = code_at(w, late, zero, 2 * j * bits, bits);
            const struct kg_v16 high = code_at(w, late, zero, (2 * j + 1) * bits, bits);

            kg_pairs_store(to + (i * steps + j) * KG_STEP_BYTES,
                           kg_pairs_round(kg_v16_fma(scale, low, s->low),
                                          kg_v16_fma(scale, high, s->low)));
        }
    }
}

void kg_cpu_widen(char *to, struct kg_mat m, int64_t panel, int64_t s0, int64_t n)
{
    const struct kg_quant *q = m.quant;
    const int64_t group_bytes = kg_coded_group_bytes(q), bytes = kg_coded_block_bytes(q);
    const int shift = q->values == KG_PRODUCT_BLOCK ? 0 : 3; /* blocks of a group */
    struct kg_v16 zero[PLACES];
    const char *codes = (const char *)m.data + panel * kg_coded_panel_bytes(q, m.cols);
    const char *groups = codes + m.cols / KG_PRODUCT_BLOCK * bytes;

    for (int i = 0; i < PLACES && i * q->form.bits < LAST_BIT; i++)
        zero[i] = kg_v16_set1((float)((1 << (23 - i * q->form.bits)) + q->form.zero));
    for (int64_t b = s0 / KG_BLOCK_STEPS; b < (s0 + n) / KG_BLOCK_STEPS; b++) {
        const struct scales s = scales_of(q, groups + (b >> shift) * group_bytes,
                                          b & ((1 << shift) - 1));
        if (q->form.bits == 4)
            widen_block(to, codes + b * bytes, &s, zero, 4);
        else
            widen_block(to, codes + b * bytes, &s, zero, 8);
        to += KG_BLOCK_STEPS * KG_STEP_BYTES;
    }
}
