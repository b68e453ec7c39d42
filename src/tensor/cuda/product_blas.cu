/* Products of bf16 by cuBLASLt, such that a row's bits do not depend on the number of
 * rows.
 *
 * The library has many plans for a product. Each adds in its own order, and the plans for
 * few rows differ from those for many. So for every weight (pinned: kind, N, K, type of
 * C, whether C is added to) one plan is the reference and defines the bits: among the
 * first four offered for 4,096 rows, the one whose bits most plans for few rows give, a
 * rule without timing. Few rows are computed by the fastest plan with these bits, kedge's
 * own kernels included. Nothing is assumed: a plan is tried with exactly the number of
 * rows of its use, on data whose sums cancel. If none passes, rows of zeros are added up
 * to a number for which one does. So timing affects speed, never bits, and the order of
 * trials has no effect.
 *
 *   rows 1..1,024      each number is tried at its first use, with the plans offered for
 *                      16, 64, 256 or 1,024 rows, and the reference
 *   more               the reference, for up to 4,096 rows at a time; each number of rows
 *                      is tried, and if it fails the rows are computed 1,024 at a time
 *   sums over tokens   the first plan offered for a chunk of KG_PRODUCT_CHUNK, chunk by
 *                      chunk: C has the shape of the weight, so only the length of the
 *                      last chunk varies; or one of kedge's kernels, which writes C
 *                      once, if it has those bits and is faster
 *
 * Trials compare digests of rows on the host. They run between the products, so the first
 * product with a number of rows must not be within the capture of a graph. Their memory
 * is reserved when a model is opened (kg_op_reserve), so that no trial fails during a run
 * because the device is full; only a shape without a reservation takes more.
 * Shapes whose rows the library cannot read aligned (takes) always use kedge's kernels.
 */
#include "tensor/cuda/blas.h"
#include "tensor/cuda/cuda_internal.h"
#include <stdio.h>

extern "C" {
#include "base/mem.h"
#include "tensor/cuda/boxes.h"
#include "tensor/cuda/probe.h"
}

enum {
    BUCKETS = 5,
    REFERENCES = 4,
    OFFERED = 16,
    CHOICES = OFFERED + 3 /* two of kedge's, the reference */
};
enum { MANY = KG_PRODUCT_TRIED, SMALL = 1024, DISTINCT = 64, PADDED = 255 };
enum { OWN_ROWS = 128, YES = 1, NO };
enum { WGMMA_MORE = 64 /* rows or fewer: not tried, as its tiles have 128 */ };
static const int64_t last_of[BUCKETS] = {16, 64, 256, SMALL, MANY};

/* Stand for kedge's kernels in lists of plans; they compute any number of rows. */
static const struct kg_lt_plan own = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                       UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
static const struct kg_lt_plan wgmma = {{UINT64_MAX}};

/* Plans with the reference's bits, fastest first. */
struct bucket {
    struct kg_lt_plan plans[CHOICES];
    int n;
    bool known;
};

struct pinned {
    struct pinned *next;
    enum kg_matmul_kind kind;
    int64_t n, k;        /* TN: columns and rows of C */
    enum kg_dtype dtype; /* of C */
    bool accumulate;
    struct kg_lt_plan reference;
    const struct kg_lt_plan *tokens; /* TN: kedge's kernel for whole chunks; NULL: none */
    bool tokens_known;
    uint64_t rows[DISTINCT];        /* digests; these and all below: not for TN */
    struct bucket buckets[BUCKETS]; /* the last one: only the reference */
    /* by rows: 0: unknown; index of a plan in the bucket + 1; PADDED: no plan fits */
    uint8_t choice[MANY + 1];
    uint8_t by_own[OWN_ROWS + 1]; /* by rows: 0 unknown, YES, NO */
};
static struct pinned *pins;

/* ---- memory ---- */
/* Memory of a trial, or of padded operands. */
static struct {
    char *memory; /* owned, until kg_cuda_blas_end */
    uint64_t bytes;
} room;

kg_status kg_cuda_blas_reserve(uint64_t bytes, struct kg_err *err)
{
    void *more;

    if (bytes <= room.bytes)
        return KG_OK;
    more = kg_dev_alloc(bytes, "trials of products", err);
    if (!more)
        return err->code;
    if (room.memory)
        kg_cuda_free(room.memory);
    room.memory = (char *)more;
    room.bytes = bytes;
    return KG_OK;
}

/* Bytes of a matrix, such that the next one is aligned. */
static uint64_t bytes_of(struct kg_mat m)
{
    const uint64_t bytes = (uint64_t)(m.rows * m.cols) * kg_dtype_traits(m.dtype)->bytes;

    return (bytes + KG_PRODUCT_ROOM_ALIGN - 1) / KG_PRODUCT_ROOM_ALIGN *
           KG_PRODUCT_ROOM_ALIGN;
}

/* ---- shapes ---- */
static struct kg_mat shaped(enum kg_dtype dtype, int64_t rows, int64_t cols)
{
    return kg_mat(NULL, dtype, rows, cols);
}
static struct kg_mat b_of(const struct pinned *p)
{
    return p->kind == KG_MATMUL_NT ? shaped(KG_BF16, p->n, p->k)
                                   : shaped(KG_BF16, p->k, p->n);
}

static bool is_aligned(struct kg_mat m)
{
    return m.cols % 8 == 0 && m.stride % 8 == 0 && (uintptr_t)m.data % 16 == 0;
}

/* Whether the library computes this product. The number of rows does not affect it. */
static bool takes(struct kg_mat c, struct kg_mat a, struct kg_mat b)
{
    return a.dtype == KG_BF16 && is_aligned(a) && is_aligned(b) && is_aligned(c) &&
           a.cols > 0 && b.rows > 0;
}

/* ---- trials ---- */
enum { WEIGHTS = 4 };

/* Operands of m rows, with which plans are compared. */
struct trial {
    const struct pinned *of;
    int64_t m;
    struct kg_mat a, b, c;
    uint64_t *digests;              /* (m) */
    char *more;                     /* unused memory of room */
    struct kg_mat weights[WEIGHTS]; /* b, and copies if memory is left */
    int n_weights;
};

static __host__ __device__ uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

/* A sign, an exponent of -4..3, and as many random mantissa bits as the type has. */
static __device__ void store_drawn(struct kg_mat m, int64_t r, int64_t c, uint64_t drawn,
                                   bool negative)
{
    const uint32_t high = (uint32_t)(drawn & 0x83ffu) ^ (negative ? 0x8000u : 0u);
    const uint32_t bits = (high + (123u << 7)) << 16 | (uint32_t)(drawn >> 48);

    if (m.dtype == KG_BF16)
        kg_cuda_bf16(m, r)[c] = (uint16_t)(bits >> 16);
    else
        kg_cuda_f32(m, r)[c] = kg_cuda_of_bits(bits);
}

/* Random vectors, which are rows or (down) columns. The second half repeats the first; of
 * a (cancels), only in odd vectors and with the opposite sign. As b's half repeats, too,
 * a sum with an odd vector consists of rounding errors alone. */
static __global__ void draw_factors(struct kg_mat m, uint64_t seed, bool down,
                                    bool cancels)
{
    const int64_t r = blockIdx.x, end = kg_cuda_end(m.cols);
    const int64_t half = (down ? m.rows : m.cols) / 2;

    for (int64_t c = kg_cuda_first(); c < end; c += KG_ROW_THREADS) {
        const int64_t vector = down ? c : cancels ? r % DISTINCT : r, k = down ? r : c;
        const bool again = !cancels || vector % 2 == 1;
        const uint64_t at = (uint64_t)(again ? k % half : k);

        store_drawn(m, r, c, scramble(scramble(seed + (uint64_t)vector) + at),
                    cancels && again && k >= half);
    }
}

/* Sums that the product is added to; or (none) NaN, which it must overwrite. */
static __global__ void draw_sums(struct kg_mat m, bool none)
{
    const int64_t r = blockIdx.x, end = kg_cuda_end(m.cols);

    for (int64_t c = kg_cuda_first(); c < end; c += KG_ROW_THREADS)
        if (none)
            kg_cuda_store(m, r, c, NAN);
        else
            store_drawn(m, r, c,
                        scramble(scramble((uint64_t)(r % DISTINCT)) + (uint64_t)c),
                        false);
}

/* Digest of each row's bits, whatever the order of additions; one warp per row. */
static __global__ void digest(uint64_t *digests, struct kg_mat m)
{
    const int64_t r = blockIdx.x;
    uint64_t sum = 0;

    for (int64_t c = threadIdx.x; c < m.cols; c += 32) {
        const uint64_t bits = m.dtype == KG_F32 ? kg_cuda_bits(kg_cuda_f32(m, r)[c])
                                                : kg_cuda_bf16(m, r)[c];

        sum += scramble(scramble((uint64_t)c + 1) + bits);
    }
    for (unsigned by = 16; by > 0; by /= 2)
        sum += (uint64_t)__shfl_xor_sync(~0u, (unsigned long long)sum, by);
    if (threadIdx.x == 0)
        digests[r] = sum;
}

/* A step of a model reads each weight once, from memory. So trials use copies of a weight
 * in turn, as far as memory allows: together they do not fit the cache. */
static void copy_weights(struct trial *t)
{
    const uint64_t bytes = bytes_of(t->b);

    while (t->n_weights < WEIGHTS && t->more + bytes <= room.memory + room.bytes) {
        struct kg_mat *w = &t->weights[t->n_weights++];

        *w = t->b;
        w->data = t->more;
        kg_dev_copy(t->more, t->b.data, bytes);
        t->more += bytes;
    }
}

static kg_status begin_trial(struct trial *t, const struct pinned *p, int64_t m,
                             struct kg_err *err)
{
    *t = {p,  m, shaped(KG_BF16, m, p->k), b_of(p), shaped(p->dtype, m, p->n), NULL, NULL,
          {}, 0};
    const uint64_t a = bytes_of(t->a), b = bytes_of(t->b), c = bytes_of(t->c);

    KG_TRY(kg_cuda_blas_reserve(a + b + c + (uint64_t)m * sizeof *t->digests, err));
    t->a.data = room.memory;
    t->b.data = room.memory + a;
    t->c.data = room.memory + a + b;
    t->digests = (uint64_t *)(room.memory + a + b + c);
    t->more = room.memory + a + b + c + bytes_of(shaped(KG_F32, 2, m));
    KG_LAUNCH(draw_factors, kg_cuda_rows(m, p->k), KG_ROW_THREADS, t->a, 1, false, true);
    KG_LAUNCH(draw_factors, kg_cuda_rows(t->b.rows, t->b.cols), KG_ROW_THREADS, t->b,
              1 << 20, p->kind == KG_MATMUL_NN, false);
    t->weights[0] = t->b;
    t->n_weights = 1;
    return kg_dev_done("trial of a product", err);
}

/* Runs a plan of the library or a kernel of kedge. */
static kg_status run_plan(const struct kg_lt_plan *plan, struct kg_mat c,
                          const float *old, struct kg_mat a, struct kg_mat b,
                          const struct pinned *p, struct kg_err *err)
{
    if (memcmp(plan, &wgmma, sizeof wgmma) == 0)
        return kg_cuda_product_wgmma(c, a, b, p->kind, old, -1)
                   ? KG_OK
                   : kg_fail(err, KG_EUNSUPPORTED, "no wgmma here");
    if (memcmp(plan, &own, sizeof own) != 0)
        return kg_blas_run(plan, c, a, b, p->kind, old, err);
    kg_cuda_product_mma(c, a, b, p->kind, old);
    return KG_OK;
}

/* What a trial's product is added to: c itself, or nothing (NULL). */
static const float *sums_of(const struct trial *t)
{
    return t->of->accumulate ? (const float *)t->c.data : NULL;
}

static kg_status run_trial(const struct trial *t, const struct kg_lt_plan *plan,
                           struct kg_err *err)
{
    return run_plan(plan, t->c, sums_of(t), t->a, t->b, t->of, err);
}

/* digests (m) <- those of the plan's result; EUNSUPPORTED: the plan has none */
static kg_status judge(uint64_t *digests, const struct trial *t,
                       const struct kg_lt_plan *plan, struct kg_err *err)
{
    KG_LAUNCH(draw_sums, kg_cuda_rows(t->m, t->c.cols), KG_ROW_THREADS, t->c,
              !t->of->accumulate);
    KG_TRY(run_trial(t, plan, err));
    KG_LAUNCH(digest, kg_grid(t->m, 1), 32, t->digests, t->c);
    kg_dev_get(digests, t->digests, (uint64_t)t->m * sizeof *digests);
    return kg_dev_done("trial of a product", err);
}

static bool are_all(const uint64_t *digests, int64_t m, const uint64_t rows[DISTINCT])
{
    for (int64_t r = 0; r < m; r++)
        if (digests[r] != rows[r % DISTINCT])
            return false;
    return true;
}

/* *same <- whether the plan gives the reference's bits */
static kg_status compare(bool *same, const struct trial *t, const struct kg_lt_plan *plan,
                         struct kg_err *err)
{
    uint64_t digests[MANY];
    const kg_status status = judge(digests, t, plan, err);

    *same = status == KG_OK && are_all(digests, t->m, t->of->rows);
    return status == KG_EUNSUPPORTED ? KG_OK : status;
}

struct timed {
    const struct trial *t;
    const struct kg_lt_plan *plan;
};

static kg_status run_timed(const void *arg, int i, struct kg_err *err)
{
    const struct timed *of = (const struct timed *)arg;
    const struct trial *t = of->t;

    return run_plan(of->plan, t->c, sums_of(t), t->a, t->weights[i % t->n_weights], t->of,
                    err);
}

/* ---- which plans ---- */
static kg_status offer(struct kg_lt_plan *plans, int *n, int max, const struct pinned *p,
                       int64_t m, struct kg_err *err)
{
    const bool tn = p->kind == KG_MATMUL_TN;
    const struct kg_mat a = tn ? shaped(KG_BF16, KG_PRODUCT_CHUNK, p->k)
                               : shaped(KG_BF16, m, p->k);
    const struct kg_mat b = tn ? shaped(KG_BF16, KG_PRODUCT_CHUNK, p->n) : b_of(p);

    return kg_blas_offer(plans, n, max, shaped(p->dtype, tn ? p->k : m, p->n), a, b,
                         p->kind, err);
}

/* Inserts a plan after those that are as fast: ties keep the library's order. */
static void insert(struct bucket *b, double *seconds, const struct kg_lt_plan *plan,
                   double time)
{
    int i = b->n++;

    for (; i > 0 && seconds[i - 1] > time; i--) {
        seconds[i] = seconds[i - 1];
        b->plans[i] = b->plans[i - 1];
    }
    seconds[i] = time;
    b->plans[i] = *plan;
}

static bool is_among(const struct kg_lt_plan *plans, int n, const struct kg_lt_plan *plan)
{
    uint32_t this_one[KG_LT_CONFIGS], other[KG_LT_CONFIGS];

    kg_blas_describe(this_one, plan);
    for (int i = 0; i < n; i++) {
        kg_blas_describe(other, &plans[i]);
        if (memcmp(other, this_one, sizeof other) == 0)
            return true;
    }
    return false;
}

/* Plans and kernels that may compute m rows; reference: NULL if not chosen yet. */
static kg_status list_choices(struct kg_lt_plan plans[CHOICES], int *n,
                              const struct pinned *p, int64_t m,
                              const struct kg_lt_plan *reference, struct kg_err *err)
{
    KG_TRY(offer(plans, n, OFFERED, p, m, err));
    if (reference && !is_among(plans, *n, reference))
        plans[(*n)++] = *reference;
    if (m > WGMMA_MORE)
        plans[(*n)++] = wgmma;
    plans[(*n)++] = own;
    return KG_OK;
}

static kg_status sift(struct bucket *b, const struct trial *t,
                      const struct kg_lt_plan *plans, int n, struct kg_err *err)
{
    double seconds[CHOICES], time;
    bool same;

    for (int i = 0; i < n; i++) {
        KG_TRY(compare(&same, t, &plans[i], err));
        if (!same)
            continue;
        const struct timed one = {t, &plans[i]};

        KG_TRY(kg_blas_time(&time, run_timed, &one, err));
        insert(b, seconds, &plans[i], time);
    }
    b->known = true;
    return KG_OK;
}

static kg_status fill_bucket(struct pinned *p, int i, struct kg_err *err)
{
    struct kg_lt_plan plans[CHOICES];
    struct trial t;
    int n;

    KG_TRY(list_choices(plans, &n, p, last_of[i], &p->reference, err));
    KG_TRY(begin_trial(&t, p, last_of[i], err));
    copy_weights(&t);
    p->buckets[i].n = 0;
    return sift(&p->buckets[i], &t, plans, n, err);
}

static int bucket_of(int64_t m)
{
    int i = 0;

    while (last_of[i] < m)
        i++;
    return i;
}

static kg_status choose_among(uint8_t *choice, const struct bucket *b,
                              const struct pinned *p, int64_t m, struct kg_err *err)
{
    struct trial t;
    bool same = false;
    int i = -1;

    KG_TRY(begin_trial(&t, p, m, err));
    while (!same && ++i < b->n)
        KG_TRY(compare(&same, &t, &b->plans[i], err));
    *choice = same ? (uint8_t)(i + 1) : (uint8_t)PADDED;
    return KG_OK;
}

/* Chooses for m rows: the first plan of the bucket that gives the reference's bits. */
static kg_status choose(struct pinned *p, int64_t m, struct kg_err *err)
{
    const int i = bucket_of(m);

    if (p->choice[m] != 0)
        return KG_OK;
    if (!p->buckets[i].known)
        KG_TRY(fill_bucket(p, i, err));
    return choose_among(&p->choice[m], &p->buckets[i], p, m, err);
}

/* ---- pinning ---- */
static kg_status refuse(const struct pinned *p, const char *why, struct kg_err *err)
{
    static const char *const kinds[] = {"NT", "NN", "TN"};

    return kg_fail(err, KG_EDEVICE,
                   "cublas %s: %s product of bf16 to %s, N %lld, K %lld: %s; "
                   "products=own needs no cuBLASLt (docs/gpu.md)",
                   kg_blas_version(), kinds[p->kind], kg_dtype_traits(p->dtype)->name,
                   (long long)p->n, (long long)p->k, why);
}

/* A class of plans with the same bits, and its first plan that may be the reference. */
struct plan_class {
    struct kg_lt_plan reference;
    uint64_t rows[DISTINCT]; /* digests */
    int members;             /* plans for 16, 64, 256 and SMALL rows with these bits */
};

/* The bits are those for SMALL rows, in which row r equals row r % DISTINCT. *why <-
 * NULL, or why the plan defines none */
static kg_status define_bits(struct plan_class *c, const char **why,
                             const struct trial *t, struct kg_err *err)
{
    uint64_t digests[SMALL];
    const kg_status status = judge(digests, t, &c->reference, err);

    *why = NULL;
    if (status == KG_EUNSUPPORTED)
        *why = "the algorithm chosen for 4,096 rows cannot compute 1,024";
    if (status != KG_OK)
        return *why ? KG_OK : status;
    memcpy(c->rows, digests, sizeof c->rows);
    if (!are_all(digests, SMALL, c->rows))
        *why = "equal rows of one product have results of different bits";
    return KG_OK;
}

static bool is_new(const struct plan_class *c, const struct plan_class *before, int n)
{
    for (int i = 0; i < n; i++)
        if (memcmp(c->rows, before[i].rows, sizeof c->rows) == 0)
            return false;
    return true;
}

/* classes[0..*n) <- those of the first plans offered for MANY rows, in this order */
static kg_status define_classes(struct plan_class classes[REFERENCES], int *n,
                                const struct pinned *p, struct kg_err *err)
{
    const char *why = "expected a plan without split sums, found none", *this_one;
    struct kg_lt_plan plans[REFERENCES];
    struct trial t;
    int offered;

    *n = 0;
    KG_TRY(offer(plans, &offered, REFERENCES, p, MANY, err));
    KG_TRY(begin_trial(&t, p, SMALL, err));
    for (int i = 0; i < offered; i++) {
        struct plan_class *c = &classes[*n];

        c->reference = plans[i];
        c->members = 0;
        KG_TRY(define_bits(c, &this_one, &t, err));
        if (this_one)
            why = this_one;
        else if (is_new(c, classes, *n))
            ++*n;
    }
    return *n > 0 ? KG_OK : refuse(p, why, err);
}

static kg_status count_members(struct plan_class *classes, int n, const struct pinned *p,
                               int64_t m, struct kg_err *err)
{
    struct kg_lt_plan plans[CHOICES];
    uint64_t digests[SMALL];
    struct trial t;
    int choices;

    KG_TRY(list_choices(plans, &choices, p, m, NULL, err));
    KG_TRY(begin_trial(&t, p, m, err));
    for (int i = 0; i < choices; i++) {
        const kg_status status = judge(digests, &t, &plans[i], err);

        if (status == KG_EUNSUPPORTED)
            continue;
        KG_TRY(status);
        for (int j = 0; j < n; j++)
            classes[j].members += are_all(digests, m, classes[j].rows);
    }
    return KG_OK;
}

/* Chooses the first class with most members: neither times nor earlier choices affect it.
 * A single class is not counted. */
static kg_status choose_class(struct pinned *p, struct kg_err *err)
{
    struct plan_class classes[REFERENCES], *best = classes;
    int n;

    KG_TRY(define_classes(classes, &n, p, err));
    for (int i = 0; n > 1 && last_of[i] <= SMALL; i++)
        KG_TRY(count_members(classes, n, p, last_of[i], err));
    for (int i = 1; i < n; i++)
        if (classes[i].members > best->members)
            best = &classes[i];
    p->reference = best->reference;
    memcpy(p->rows, best->rows, sizeof p->rows);
    return KG_OK;
}

static kg_status pin_tokens(struct pinned *p, struct kg_err *err)
{
    int n;

    KG_TRY(offer(&p->reference, &n, 1, p, MANY, err));
    return n > 0 ? KG_OK
                 : refuse(p, "expected a plan without split sums, found none", err);
}

static kg_status pin(struct pinned *p, struct kg_err *err)
{
    if (p->kind == KG_MATMUL_TN)
        return pin_tokens(p, err);
    KG_TRY(choose_class(p, err));
    p->buckets[BUCKETS - 1].plans[0] = p->reference;
    p->buckets[BUCKETS - 1].n = 1;
    p->buckets[BUCKETS - 1].known = true;
    return KG_OK;
}

static bool is_of(const struct pinned *p, struct kg_mat c, int64_t k,
                  enum kg_matmul_kind kind, bool accumulate)
{
    return p->kind == kind && p->n == c.cols && p->k == k && p->dtype == c.dtype &&
           p->accumulate == accumulate;
}

static kg_status find(struct pinned **found, struct kg_mat c, int64_t k,
                      enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    struct pinned *p = pins;
    kg_status status;

    while (p && !is_of(p, c, k, kind, accumulate))
        p = p->next;
    *found = p;
    if (p)
        return KG_OK;
    p = (struct pinned *)kg_mem_calloc(1, sizeof *p, "plans of a product", err);
    if (!p)
        return KG_ENOMEM;
    p->kind = kind;
    p->n = c.cols;
    p->k = k;
    p->dtype = c.dtype;
    p->accumulate = accumulate;
    status = pin(p, err);
    if (status != KG_OK) {
        kg_mem_free(p);
        return status;
    }
    p->next = pins;
    *found = pins = p;
    return KG_OK;
}

/* ---- running ---- */
/* Rows of a product: c = a b, or old + a b. */
struct rows {
    struct kg_mat c;
    const float *old; /* in c's layout; NULL: none */
    struct kg_mat a, b;
};

static struct rows rows_of(struct rows of, int64_t first, int64_t n)
{
    return {kg_mat_rows(of.c, first, n), of.old ? of.old + first * of.c.stride : NULL,
            kg_mat_rows(of.a, first, n), of.b};
}

static kg_status run_padded(const struct kg_lt_plan *plan, int64_t rows, struct rows of,
                            const struct pinned *p, struct kg_err *err)
{
    const struct kg_mat a = of.a, c = of.c;
    struct kg_mat old = c;

    struct kg_mat wide_a = shaped(a.dtype, rows, a.cols);
    struct kg_mat wide_c = shaped(c.dtype, rows, c.cols);
    const uint64_t bytes = bytes_of(wide_a) + bytes_of(wide_c);

    KG_TRY(kg_cuda_blas_reserve(bytes, err));
    wide_a.data = room.memory;
    wide_c.data = room.memory + bytes_of(wide_a);
    kg_dev_zero(room.memory, bytes);
    KG_TRY(kg_cuda_cast(kg_mat_rows(wide_a, 0, a.rows), a, err));
    old.data = const_cast<float *>(of.old);
    if (of.old)
        KG_TRY(kg_cuda_cast(kg_mat_rows(wide_c, 0, c.rows), old, err));
    KG_TRY(run_plan(plan, wide_c, of.old ? (const float *)wide_c.data : NULL, wide_a,
                    of.b, p, err));
    return kg_cuda_cast(c, kg_mat_rows(wide_c, 0, c.rows), err);
}

/* *plan <- one that gives the bits for *m rows. If none does, *m <- the next last row
 * count of a bucket for which one does; for SMALL the reference does. */
static kg_status choose_plan(const struct kg_lt_plan **plan, int64_t *m, struct pinned *p,
                             struct kg_err *err)
{
    KG_TRY(choose(p, *m, err));
    for (int i = bucket_of(*m); p->choice[*m] == PADDED && last_of[i] <= SMALL; i++) {
        *m = last_of[i];
        KG_TRY(choose(p, *m, err));
    }
    if (p->choice[*m] == PADDED)
        return refuse(p, "no plan gives the bits of an earlier trial", err);
    *plan = &p->buckets[bucket_of(*m)].plans[p->choice[*m] - 1];
    return KG_OK;
}

/* *m <- how many of the remaining rows to compute at once */
static kg_status choose_piece(int64_t *m, struct pinned *p, int64_t left,
                              struct kg_err *err)
{
    *m = kg_cuda_min(left, MANY);
    if (*m <= SMALL)
        return KG_OK;
    KG_TRY(choose(p, *m, err));
    if (p->choice[*m] == PADDED)
        *m = SMALL;
    return KG_OK;
}

static kg_status run_rows(struct rows of, enum kg_matmul_kind kind, struct kg_err *err)
{
    const struct kg_lt_plan *plan;
    struct pinned *p;

    KG_TRY(find(&p, of.c, of.a.cols, kind, of.old != NULL, err));
    for (int64_t first = 0, m, made; first < of.a.rows; first += m) {
        KG_TRY(choose_piece(&m, p, of.a.rows - first, err));
        const struct rows some = rows_of(of, first, m);
        made = m;
        KG_TRY(choose_plan(&plan, &made, p, err));
        KG_TRY(made == m ? run_plan(plan, some.c, some.old, some.a, some.b, p, err)
                         : run_padded(plan, made, some, p, err));
    }
    return KG_OK;
}

/* Chunk by chunk, by the reference. If it does not support the length of the last chunk,
 * kedge's kernel computes that one. */
static kg_status run_chunks(const struct pinned *p, struct kg_mat c, const float *old,
                            struct kg_mat a, struct kg_mat b, struct kg_err *err)
{
    for (int64_t first = 0; first < a.rows; first += KG_PRODUCT_CHUNK) {
        const int64_t k = kg_cuda_min(a.rows - first, KG_PRODUCT_CHUNK);
        const struct kg_mat ak = kg_mat_rows(a, first, k), bk = kg_mat_rows(b, first, k);
        const float *add = first > 0 ? (const float *)c.data : old;
        const kg_status status = kg_blas_run(&p->reference, c, ak, bk, KG_MATMUL_TN, add,
                                             err);

        if (status == KG_EUNSUPPORTED && k == KG_PRODUCT_CHUNK)
            return refuse(
                p, "the algorithm chosen for sums over tokens cannot add 1,024 of them",
                err);
        if (status == KG_EUNSUPPORTED)
            kg_cuda_product_mma(c, ak, bk, KG_MATMUL_TN, add);
        else
            KG_TRY(status);
    }
    return KG_OK;
}

/* ---- sums over tokens at once ---- */
/* By a kernel of kedge; plan NULL: chunk by chunk. */
static kg_status run_all(const struct kg_lt_plan *plan, const struct pinned *p,
                         struct kg_mat c, const float *old, struct kg_mat a,
                         struct kg_mat b, struct kg_err *err)
{
    if (!plan)
        return run_chunks(p, c, old, a, b, err);
    if (plan == &own)
        kg_cuda_product_mma(c, a, b, KG_MATMUL_TN, old);
    else if (!kg_cuda_product_wgmma(c, a, b, KG_MATMUL_TN, old, -1))
        return run_chunks(p, c, old, a, b, err); /* wgmma was left out since the trial */
    return KG_OK;
}

/* Two chunks, in each of which sums cancel. (If one chunk cancelled the other, any kernel
 * would give zeros.) *fits <- whether `room` is large enough; it is not enlarged. */
static kg_status begin_tokens(bool *fits, struct trial *t, const struct pinned *p,
                              struct kg_err *err)
{
    const int64_t tokens = 2 * KG_PRODUCT_CHUNK;

    *t = {p,
          p->k,
          shaped(KG_BF16, tokens, p->k),
          shaped(KG_BF16, tokens, p->n),
          shaped(p->dtype, p->k, p->n),
          NULL,
          NULL,
          {},
          0};
    const uint64_t a = bytes_of(t->a), b = bytes_of(t->b), c = bytes_of(t->c);

    *fits = a + b + c + (uint64_t)(t->m + 1) * sizeof *t->digests <= room.bytes;
    if (!*fits)
        return KG_OK;
    t->a.data = room.memory;
    t->b.data = room.memory + a;
    t->c.data = room.memory + a + b;
    t->digests = (uint64_t *)(room.memory + a + b + c);
    for (int64_t first = 0; first < tokens; first += KG_PRODUCT_CHUNK) {
        const struct kg_mat ak = kg_mat_rows(t->a, first, KG_PRODUCT_CHUNK);
        const struct kg_mat bk = kg_mat_rows(t->b, first, KG_PRODUCT_CHUNK);

        KG_LAUNCH(draw_factors, kg_cuda_rows(ak.rows, ak.cols), KG_ROW_THREADS, ak,
                  first + 1, true, true);
        KG_LAUNCH(draw_factors, kg_cuda_rows(bk.rows, bk.cols), KG_ROW_THREADS, bk,
                  first + (1 << 20), true, false);
    }
    return kg_dev_done("trial of a product", err);
}

/* *all <- the digest of the digests of c's rows */
static kg_status judge_tokens(uint64_t *all, const struct trial *t,
                              const struct kg_lt_plan *plan, bool add, struct kg_err *err)
{
    KG_LAUNCH(draw_sums, kg_cuda_rows(t->m, t->c.cols), KG_ROW_THREADS, t->c, !add);
    KG_TRY(run_all(plan, t->of, t->c, add ? (const float *)t->c.data : NULL, t->a, t->b,
                   err));
    KG_LAUNCH(digest, kg_grid(t->m, 1), 32, t->digests, t->c);
    KG_LAUNCH(digest, kg_grid(1, 1), 32, t->digests + t->m,
              kg_mat(t->digests, KG_F32, 1, 2 * t->m));
    kg_dev_get(all, t->digests + t->m, sizeof *all);
    return kg_dev_done("trial of a product", err);
}

static kg_status run_timed_tokens(const void *arg, int i, struct kg_err *err)
{
    const struct timed *of = (const struct timed *)arg;
    const struct trial *t = of->t;

    (void)i;
    return run_all(of->plan, t->of, t->c, (const float *)t->c.data, t->a, t->b, err);
}

/* p->tokens <- the fastest kernel of kedge with the bits of chunk by chunk, if faster */
static kg_status try_tokens(struct pinned *p, struct kg_err *err)
{
    const struct kg_lt_plan *const plans[] = {NULL, &wgmma, &own};
    uint64_t want[2], got[2];
    double best = 0, time;
    struct trial t;
    bool fits;

    KG_TRY(begin_tokens(&fits, &t, p, err));
    for (int i = 0; fits && i < 3; i++) {
        const struct timed one = {&t, plans[i]};

        if (plans[i] == &wgmma && kg_dev_hoppers() == 0)
            continue;
        for (int add = 0; add < 2; add++)
            KG_TRY(judge_tokens(i == 0 ? &want[add] : &got[add], &t, plans[i], add, err));
        if (i > 0 && memcmp(want, got, sizeof want) != 0)
            continue;
        KG_TRY(kg_blas_time(&time, run_timed_tokens, &one, err));
        if (i > 0 && time >= best)
            continue;
        best = time;
        p->tokens = plans[i];
    }
    return KG_OK;
}

/* Whole chunks by kedge's kernel, if one is chosen. It was not tried with a shorter
 * chunk, whose bits may not be the reference's (run_chunks). */
static kg_status run_tokens(struct kg_mat c, const float *old, struct kg_mat a,
                            struct kg_mat b, struct kg_err *err)
{
    struct pinned *p;

    KG_TRY(find(&p, c, c.rows, KG_MATMUL_TN, true, err));
    if (!p->tokens_known)
        KG_TRY(try_tokens(p, err));
    p->tokens_known = true;
    const int64_t whole = a.rows / KG_PRODUCT_CHUNK * KG_PRODUCT_CHUNK;

    if (p->tokens && whole > 0)
        KG_TRY(run_all(p->tokens, p, c, old, kg_mat_rows(a, 0, whole),
                       kg_mat_rows(b, 0, whole), err));
    const int64_t done = p->tokens ? whole : 0;

    return run_chunks(p, c, done > 0 ? (const float *)c.data : old,
                      kg_mat_rows(a, done, a.rows - done),
                      kg_mat_rows(b, done, a.rows - done), err);
}

kg_status kg_cuda_product_blas(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                               enum kg_matmul_kind kind, const float *old,
                               struct kg_err *err)
{
    if (takes(c, a, b) && kg_cuda_is_unpinned())
        return kg_cuda_product_fastest(c, a, b, kind, old, err);
    if (takes(c, a, b))
        return kind == KG_MATMUL_TN ? run_tokens(c, old, a, b, err)
                                    : run_rows({c, old, a, b}, kind, err);
    kg_cuda_product_mma(c, a, b, kind, old);
    return KG_OK;
}

kg_status kg_cuda_blas_is_own(bool *is, struct kg_mat c, struct kg_mat a, struct kg_mat b,
                              struct kg_err *err)
{
    struct pinned *p;
    struct trial t;

    *is = !takes(c, a, b);
    if (*is || kg_cuda_is_unpinned() || a.rows > OWN_ROWS)
        return KG_OK;
    KG_TRY(find(&p, c, a.cols, KG_MATMUL_NT, false, err));
    if (p->by_own[a.rows] == 0) {
        KG_TRY(begin_trial(&t, p, a.rows, err));
        KG_TRY(compare(is, &t, &own, err));
        p->by_own[a.rows] = *is ? YES : NO;
    }
    *is = p->by_own[a.rows] == YES;
    return KG_OK;
}

/* ---- measurements for a table of plans ---- */
/* row <- tried, members, fastest_seconds and own_seconds, for the rows of a trial */
static kg_status measure_class(struct kg_plan_row *row, const struct trial *t,
                               struct kg_err *err)
{
    struct kg_lt_plan plans[CHOICES];
    double time;
    bool same;

    KG_TRY(list_choices(plans, &row->tried, t->of, t->m, &t->of->reference, err));
    for (int i = 0; i < row->tried; i++) {
        const struct timed one = {t, &plans[i]};
        const kg_status status = run_trial(t, &plans[i], err);

        if (status == KG_EUNSUPPORTED)
            continue;
        KG_TRY(status);
        KG_TRY(compare(&same, t, &plans[i], err));
        row->members += same;
        KG_TRY(kg_blas_time(&time, run_timed, &one, err));
        time /= 2 * KG_DEV_REPEATS;
        row->own_seconds = time; /* own is the last one */
        if (i == 0 || time < row->fastest_seconds)
            row->fastest_seconds = time;
    }
    return KG_OK;
}

kg_status kg_cuda_plans(struct kg_plan_row *row, int64_t rows, int64_t n, int64_t k,
                        struct kg_err *err)
{
    const struct kg_lt_plan *plan;
    struct pinned *p;
    struct trial t;

    memset(row, 0, sizeof *row);
    KG_TRY(find(&p, shaped(KG_F32, rows, n), k, KG_MATMUL_NT, false, err));
    kg_blas_describe(row->config, &p->reference);
    KG_TRY(choose_piece(&row->made, p, rows, err));
    KG_TRY(choose_plan(&plan, &row->made, p, err));
    KG_TRY(begin_trial(&t, p, row->made, err));
    copy_weights(&t);
    const struct timed one = {&t, plan};

    KG_TRY(kg_blas_time(&row->seconds, run_timed, &one, err));
    row->seconds /= 2 * KG_DEV_REPEATS;
    KG_TRY(begin_trial(&t, p, rows, err));
    copy_weights(&t);
    return measure_class(row, &t, err);
}

/* ---- identity of library and bits ---- */
/* Hashes the plans from which a reference is chosen, in their order. */
static uint64_t hash_offers(uint64_t hash, const struct pinned *p, int64_t m)
{
    struct kg_lt_plan plans[OFFERED];
    uint32_t config[KG_LT_CONFIGS];
    struct kg_err none;
    int n;

    (void)offer(plans, &n, m == MANY ? REFERENCES : OFFERED, p, m, &none);
    for (int i = 0; i < n; i++) {
        kg_blas_describe(config, &plans[i]);
        for (int j = 0; j < KG_LT_CONFIGS; j++)
            hash = scramble(hash + config[j]);
    }
    return scramble(hash + (uint64_t)n);
}

/* Hash of the offers for weights of a few shapes; runs no product. */
static uint64_t references(void)
{
    static const int64_t shapes[][2] = {
        {896, 896}, {4864, 896}, {896, 4864}, {4096, 3584}};
    uint64_t hash = 0;

    for (size_t i = 0; i < 3 * sizeof shapes / sizeof *shapes; i++) {
        struct pinned p;

        memset(&p, 0, sizeof p);
        p.kind = (enum kg_matmul_kind)(i % 3);
        p.n = shapes[i / 3][0];
        p.k = shapes[i / 3][1];
        for (int b = 0; b < BUCKETS; b++)
            hash = hash_offers(hash, &p, last_of[b]);
    }
    return hash;
}

void kg_cuda_blas_identity(char *text, size_t bytes)
{
    if (kg_cuda_is_unpinned())
        snprintf(text, bytes, "cublas %s, unpinned", kg_blas_version());
    else
        snprintf(text, bytes, "cublas %s, plans %016llx", kg_blas_version(),
                 (unsigned long long)references());
}

void kg_cuda_blas_end(void)
{
    kg_cuda_forget();
    while (pins) {
        struct pinned *p = pins;

        pins = p->next;
        kg_mem_free(p);
    }
    if (room.memory)
        kg_dev_free(room.memory);
    memset(&room, 0, sizeof room);
    kg_cuda_unpinned_end();
    kg_blas_close();
}
