/* Instructions of a device one by one: the values of IEEE 754 and of the definitions in
 * tensor/cuda/dev.h, written down before any device was tried. How the matrix instruction
 * rounds depends on the device; the test prints which of the known ways it is.
 */
#define _GNU_SOURCE
#include "tensor/backend_testing.h"
#include "tensor/cuda/probe.h"

#include "base/half.h"
#include "base/simd.h"

#include <dlfcn.h>

#include <math.h>

enum { LANES = 32 };

static uint32_t in[KG_PROBE_IN], out[KG_PROBE_OUT];

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}
static float number_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

/* The function of the emulation, which is linked, or of the CUDA library. */
#pragma weak kg_cuda_probe
static kg_cuda_probe_fn *opened(void)
{
    kg_cuda_probe_fn *found = kg_cuda_probe;
    Dl_info library;
    void *symbol;

    if (!on_device())
        return found;
    assert_true(dladdr((const void *)(uintptr_t)backend()->matmul, &library) != 0);
    symbol = dlsym(dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD), "kg_cuda_probe");
    memcpy(&found, &symbol, sizeof found);
    return found;
}

static void probe(enum kg_probe which)
{
    struct kg_err why;

    memset(out, 0xee, sizeof out);
    assert_non_null(opened());
    if (opened()(out, in, which, &why) != KG_OK)
        fail_msg("%s", why.message);
}

/* ---- one lane's arithmetic ---- */
static const uint32_t operands[] = {
    0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x3f800001, 0x00000001,
    0x807fffff, 0x00800000, 0x80800001, 0x7f7fffff, 0x7f800000, 0xff800000,
    0x7fc00000, 0x3f808000, 0x3f818000, 0x3f817fff, 0xbf80ffff, 0x1f800000,
    0x20000000, 0x5f3504f3, 0x7f7f8000, 0x33800000, 0x4b800001, 0x0000ffff};
enum { OPERANDS = sizeof operands / sizeof *operands };

static uint32_t fma_of(float x, float y, float z) { return bits_of(fmaf(x, y, z)); }
static uint32_t flushed_of(float x, float y, float z)
{
    return bits_of(
        kg_simd_fma_flushed(kg_simd_flush(x), kg_simd_flush(y), kg_simd_flush(z)));
}
static uint32_t sum_of(float x, float y, float z)
{
    (void)z;
    return bits_of(kg_simd_flush(kg_simd_flush(x) + kg_simd_flush(y)));
}
static uint32_t product_of(float x, float y, float z)
{
    (void)z;
    return bits_of(x * y);
}
static uint32_t quotient_of(float x, float y, float z)
{
    (void)z;
    return bits_of(x / y);
}
static uint32_t root_of(float x, float y, float z)
{
    (void)y, (void)z;
    return bits_of(sqrtf(x));
}
static uint32_t pair_of(float x, float y, float z)
{
    (void)z;
    return kg_f32_to_bf16(x) | (uint32_t)kg_f32_to_bf16(y) << 16;
}
/* kg_half_float, and infinities and NaN, which that does not take. */
static uint32_t half_of(float x, float y, float z)
{
    const uint32_t h = bits_of(x) & 0xffffu;

    (void)y, (void)z;
    if ((h & 0x7c00u) == 0x7c00u)
        return h >> 15 << 31 | 0x7f800000u | (h & 0x3ffu) << 13;
    return bits_of(kg_half_float((uint16_t)h));
}

static const struct lane_case {
    const char *name;
    enum kg_probe which;
    uint32_t (*want)(float x, float y, float z);
} lane_cases[] = {
    {"fma", KG_PROBE_FMA, fma_of},
    {"fma, flushed", KG_PROBE_FMA_FLUSHED, flushed_of},
    {"add, flushed", KG_PROBE_ADD_FLUSHED, sum_of},
    {"multiply", KG_PROBE_MULTIPLY, product_of},
    {"divide", KG_PROBE_DIVIDE, quotient_of},
    {"root", KG_PROBE_ROOT, root_of},
    {"two bf16", KG_PROBE_PAIR, pair_of},
    {"of fp16", KG_PROBE_HALF, half_of},
};

/* The bits of a NaN are unspecified, in either half. */
static bool is_nan_of(enum kg_probe which, uint32_t u, int half)
{
    return which == KG_PROBE_PAIR ? (u >> 16 * half & 0x7fffu) > 0x7f80u
                                  : isnan(number_of(u));
}
static bool agree(enum kg_probe which, uint32_t want, uint32_t got)
{
    for (int half = 0; half < 2; half++) {
        const uint32_t mask = which == KG_PROBE_PAIR ? 0xffffu << 16 * half : ~0u;

        if ((want & mask) != (got & mask) &&
            !(is_nan_of(which, want, half) && is_nan_of(which, got, half)))
            return false;
    }
    return true;
}

static void check_lanes(const struct lane_case *c)
{
    probe(c->which);
    for (int l = 0; l < LANES; l++) {
        const uint32_t *o = in + 3 * l;
        const uint32_t want = c->want(number_of(o[0]), number_of(o[1]), number_of(o[2]));

        if (!agree(c->which, want, out[l]))
            fail_msg("%s of %08x, %08x, %08x: expected %08x, found %08x", c->name,
                     (unsigned)o[0], (unsigned)o[1], (unsigned)o[2], (unsigned)want,
                     (unsigned)out[l]);
    }
}

/* All pairs of operands, with subnormals, infinities and NaN, and a third operand. */
static void arithmetic_is_ieee_s(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof lane_cases / sizeof *lane_cases; c++)
        for (int first = 0; first < OPERANDS * OPERANDS; first += LANES) {
            for (int l = 0; l < LANES; l++) {
                const int i = (first + l) % (OPERANDS * OPERANDS);

                in[3 * l] = operands[i / OPERANDS];
                in[3 * l + 1] = operands[i % OPERANDS];
                in[3 * l + 2] = operands[(i * 7 + 3) % OPERANDS];
            }
            check_lanes(&lane_cases[c]);
        }
}

/* Every fp16, also a subnormal one, becomes the equal fp32. */
static void every_fp16_is_read(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 1 << 16; first += emulated() ? 331 * LANES : LANES) {
        for (uint32_t l = 0; l < LANES; l++)
            in[3 * l] = first + l;
        check_lanes(&lane_cases[7]);
    }
}

/* At most three ulp off; 2^0 is 1, and below -126 the result is 0. */
static void attention_s_exponential_is_near(void **state)
{
    static const float few[] = {0.0f, -0.0f, -1.0f, -125.5f, -1000.0f, -INFINITY};

    (void)state;
    for (int l = 0; l < LANES; l++)
        in[3 * l] = bits_of(l < 6 ? few[l] : -0.37f * (float)((l - 5) * (l - 5)));
    probe(KG_PROBE_EXP2);
    for (int l = 0; l < LANES; l++) {
        const double x = (double)number_of(in[3 * l]);
        const double want = x < -126 ? 0.0 : exp2(x), got = (double)number_of(out[l]);

        if (!(fabs(got - want) <= 3 * 0x1p-23 * want))
            fail_msg("2^%g: expected %.9g, found %.9g", x, want, got);
    }
    assert_int_equal(out[0], 0x3f800000);
    assert_int_equal(out[5], 0);
}

/* ---- shared memory ---- */
static void fill_rows(void)
{
    for (uint32_t i = 0; i < 4 * LANES; i++) /* element e of row r is 256 r + e */
        in[i] = (i / 4 * 256 + i % 4 * 2) | (i / 4 * 256 + i % 4 * 2 + 1) << 16;
}

/* f[i] of lane l: matrix i has rows 8 i to 8 i + 7; g = l / 4, t = l % 4. */
static void fragments_lie_as_they_are_defined(void **state)
{
    (void)state;
    for (int down = 0; down < 2; down++) {
        fill_rows();
        probe(down ? KG_PROBE_TRANSPOSED : KG_PROBE_FRAGMENTS);
        for (uint32_t l = 0; l < LANES; l++)
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t g = l / 4, t = 2 * (l % 4), r = 8 * i + (down ? t : g);
                const uint32_t c = down ? g : t, first = 256 * r + c;
                const uint32_t want = first | (first + (down ? 256 : 1)) << 16;

                if (out[4 * l + i] != want)
                    fail_msg("%s, lane %u, matrix %u: expected %08x, found %08x",
                             down ? "transposed" : "rows", (unsigned)l, (unsigned)i,
                             (unsigned)want, (unsigned)out[4 * l + i]);
            }
    }
}

/* Copies 0 to 16 bytes of each sixteen; zeros follow. */
static void copies_end_in_zeros(void **state)
{
    const unsigned char *got = (const unsigned char *)out;

    (void)state;
    fill_rows();
    for (int i = 0; i < 4 * LANES; i++)
        in[i] |= 0x01010101u;
    probe(KG_PROBE_COPY);
    for (int l = 0; l < LANES; l++)
        for (int b = 0; b < 16; b++) {
            const int want = b < l % 17 ? ((const unsigned char *)in)[16 * l + b] : 0;

            if (got[16 * l + b] != want)
                fail_msg("%d bytes: byte %d: expected %02x, found %02x", l % 17, b, want,
                         got[16 * l + b]);
        }
}

/* ---- the matrix instruction ---- */
struct factors {
    float a[16][16], b[16][8], d[16][8];
};

static uint32_t two(float x, float y)
{
    return kg_f32_to_bf16(x) | (uint32_t)kg_f32_to_bf16(y) << 16;
}

/* f->d <- d + a b, by the instruction */
static void multiply(struct factors *f)
{
    for (int l = 0; l < LANES; l++) {
        const int g = l / 4, t = 2 * (l % 4);
        uint32_t *w = in + 10 * l;

        for (int i = 0; i < 4; i++) {
            const int r = g + i % 2 * 8, c = t + i / 2 * 8;

            w[i] = two(f->a[r][c], f->a[r][c + 1]);
            w[6 + i] = bits_of(f->d[g + i / 2 * 8][t + i % 2]);
        }
        for (int i = 0; i < 2; i++)
            w[4 + i] = two(f->b[t + 8 * i][g], f->b[t + 8 * i + 1][g]);
    }
    probe(KG_PROBE_MMA);
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++)
            f->d[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2] = number_of(out[4 * l + i]);
}

/* Small integers, exact in any order of addition: shows where each of the 16 x 16 and 16
 * x 8 factors has to be. */
static void matrices_lie_as_they_are_defined(void **state)
{
    struct factors f;

    (void)state;
    for (int turn = 0; turn < 16; turn++) {
        double want[16][8];

        for (int r = 0; r < 16; r++)
            for (int c = 0; c < 16; c++) {
                f.a[r][c] = (float)((r * 5 + c * 3 + turn) % 13 - 6);
                if (c < 8) {
                    f.b[r][c] = (float)((r * 7 + c * 11 + turn) % 17 - 8);
                    f.d[r][c] = (float)(r * 8 + c - 64);
                }
            }
        for (int r = 0; r < 16; r++)
            for (int c = 0; c < 8; c++) {
                want[r][c] = (double)f.d[r][c];
                for (int k = 0; k < 16; k++)
                    want[r][c] += (double)(f.a[r][k] * f.b[k][c]);
            }
        multiply(&f);
        for (int r = 0; r < 16; r++)
            for (int c = 0; c < 8; c++)
                if ((double)f.d[r][c] != want[r][c])
                    fail_msg("row %d, column %d: expected %g, found %g", r, c, want[r][c],
                             (double)f.d[r][c]);
    }
}

/* Sums of sixteen products and C for which three known ways of adding differ:
 *   exact     rounded once (the emulation)
 *   sixteen   all seventeen aligned to the largest, and cut off two bits below fp32's
 *             last (expected on 9.0)
 *   eights    the same eight at a time, C with the first (expected on 8.x)
 * source: Fasi, Higham, Mikaitis & Pranesh 2021 for 7.0 and 8.0; for 9.0, that results of
 * cuBLASLt are reproduced so. Unmeasured here. */
static const struct sum_case {
    const char *name;
    float c, k0, k1, k8; /* products in places 0, 1 and 8 */
    double exact, sixteen, eights;
} sum_cases[] = {
    {"half of a last place", 1, 0x1p-24f, 0, 0, 1, 1, 1},
    {"two halves of one", 1, 0x1p-24f, 0x1p-24f, 0, 1 + 0x1p-23, 1 + 0x1p-23,
     1 + 0x1p-23},
    {"two halves, in both eights", 1, 0x1p-24f, 0, 0x1p-24f, 1 + 0x1p-23, 1 + 0x1p-23, 1},
    {"three quarters of one", 1, 0x1p-24f, 0x1p-25f, 0, 1 + 0x1p-23, 1, 1},
    {"the same below zero", -1, -0x1p-24f, -0x1p-25f, 0, -1 - 0x1p-23, -1, -1},
    {"three quarters, in both eights", 1, 0x1p-24f, 0, 0x1p-25f, 1 + 0x1p-23, 1, 1},
    {"what is left of large ones", 0, 0x1p30f, 1, -0x1p30f, 1, 0, 0},
    {"what is left within eight", 0x1p30f, -0x1p30f, 1, 0, 1, 0, 0},
    {"what is left by C", -0x1p24f, 0x1p24f, 0x1p-1f, 0, 0.5, 0.5, 0.5},
    {"a subnormal product", 0, 0x1p-140f, 0, 0, 0x1p-140, 0x1p-140, 0x1p-140},
};

static double sum_by_instruction(const struct sum_case *s)
{
    static struct factors f;
    const float products[3] = {s->k0, s->k1, s->k8};
    static const int places[3] = {0, 1, 8};

    memset(&f, 0, sizeof f);
    f.d[0][0] = s->c;
    for (int i = 0; i < 3; i++) { /* each factor has half of the exponent, to fit bf16 */
        int e;
        const float m = frexpf(products[i], &e);

        f.a[0][places[i]] = ldexpf(m, e / 2);
        f.b[places[i]][0] = ldexpf(1, e - e / 2);
    }
    multiply(&f);
    return (double)f.d[0][0];
}

static void the_way_of_adding_is_said(void **state)
{
    enum { N = sizeof sum_cases / sizeof *sum_cases };
    int like[3] = {0};

    (void)state;
    for (int i = 0; i < N; i++) {
        const struct sum_case *s = &sum_cases[i];
        const double got = sum_by_instruction(s);
        const double want[3] = {s->exact, s->sixteen, s->eights};

        for (int way = 0; way < 3; way++)
            like[way] += got == want[way];
        print_message("%s: exact %a, sixteen %a, eights %a: found %a\n", s->name, want[0],
                      want[1], want[2], got);
    }
    print_message("mma: of %d sums, %d as exact, %d as sixteen aligned, %d as eights\n",
                  N, like[0], like[1], like[2]);
    assert_true(!emulated() || like[0] == N);
}

/* NaN, infinities and zeros, the same for every way of adding. */
static void what_is_no_number_stays_none(void **state)
{
    static const struct {
        float c, a, b;
        double want;
    } cases[] = {{1, INFINITY, 0, NAN},
                 {1, NAN, 0, NAN},
                 {0, INFINITY, 2, INFINITY},
                 {0, -INFINITY, 2, -INFINITY},
                 {-INFINITY, INFINITY, 1, NAN},
                 {INFINITY, -1, 1, INFINITY},
                 {NAN, 0, 0, NAN},
                 {3, 0, 0, 3},
                 {0x1p127f, 0x1p64f, 0x1p64f, INFINITY},
                 {-1, 1, 1, 0}};
    struct factors f;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(&f, 0, sizeof f);
        f.d[3][5] = cases[i].c;
        f.a[3][9] = cases[i].a;
        f.b[9][5] = cases[i].b;
        multiply(&f);
        const double got = (double)f.d[3][5];

        if (!(got == cases[i].want || (isnan(got) && isnan(cases[i].want))))
            fail_msg("case %d: expected %g, found %g", (int)i, cases[i].want, got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_lie_as_they_are_defined),
        cmocka_unit_test(fragments_lie_as_they_are_defined),
        cmocka_unit_test(copies_end_in_zeros),
        cmocka_unit_test(arithmetic_is_ieee_s),
        cmocka_unit_test(every_fp16_is_read),
        cmocka_unit_test(attention_s_exponential_is_near),
        cmocka_unit_test(what_is_no_number_stays_none),
        cmocka_unit_test(the_way_of_adding_is_said),
    };

    return RUN_EMULATED(tests, NULL, NULL);
}
