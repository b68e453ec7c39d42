/* A cuBLASLt that computes on the host, for tests: plans that differ in bits and in speed
 * by design; most of them are traps.
 *
 * Tests compile it into a library with the real one's name, which the emulation opens;
 * memory for products is lent to it. It records which plan made the last product, and
 * what time products would have taken. A caller that breaks its rules (allows split sums
 * without a workspace, leaves a description) is refused or counted.
 */
#include "emu/blas_fake.h"
#include "tensor/cuda/lt.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* ---- plans ---- */
/* How K factors are added: block after block; in two halves, which are added; from the
 * last to the first; without the last ones. */
enum order { IN_ORDER, IN_HALVES, FROM_BEHIND, NOT_ALL };

/* What a plan's order may depend on. */
struct result {
    int64_t m, n;
    bool wide, added_to; /* wide: fp32 */
};

static enum order halves_if(bool are) { return are ? IN_HALVES : IN_ORDER; }
static enum order odd_from_behind(struct result c)
{
    return c.m % 2 == 1 && c.m > 16 ? FROM_BEHIND : IN_ORDER;
}
static enum order halves_in_a_gap(struct result c)
{
    return halves_if(c.m >= 100 && c.m <= 130);
}
static enum order halves_of_many(struct result c) { return halves_if(c.m > 1024); }
static enum order halves_of_huge(struct result c) { return halves_if(c.m > 3000); }
static enum order halves_of_wide(struct result c) { return halves_if(c.n > 512); }
static enum order halves_of_narrow(struct result c) { return halves_if(!c.wide); }
static enum order halves_if_added_to(struct result c) { return halves_if(c.added_to); }
static enum order halves(struct result c)
{
    (void)c;
    return IN_HALVES;
}

static enum order not_all(struct result c)
{
    (void)c;
    return NOT_ALL;
}

/* By enum kg_fake_plan. */
static const struct {
    double seconds;
    enum order (*order)(struct result c); /* NULL: always in order */
    int64_t least, most;                  /* rows; most 0: any number */
    int split;
    size_t workspace;
} plans[] = {
    [KG_FAKE_STEADY] = {100, NULL, 0, 0, 1, 0},
    [KG_FAKE_FEW] = {20, NULL, 0, 256, 1, 0},
    [KG_FAKE_HALVES] = {1, halves, 0, 0, 1, 0},
    [KG_FAKE_ODD] = {5, odd_from_behind, 0, 0, 1, 0},
    [KG_FAKE_GAP] = {8, halves_in_a_gap, 0, 0, 1, 0},
    [KG_FAKE_SLOW] = {300, NULL, 0, 0, 1, 0},
    [KG_FAKE_SPLIT] = {0.5, halves, 0, 0, 2, 0},
    [KG_FAKE_WORKSPACE] = {0.25, halves, 0, 0, 1, 64},
    [KG_FAKE_BIG] = {100, NULL, 65, 0, 1, 0},
    [KG_FAKE_MANY] = {100, halves_of_many, 0, 0, 1, 0},
    [KG_FAKE_WIDE] = {100, halves_of_wide, 0, 0, 1, 0},
    [KG_FAKE_HUGE] = {100, halves_of_huge, 0, 0, 1, 0},
    [KG_FAKE_NARROW] = {100, halves_of_narrow, 0, 0, 1, 0},
    [KG_FAKE_ADDS] = {2, halves_if_added_to, 0, 0, 1, 0},
    [KG_FAKE_SHORT] = {0.1, not_all, 0, 0, 1, 0},
};

/* Plans offered for few rows and for many, by enum kg_fake_mode; ends with -1. */
static const int few[][8] = {
    [KG_FAKE_USUAL] = {KG_FAKE_SPLIT, KG_FAKE_WORKSPACE, KG_FAKE_HALVES, KG_FAKE_SLOW,
                       KG_FAKE_ODD, KG_FAKE_GAP, KG_FAKE_FEW, -1},
    [KG_FAKE_NONE_FOR_FEW] = {KG_FAKE_HALVES, -1},
    [KG_FAKE_NOTHING] = {KG_FAKE_SPLIT, -1},
    [KG_FAKE_EMPTY] = {-1},
    [KG_FAKE_OTHER_MANY] = {KG_FAKE_FEW, -1},
    [KG_FAKE_OTHER_WIDE] = {KG_FAKE_WIDE, -1},
    [KG_FAKE_OTHER_HUGE] = {KG_FAKE_FEW, -1},
    [KG_FAKE_BY_ADDING] = {KG_FAKE_ADDS, KG_FAKE_FEW, -1},
    [KG_FAKE_OTHER_NARROW] = {KG_FAKE_HALVES, KG_FAKE_FEW, -1},
    [KG_FAKE_WRONG] = {KG_FAKE_SHORT, KG_FAKE_FEW, -1},
    [KG_FAKE_TWO_CLASSES] = {KG_FAKE_SLOW, KG_FAKE_HALVES, -1},
    [KG_FAKE_OTHER_FEW] = {KG_FAKE_FEW, -1},
    [KG_FAKE_FIFTH] = {KG_FAKE_FEW, KG_FAKE_SLOW, -1},
};
static const int many[][8] = {
    [KG_FAKE_USUAL] = {KG_FAKE_SPLIT, KG_FAKE_STEADY, KG_FAKE_HALVES, KG_FAKE_SLOW, -1},
    [KG_FAKE_NONE_FOR_FEW] = {KG_FAKE_BIG, -1},
    [KG_FAKE_NOTHING] = {KG_FAKE_SPLIT, KG_FAKE_WORKSPACE, -1},
    [KG_FAKE_EMPTY] = {-1},
    [KG_FAKE_OTHER_MANY] = {KG_FAKE_MANY, -1},
    [KG_FAKE_OTHER_WIDE] = {KG_FAKE_WIDE, -1},
    [KG_FAKE_OTHER_HUGE] = {KG_FAKE_HUGE, -1},
    [KG_FAKE_BY_ADDING] = {KG_FAKE_STEADY, -1},
    [KG_FAKE_OTHER_NARROW] = {KG_FAKE_NARROW, -1},
    [KG_FAKE_WRONG] = {KG_FAKE_SHORT, KG_FAKE_STEADY, -1},
    [KG_FAKE_TWO_CLASSES] = {KG_FAKE_FEW, KG_FAKE_HALVES, KG_FAKE_STEADY, -1},
    [KG_FAKE_OTHER_FEW] = {KG_FAKE_SPLIT, KG_FAKE_STEADY, KG_FAKE_HALVES, KG_FAKE_SLOW,
                           -1},
    [KG_FAKE_FIFTH] = {KG_FAKE_HALVES, KG_FAKE_HALVES, KG_FAKE_HALVES, KG_FAKE_HALVES,
                       KG_FAKE_STEADY, -1},
};

static enum kg_fake_mode mode;
static struct kg_fake_last last;
static double now;
static int64_t block = 16;
static bool in_place_only;
static int refused_apart;

EXPORTED void kg_fake_set(enum kg_fake_mode m)
{
    mode = m;
    memset(&last, 0, sizeof last);
}
EXPORTED void kg_fake_add(int64_t factors) { block = factors; }
EXPORTED int kg_fake_in_place(int only)
{
    const int refused = refused_apart;

    in_place_only = only;
    refused_apart = 0;
    return refused;
}
EXPORTED struct kg_fake_last kg_fake_last(void) { return last; }
EXPORTED double kg_fake_seconds(void) { return now; }

/* ---- objects ---- */
struct layout {
    bool used, wide; /* wide: fp32 */
    int64_t rows, cols, stride;
};
struct desc {
    bool a, b; /* transposed */
};
static struct layout layouts[8];
enum { DESCS = 3 };
static struct desc descs[DESCS];
static int n_descs, things;
static uint64_t preferences[9]; /* by attribute */
static char handle;

EXPORTED size_t cublasLtGetVersion(void) { return FAKE_VERSION; }
EXPORTED const char *cublasLtGetStatusName(int status)
{
    return status == KG_LT_NOT_INITIALIZED ? "CUBLAS_STATUS_NOT_INITIALIZED"
                                           : "CUBLAS_STATUS_INVALID_VALUE";
}
EXPORTED int cublasLtCreate(void **lt)
{
    if (FAKE_STATUS == KG_LT_OK) {
        *lt = &handle;
        things++;
    }
    return FAKE_STATUS;
}
EXPORTED int cublasLtDestroy(void *lt)
{
    (void)lt;
    things--;
    return KG_LT_OK;
}
EXPORTED int cublasLtMatmulDescCreate(void **desc, int compute, int scale)
{
    if (compute != KG_LT_COMPUTE_F32 || scale != KG_LT_F32 || n_descs == DESCS)
        return KG_LT_INVALID_VALUE;
    *desc = &descs[n_descs++];
    things++;
    return KG_LT_OK;
}
EXPORTED int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value,
                                            size_t bytes)
{
    int op;

    if (bytes != sizeof op)
        return KG_LT_INVALID_VALUE;
    memcpy(&op, value, sizeof op);
    if (attribute == KG_LT_DESC_TRANSPOSE_A)
        ((struct desc *)desc)->a = op == KG_LT_TRANSPOSED;
    else
        ((struct desc *)desc)->b = op == KG_LT_TRANSPOSED;
    return KG_LT_OK;
}
EXPORTED int cublasLtMatmulDescDestroy(void *desc)
{
    (void)desc; /* all of them are destroyed together */
    n_descs--;
    things--;
    return KG_LT_OK;
}
EXPORTED int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows,
                                        uint64_t cols, int64_t stride)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (!layouts[i].used) {
            layouts[i] = (struct layout){true, type == KG_LT_F32, (int64_t)rows,
                                         (int64_t)cols, stride};
            *layout = &layouts[i];
            things++;
            return KG_LT_OK;
        }
    return KG_LT_INVALID_VALUE;
}
EXPORTED int cublasLtMatrixLayoutDestroy(void *layout)
{
    ((struct layout *)layout)->used = false;
    things--;
    return KG_LT_OK;
}
EXPORTED int cublasLtMatmulPreferenceCreate(void **preference)
{
    memset(preferences, 0xff, sizeof preferences);
    *preference = preferences;
    things++;
    return KG_LT_OK;
}
EXPORTED int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute,
                                                  const void *value, size_t bytes)
{
    (void)preference;
    preferences[attribute] = 0;
    memcpy(&preferences[attribute], value, bytes);
    return KG_LT_OK;
}
EXPORTED int cublasLtMatmulPreferenceDestroy(void *preference)
{
    (void)preference;
    things--;
    return KG_LT_OK;
}
EXPORTED int kg_fake_things(void) { return things; }

/* ---- products ---- */
/* Whether the preferences allow neither a workspace nor split sums, or both. */
static bool asks_rightly(void)
{
    const uint64_t reductions = preferences[KG_LT_PREF_REDUCTIONS];
    bool right = preferences[KG_LT_PREF_WORKSPACE] == 0 ? reductions == 0
                                                        : reductions == KG_LT_REDUCTIONS;

    for (int i = 0; i < 4; i++)
        right = right && preferences[KG_LT_PREF_ALIGNMENT + i] == 16;
    return right;
}

EXPORTED int cublasLtMatmulAlgoGetHeuristic(void *lt, void *desc, void *a, void *b,
                                            void *c, void *d, void *preference, int max,
                                            struct kg_lt_offer *offers, int *n)
{
    static uint64_t unset;
    const struct layout *to = c;
    const int *offered = to->cols > 1024 ? many[mode] : few[mode];

    (void)lt, (void)desc, (void)a, (void)b, (void)preference;
    if (c != d || !asks_rightly())
        return KG_LT_INVALID_VALUE;
    for (*n = 0; *n < max && offered[*n] >= 0; ++*n) {
        offers[*n] = (struct kg_lt_offer){.workspace = plans[offered[*n]].workspace};
        offers[*n].plan.data[0] = (uint64_t)offered[*n];
        offers[*n].plan.data[7] = ++unset; /* bytes without meaning differ each time */
    }
    return KG_LT_OK;
}
EXPORTED int cublasLtMatmulAlgoConfigGetAttribute(const struct kg_lt_plan *plan,
                                                  int attribute, void *value,
                                                  size_t bytes, size_t *written)
{
    /* also for a plan of zeros; a plan's number is its kernel's */
    const uint32_t number = (uint32_t)plan->data[0];
    const uint32_t config[KG_LT_CONFIGS] = {number, number,
                                            (uint32_t)plans[number].split};

    (void)written;
    if (bytes != (attribute < KG_LT_CONFIG_INNER_SHAPE ? 4 : 2))
        return KG_LT_INVALID_VALUE;
    memcpy(value, &config[attribute], bytes);
    return KG_LT_OK;
}

/* One operand as a product reads it: vector v, factor k. */
struct factors {
    const uint16_t *data;
    int64_t vector, factor; /* elements from one to the next */
};
static float factor(struct factors f, int64_t v, int64_t k)
{
    const uint32_t bits = (uint32_t)f.data[v * f.vector + k * f.factor] << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The sums of one vector of the right with n of the left, side by side: left (k, STRIP),
 * right (k). Each sum is added in its own order, as if it were alone. */
enum { STRIP = 128 };

/* Factors from..to, a block at a time. */
static void chain(float *sums, const float *left, const float *right, int64_t from,
                  int64_t to)
{
    double some[STRIP];

    memset(sums, 0, STRIP * sizeof *sums);
    for (int64_t k = from; k < to; k += block) {
        for (int i = 0; i < STRIP; i++)
            some[i] = (double)sums[i];
        for (int64_t l = k; l < k + block && l < to; l++)
            for (int i = 0; i < STRIP; i++)
                some[i] += (double)(left[l * STRIP + i] * right[l]);
        for (int i = 0; i < STRIP; i++)
            sums[i] = (float)some[i];
    }
}

static void from_behind(float *sums, const float *left, const float *right, int64_t n)
{
    memset(sums, 0, STRIP * sizeof *sums);
    for (int64_t k = n; k-- > 0;)
        for (int i = 0; i < STRIP; i++)
            sums[i] += left[k * STRIP + i] * right[k];
}

static void add_up(float *sums, enum order order, const float *left, const float *right,
                   int64_t n)
{
    float second[STRIP];

    if (order == FROM_BEHIND) {
        from_behind(sums, left, right, n);
    } else if (order != IN_HALVES) {
        chain(sums, left, right, 0, order == NOT_ALL ? n - 8 : n);
    } else {
        chain(sums, left, right, 0, n / 2);
        chain(second, left, right, n / 2, n);
        for (int i = 0; i < STRIP; i++)
            sums[i] += second[i];
    }
}

/* old: what is added to, or NULL */
static void store(void *to, bool wide, int64_t at, float sum, const float *old)
{
    uint32_t bits;

    if (wide) {
        ((float *)to)[at] = old ? old[at] + sum : sum;
        return;
    }
    memcpy(&bits, &sum, sizeof bits);
    ((uint16_t *)to)[at] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* returns false: no memory */
static bool multiply(void *d, const struct layout *to, const float *old, enum order order,
                     struct factors a, struct factors b, int64_t k)
{
    float *left = malloc((size_t)k * STRIP * sizeof *left);
    float *right = malloc((size_t)k * sizeof *right);
    const bool room = left && right;
    float sums[STRIP];

    for (int64_t first = 0; room && first < to->rows; first += STRIP) {
        const int64_t n = to->rows - first < STRIP ? to->rows - first : STRIP;

        for (int64_t l = 0; l < k; l++)
            for (int64_t i = 0; i < STRIP; i++)
                left[l * STRIP + i] = i < n ? factor(a, first + i, l) : 0.0f;
        for (int64_t m = 0; m < to->cols; m++) {
            for (int64_t l = 0; l < k; l++)
                right[l] = factor(b, m, l);
            add_up(sums, order, left, right, k);
            for (int64_t i = 0; i < n; i++)
                store(d, to->wide, first + i + m * to->stride, sums[i], old);
        }
    }
    free(left);
    free(right);
    return room;
}

/* Whether the plan supports so many rows and factors. */
static bool makes(size_t plan, int64_t m, int64_t k)
{
    return m >= plans[plan].least && (plans[plan].most == 0 || m <= plans[plan].most) &&
           k >= 8;
}

EXPORTED int FAKE_MATMUL(void *lt, void *desc, const void *alpha, const void *a, void *la,
                         const void *b, void *lb, const void *beta, const void *c,
                         void *lc, void *d, void *ld, const struct kg_lt_plan *plan,
                         void *workspace, size_t workspace_bytes, void *stream)
{
    const struct desc *how = desc;
    const struct layout *al = la, *bl = lb, *to = lc;
    const struct factors left = {a, how->a ? al->stride : 1, how->a ? 1 : al->stride};
    const struct factors right = {b, how->b ? 1 : bl->stride, how->b ? bl->stride : 1};
    const int64_t k = how->a ? al->rows : al->cols;
    const size_t p = (size_t)plan->data[0];
    const struct result made = {to->cols, to->rows, to->wide,
                                *(const float *)beta != 0.0f};

    (void)lt, (void)stream;
    if (lc != ld || workspace_bytes != preferences[KG_LT_PREF_WORKSPACE] ||
        *(const float *)alpha != 1.0f || (how->b ? bl->cols : bl->rows) != k)
        return KG_LT_INVALID_VALUE;
    if (!makes(p, to->cols, k))
        return KG_LT_NOT_SUPPORTED;
    if (in_place_only && c != d) {
        refused_apart++;
        return KG_LT_NOT_SUPPORTED;
    }
    if (plans[p].workspace > 0)
        memset(workspace, 0xff, plans[p].workspace);
    if (!multiply(d, to, made.added_to ? c : NULL,
                  plans[p].order ? plans[p].order(made) : IN_ORDER, left, right, k))
        return KG_LT_NOT_SUPPORTED;
    last = (struct kg_fake_last){(enum kg_fake_plan)p, to->cols, k};
    now += plans[p].seconds;
    return KG_LT_OK;
}
