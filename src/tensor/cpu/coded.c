/* Blocks of codes as bf16: in registers for the rows of one tile, else as panels.
 *
 * A code q becomes a float without a shift: with an exponent for its place in the dword,
 * its bits are the last of the fraction of 2^n + q. The kernel subtracts 2^n + zero,
 * multiplies by the scale and adds the lowest value. All steps but the last are exact, so
 * the value is rounded once to fp32 and once to bf16, as by a reader of the file.
 *
 * If a type has only one scale, products compute (2^n + q) scale - (2^n + zero) scale in
 * one operation. Places are chosen so that the second term is exact in fp32, too: n is at
 * most 15 for codes of 4 bits, 19 for 8. Only the sign of a zero differs, which changes
 * no chain of sums that begins with +0.
 */
#include "tensor/coded.h"
#include "base/fpmode.h"
#include "tensor/cpu/cpu_internal.h"
#include "tensor/cpu/product_internal.h"

#define KG_ALWAYS_INLINE inline __attribute__((always_inline))

/* Codes are prefetched into the L2 cache this far ahead. */
enum { AHEAD_BYTES = 16384 };
enum { PLACES = 3 }; /* of codes in a dword; also the number of views */

/* Constants of a loop, from struct kg_quant_form. */
struct form {
    int bits;
    int scales;
    bool low;
    bool folded; /* add[] includes zero_at */
};

/* Scales of a block of 32 columns, for rows 0..7 and 8..15, each twice, as codes are. */
struct scales {
    struct kg_v16 scale[2][2]; /* for the first and the last 16 columns */
    struct kg_v16 add[PLACES][2];
};

/* ---- places of codes ---- */
/* Each code is at one of these places in the dword or a rotated copy of it (a view). */
static inline int first_place(const int bits) { return bits == 4 ? 8 : 4; }
static inline int turn_of(const int bits) { return bits == 4 ? 12 : 16; }
static inline int view_of(const int k, const int bits)
{
    return bits == 4 ? (k + 7) / 3 % 3 : k / 2;
}
static inline int place_of(const int k, const int bits)
{
    const int at = kg_coded_bit(k, bits) - turn_of(bits) * view_of(k, bits);
    return ((at & 31) - first_place(bits)) / bits;
}
static inline int bit_of(const int place, const int bits)
{
    return first_place(bits) + place * bits;
}
/* 2^n + zero */
static inline float zero_at(const struct kg_quant *q, const int place)
{
    return (float)((1 << (23 - bit_of(place, q->form.bits))) + q->form.zero);
}
static inline int places_of(const int bits) { return bits == 4 ? 3 : 2; }

/* ---- one block ---- */
static KG_ALWAYS_INLINE void twice(struct kg_v16 to[2], struct kg_v16 a)
{
    for (int h = 0; h < 2; h++)
        to[h] = kg_v16_twice(a, h);
}

static KG_ALWAYS_INLINE void fold(struct scales *s, const struct kg_quant *q,
                                  const int bits)
{
    KG_UNROLL
    for (int p = 0; p < places_of(bits); p++)
        for (int h = 0; h < 2; h++)
            s->add[p][h] = kg_v16_mul(kg_v16_set1(-zero_at(q, p)), s->scale[0][h]);
}

/* in: index of the block in its group */
static KG_ALWAYS_INLINE struct scales
scales_of(const struct kg_quant *q, const char *group, int64_t in, const struct form f)
{
    const int8_t *part = (const int8_t *)group + kg_coded_head_bytes(q) +
                         in * kg_coded_part_bytes(q);
    const struct kg_v16 scale = kg_v16_load_half((const void *)group);
    struct kg_v16 low = kg_v16_set1(-0.0f); /* adding -0 changes nothing */
    struct scales s;

    twice(s.scale[0], f.scales ? kg_v16_mul(scale, kg_v16_load_i8(part)) : scale);
    if (f.scales == 2)
        twice(s.scale[1], kg_v16_mul(scale, kg_v16_load_i8(part + KG_PANEL)));
    if (f.folded) {
        fold(&s, q, f.bits);
        return s;
    }
    if (f.low)
        low = kg_v16_load_half((const void *)(group + 2 * KG_PANEL));
    if (f.low && f.scales)
        low = kg_v16_mul(low, kg_v16_load_i8(part + f.scales * KG_PANEL));
    twice(s.add[0], low);
    return s;
}

/* Whether a step has columns of the second half of its block. */
static inline int half_of(const int step)
{
    return KG_SIMD_AMX ? step >= KG_BLOCK_STEPS / 2 : step / 4 % 2;
}

static KG_ALWAYS_INLINE struct kg_v16 value(const struct kg_pairs *views,
                                            const struct scales *s,
                                            const struct kg_v16 *zero, const int step,
                                            const int h, const struct form f)
{
    const int k = step % (16 / f.bits) * 2 + h, place = place_of(k, f.bits);
    const struct kg_v16 code = kg_pairs_code(views[view_of(k, f.bits)],
                                             bit_of(place, f.bits), f.bits);
    const struct kg_v16 scale = s->scale[f.scales == 2 ? half_of(step) : 0][h];

    return f.folded ? kg_v16_fma(code, scale, s->add[place][h])
                    : kg_v16_fma(kg_v16_sub(code, zero[place]), scale, s->add[0][h]);
}

/* What to do with a step of a block. */
typedef void take_step(void *to, struct kg_pairs w, int step);

static KG_ALWAYS_INLINE void each_step(take_step *take, void *to, const char *codes,
                                       const struct scales *s, const struct kg_v16 *zero,
                                       const struct form f)
{
    const int steps = 16 / f.bits; /* per dword */

    KG_UNROLL
    for (int i = 0; i < KG_BLOCK_STEPS / steps; i++) {
        struct kg_pairs views[PLACES];

        __builtin_prefetch(codes + i * KG_STEP_BYTES + AHEAD_BYTES, 0, 2);
        views[0] = kg_pairs_load(codes + i * KG_STEP_BYTES);
        KG_UNROLL
        for (int v = 1; v < places_of(f.bits); v++)
            views[v] = kg_pairs_turn(views[0], v * turn_of(f.bits));
        KG_UNROLL
        for (int step = i * steps; step < (i + 1) * steps; step++)
            take(to,
                 kg_pairs_round(value(views, s, zero, step, 0, f),
                                value(views, s, zero, step, 1, f)),
                 step);
    }
}

/* ---- a panel ---- */
struct panel {
    const struct kg_quant *q;
    const char *codes;
    const char *groups;
    struct kg_v16 zero[PLACES];
};

static struct panel panel_of(struct kg_mat m, int64_t i)
{
    struct panel p = {.q = m.quant};

    p.codes = (const char *)m.data + i * kg_coded_panel_bytes(p.q, m.cols);
    p.groups = p.codes + m.cols / KG_PRODUCT_BLOCK * kg_coded_block_bytes(p.q);
    for (int k = 0; k < places_of(p.q->form.bits); k++)
        p.zero[k] = kg_v16_set1(zero_at(p.q, k));
    return p;
}

static KG_ALWAYS_INLINE void block_of(take_step *take, void *to, const struct panel *p,
                                      int64_t b, const struct form f)
{
    const int shift = p->q->values == KG_PRODUCT_BLOCK ? 0 : 3; /* blocks per group */
    const struct scales s = scales_of(
        p->q, p->groups + (b >> shift) * kg_coded_group_bytes(p->q),
        b & ((1 << shift) - 1), f);

    each_step(take, to, p->codes + b * (f.bits * 64), &s, p->zero, f);
}

static KG_ALWAYS_INLINE void put_step(void *to, struct kg_pairs w, int step)
{
    kg_pairs_store((char *)to + step * KG_STEP_BYTES, w);
}

void kg_cpu_widen(char *to, struct kg_mat m, int64_t panel, int64_t s0, int64_t n)
{
    const struct panel p = panel_of(m, panel);
    const struct kg_quant_form *f = &p.q->form;
    const int64_t end = (s0 + n) / KG_BLOCK_STEPS;

    for (int64_t b = s0 / KG_BLOCK_STEPS; b < end; b++) {
        if (f->bits == 4)
            block_of(put_step, to, &p, b, (struct form){4, f->scales, f->low, false});
        else if (f->scales == 2)
            block_of(put_step, to, &p, b, (struct form){8, 2, false, false});
        else
            block_of(put_step, to, &p, b, (struct form){8, 0, false, false});
        to += KG_BLOCK_STEPS * KG_STEP_BYTES;
    }
}

/* ---- a few rows ---- */
enum { FEW_ROWS = 4 };
struct sums {
    struct kg_v16 chain[2][FEW_ROWS]; /* of the even and of the odd pairs */
    const char *left[FEW_ROWS];
    int rows;
};

static KG_ALWAYS_INLINE void add_step(void *to, struct kg_pairs w, int step)
{
    struct sums *s = to;
    struct kg_v16 *acc = s->chain[step >= KG_BLOCK_STEPS / 2];

    KG_UNROLL
    for (int r = 0; r < s->rows; r++)
        acc[r] = kg_v16_dot_bf16(acc[r], w, s->left[r] + step * 4);
}

/* n: actual rows, at most `rows`; missing rows repeat the last one */
static KG_ALWAYS_INLINE void sum_rows(const struct kg_cpu_strip *t, const struct panel *p,
                                      int n, const int rows, const struct form f)
{
    struct kg_v16 total[FEW_ROWS];
    struct sums s = {.rows = rows};

    for (int r = 0; r < rows; r++) {
        total[r] = kg_v16_zero();
        s.left[r] = t->left + (r < n ? r : n - 1) * t->left_row;
    }
    for (int64_t b = 0; b < t->steps / KG_BLOCK_STEPS; b++) {
        KG_UNROLL
        for (int r = 0; r < rows; r++)
            s.chain[0][r] = s.chain[1][r] = kg_v16_zero();
        block_of(add_step, &s, p, b, f);
        KG_UNROLL
        for (int r = 0; r < rows; r++) {
            total[r] = kg_v16_add(total[r], kg_v16_add(s.chain[0][r], s.chain[1][r]));
            s.left[r] += KG_BLOCK_STEPS * 4;
        }
    }
    for (int r = 0; r < n; r++)
        kg_v16_store(t->out + r * t->out_row, total[r]);
}

static KG_ALWAYS_INLINE void sum_form(const struct kg_cpu_strip *t, const struct panel *p,
                                      int n, const struct form f)
{
    if (n == 1)
        sum_rows(t, p, 1, 1, f);
    else if (n == 2)
        sum_rows(t, p, 2, 2, f);
    else
        sum_rows(t, p, n, FEW_ROWS, f);
}

/* Not inlined: compilers could move sums across a change of the processor's mode. */
static __attribute__((noinline)) void sum_panel(const struct kg_cpu_strip *t,
                                                const struct panel *p, int n)
{
    const struct kg_quant_form *f = &p->q->form;

    if (f->scales == 2)
        sum_form(t, p, n, (struct form){8, 2, false, false});
    else if (f->bits == 8)
        sum_form(t, p, n, (struct form){8, 0, false, true});
    else if (f->scales == 1)
        sum_form(t, p, n, (struct form){4, 1, true, false});
    else if (f->low)
        sum_form(t, p, n, (struct form){4, 0, true, false});
    else
        sum_form(t, p, n, (struct form){4, 0, false, true});
}

bool kg_cpu_sum_coded(const struct kg_cpu_strip *t, struct kg_mat m, int64_t panel,
                      int64_t rows)
{
    if (!KG_SIMD_BF16_DOT || KG_SIMD_AMX || rows > FEW_ROWS)
        return false;
    const struct panel p = panel_of(m, panel);

    kg_fp_set_mode(KG_FP_FLUSH);
    sum_panel(t, &p, (int)rows);
    kg_fp_set_mode(KG_FP_EXACT);
    return true;
}
