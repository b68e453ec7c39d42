/* Asynchronous operations of a device's threads: copies to shared memory, boxes of
 * matrices, writes for products, and products of four warps (dev.h, hopper.h).
 *
 * Each is done as late as possible, when a thread waits for it. Until then its
 * destination has bytes of 0xff, which are NaN, and its operands must not change. So a
 * read before the wait, or memory that is reused too early, shows in the results.
 */
#include "emu/emu_internal.h"

#include "base/simd.h"
#include "tensor/cuda/boxes.h"

#include <string.h>

enum { COPY_BYTES = 16, COPIES = 256, GROUPS = 32 };
enum { BARRIERS = 64, BOXES = 64, ATOM = 1024 };
/* columns in units of two bytes: of a bf16 box, which is swizzled, and of an fp32 box */
enum { BOX_COLS = 64, FP32_BOX_COLS = 8 };
enum { PRODUCTS = 32, HELD = 4, WRITES = 32 };

static unsigned n_threads;

static unsigned here(void) { return kg_emu_thread.x; }

/* ---- copies ---- */
/* Copies that a thread has begun and not waited for. */
static struct copies {
    struct copy {
        void *to;
        const void *from;
        int bytes;
    } list[COPIES];
    int n, groups;
    int ends[GROUPS]; /* copies in groups 0 to g */
} copies[KG_EMU_THREADS];

void kg_emu_copy(void *to, const void *from, int bytes, int line)
{
    struct copies *c = &copies[here()];

    if (((uintptr_t)to | (uintptr_t)from) % COPY_BYTES)
        kg_emu_blame("a copy at line %d begins at no multiple of %d", line,
                     (int)COPY_BYTES);
    if (bytes < 0 || bytes > COPY_BYTES || c->n == COPIES)
        kg_emu_blame("copy %d at line %d, of %d bytes: expected %d at most, of %d", c->n,
                     line, bytes, (int)COPIES, (int)COPY_BYTES);
    memset(to, 0xff, COPY_BYTES);
    c->list[c->n++] = (struct copy){to, from, bytes};
}

void kg_emu_copies_end(void)
{
    struct copies *c = &copies[here()];

    if (c->groups == GROUPS)
        kg_emu_blame("more than %d groups of copies", (int)GROUPS);
    c->ends[c->groups++] = c->n;
}

void kg_emu_copies_wait(int n)
{
    struct copies *c = &copies[here()];
    const int over = c->groups - n; /* groups */
    const int end = over > 0 ? c->ends[over - 1] : 0;

    for (int i = 0; i < end; i++) {
        const struct copy *one = &c->list[i];

        memset(one->to, 0, COPY_BYTES);
        memcpy(one->to, one->from, (size_t)one->bytes);
    }
    if (over <= 0)
        return;
    c->n -= end;
    c->groups = n;
    memmove(c->list, c->list + end, (size_t)c->n * sizeof *c->list);
    for (int g = 0; g < n; g++)
        c->ends[g] = c->ends[g + over] - end;
}

/* ---- barriers ---- */
/* A box that has not arrived in shared memory. */
struct box {
    char *to;
    struct kg_emu_matrix from;
    int64_t row, col;
};

static struct barrier {
    const void *at;
    int expected, arrived;
    int64_t bytes; /* expected in the phase, minus those of its boxes */
    unsigned phase;
    struct box boxes[BOXES];
    int n_boxes;
} barriers[BARRIERS];
static int n_barriers;
static const struct barrier *awaited[KG_EMU_THREADS]; /* by sleeping threads */

static struct barrier *barrier_at(const void *at, int line)
{
    for (int i = 0; i < n_barriers; i++)
        if (barriers[i].at == at)
            return &barriers[i];
    kg_emu_blame("what is at line %d is no barrier", line);
}

void kg_emu_barrier_init(const void *at, int expected)
{
    if (n_barriers == BARRIERS)
        kg_emu_blame("more than %d barriers in shared memory", (int)BARRIERS);
    barriers[n_barriers++] = (struct barrier){.at = at, .expected = expected};
}

static int64_t box_bytes(const struct box *b)
{
    return (int64_t)b->from.rows_of_box * b->from.cols_of_box * 2;
}

static void deliver(const struct box *b)
{
    const int cols = b->from.cols_of_box;

    for (int r = 0; r < b->from.rows_of_box; r++)
        for (int c = 0; c < cols; c++) {
            const int64_t row = b->row + r, col = b->col + c;
            const bool inside = row < b->from.rows && col < b->from.cols;
            const uint16_t x = inside ? b->from.data[row * b->from.stride + col] : 0;
            char *const to = b->to + (r * cols + c) * 2;

            memcpy(cols == BOX_COLS ? kg_emu_placed(to) : to, &x, sizeof x);
        }
}

static bool is_awaited(const struct barrier *b)
{
    unsigned t = 0;

    while (t < n_threads && awaited[t] != b)
        t++;
    return t < n_threads;
}

/* If all have arrived, delivers the boxes, but not before a thread waits for them, and
 * wakes the waiting threads. */
static void end_phase(struct barrier *b)
{
    if (b->arrived < b->expected || b->bytes != 0 || (b->n_boxes > 0 && !is_awaited(b)))
        return;
    for (int i = 0; i < b->n_boxes; i++)
        deliver(&b->boxes[i]);
    b->arrived = b->n_boxes = 0;
    b->phase++;
    for (unsigned t = 0; t < n_threads; t++)
        if (awaited[t] == b) {
            awaited[t] = NULL;
            kg_emu_wake(t);
        }
}

void kg_emu_barrier_arrive(const void *at, int bytes, int line)
{
    struct barrier *b = barrier_at(at, line);

    if (b->arrived == b->expected)
        kg_emu_blame("more than %d arrivals at a barrier at line %d", b->expected, line);
    b->bytes += bytes;
    b->arrived++;
    end_phase(b);
}

void kg_emu_barrier_wait(const void *at, int parity, int line)
{
    struct barrier *b = barrier_at(at, line);

    while ((int)(b->phase % 2) == parity) {
        awaited[here()] = b;
        end_phase(b);
        if (awaited[here()])
            kg_emu_sleep(line);
    }
}

void kg_emu_box(char *to, const struct kg_emu_matrix *from, int64_t row, int64_t col,
                const void *at, int line)
{
    struct barrier *b = barrier_at(at, line);
    const struct box box = {to, *from, row, col};

    if ((uintptr_t)to % ATOM || b->n_boxes == BOXES || row < 0 || col < 0)
        kg_emu_blame("box %d at line %d, at (%lld, %lld): expected at most %d, to a "
                     "multiple of %d",
                     b->n_boxes, line, (long long)row, (long long)col, (int)BOXES,
                     (int)ATOM);
    memset(to, 0xff, (size_t)box_bytes(&box));
    b->boxes[b->n_boxes++] = box;
    b->bytes -= box_bytes(&box);
    end_phase(b);
}

/* ---- writes for products ---- */
/* Writes that a thread has begun and not ended: not visible yet. */
static struct writes {
    struct write {
        void *to;
        uint32_t part[4];
    } list[WRITES];
    int n;
} writes[KG_EMU_THREADS];

void kg_emu_write(void *to, const uint32_t part[4], int line)
{
    struct writes *w = &writes[here()];

    if ((uintptr_t)to % COPY_BYTES || w->n == WRITES)
        kg_emu_blame("write %d at line %d: expected %d at most, to a multiple of %d",
                     w->n, line, (int)WRITES, (int)COPY_BYTES);
    memset(to, 0xff, COPY_BYTES);
    w->list[w->n].to = to;
    memcpy(w->list[w->n++].part, part, COPY_BYTES);
}

void kg_emu_writes_end(void)
{
    struct writes *w = &writes[here()];

    for (int i = 0; i < w->n; i++)
        memcpy(w->list[i].to, w->list[i].part, COPY_BYTES);
    w->n = 0;
}

/* ---- products of four warps ---- */
static struct products {
    struct product {
        int cols; /* of d */
        bool adds;
        struct kg_emu_factors a, b;
        const uint32_t *left[4]; /* instead of a: registers of the four lanes of a row */
        int of;                  /* index of its sums in held */
    } list[PRODUCTS];
    int n, groups;
    int ends[GROUPS];
    struct held {
        float *d; /* the thread's; NaN until it has waited for all products into it */
        float sums[KG_EMU_SUMS];
        int cols, n; /* products into it that are not done */
    } held[HELD];
    bool begun;
} products[KG_EMU_THREADS];

static int64_t made;
static bool eights;

int64_t kg_emu_products(void) { return made; }
void kg_emu_eights(bool yes) { eights = yes; }

static void multiply(float *sums, const struct product *p)
{
    made++;
    if (!p->adds)
        memset(sums, 0, (size_t)p->cols / 2 * sizeof *sums);
    kg_emu_sum(sums, p->cols, here(), &p->a, p->left[0] ? p->left : NULL, &p->b, eights);
}

void kg_emu_products_begin(void) { products[here()].begun = true; }

/* The index of sums d; their first product takes them from the thread. */
static int hold(struct products *p, float *d, int cols, int line)
{
    const size_t bytes = (size_t)cols / 2 * sizeof *d;
    int at = HELD;

    for (int i = 0; i < HELD; i++)
        if (p->held[i].n > 0 && p->held[i].d == d)
            return i;
    for (int i = HELD - 1; i >= 0; i--)
        at = p->held[i].n == 0 ? i : at;
    if (at == HELD)
        kg_emu_blame("a product at line %d: expected at most %d sums at a time", line,
                     (int)HELD);
    p->held[at].d = d;
    p->held[at].cols = cols;
    memcpy(p->held[at].sums, d, bytes);
    memset(d, 0xff, bytes);
    return at;
}

static void add_product(float *d, struct product one, int line)
{
    struct products *p = &products[here()];

    if (!p->begun)
        kg_emu_blame("the product at line %d is not begun", line);
    if (p->n == PRODUCTS)
        kg_emu_blame("product %d at line %d: expected at most %d", p->n, line,
                     (int)PRODUCTS);
    one.of = hold(p, d, one.cols, line);
    p->held[one.of].n++;
    p->list[p->n++] = one;
}

void kg_emu_product(float *d, int cols, struct kg_emu_factors a, struct kg_emu_factors b,
                    bool adds, int line)
{
    add_product(d, (struct product){.cols = cols, .adds = adds, .a = a, .b = b}, line);
}

void kg_emu_product_left(float *d, int cols, const uint32_t a[4], struct kg_emu_factors b,
                         bool adds, int line)
{
    const char *all = kg_emu_exchange(~0u, &a, sizeof(void *), NULL, line);
    const unsigned row = here() % KG_EMU_WARP / 4 * 4;
    struct product one = {.cols = cols, .adds = adds, .b = b};

    for (unsigned i = 0; i < 4; i++)
        memcpy(&one.left[i], all + (row + i) * KG_EMU_SHOWN, sizeof one.left[i]);
    add_product(d, one, line);
}

void kg_emu_products_end(void)
{
    struct products *p = &products[here()];

    if (p->groups == GROUPS)
        kg_emu_blame("more than %d groups of products", (int)GROUPS);
    p->ends[p->groups++] = p->n;
}

/* All products are done: gives back the sums, which the thread must not have written. */
static void give_sums(const struct held *h, int line)
{
    const unsigned char *byte = (const unsigned char *)h->d;

    for (size_t i = 0; i < (size_t)h->cols / 2 * sizeof *h->d; i++)
        if (byte[i] != 0xff)
            kg_emu_blame("sums were written before the wait at line %d", line);
    memcpy(h->d, h->sums, (size_t)h->cols / 2 * sizeof *h->d);
}

void kg_emu_products_wait(int n, int line)
{
    struct products *p = &products[here()];
    const int over = p->groups - n, end = over > 0 ? p->ends[over - 1] : 0;

    for (int i = 0; i < end; i++) {
        struct held *h = &p->held[p->list[i].of];

        multiply(h->sums, &p->list[i]);
        if (--h->n == 0)
            give_sums(h, line);
        p->begun = h->n > 0 && p->begun;
    }
    if (over <= 0)
        return;
    p->n -= end;
    p->groups = n;
    memmove(p->list, p->list + end, (size_t)p->n * sizeof *p->list);
    for (int g = 0; g < n; g++)
        p->ends[g] = p->ends[g + over] - end;
}

/* ---- blocks ---- */
void kg_emu_async_begin(unsigned threads)
{
    n_threads = threads;
    n_barriers = 0;
    for (unsigned t = 0; t < threads; t++) {
        copies[t].n = copies[t].groups = 0;
        products[t].n = products[t].groups = 0;
        products[t].begun = false;
        for (int i = 0; i < HELD; i++)
            products[t].held[i].n = 0;
        writes[t].n = 0;
        awaited[t] = NULL;
    }
}

void kg_emu_async_end(unsigned thread)
{
    if (copies[thread].n > 0)
        kg_emu_blame("thread %u ends before %d copies that it began", thread,
                     copies[thread].n);
    if (writes[thread].n > 0)
        kg_emu_blame("thread %u ends before %d writes that it began", thread,
                     writes[thread].n);
    if (products[thread].n > 0)
        kg_emu_blame("thread %u ends before %d products that it began", thread,
                     products[thread].n);
}

int kg_emu_boxes_left(void)
{
    int n = 0;

    for (int i = 0; i < n_barriers; i++)
        n += barriers[i].n_boxes;
    return n;
}

/* ---- the device ---- */
static int multiprocessors = 3;

void kg_emu_hoppers(int n) { multiprocessors = n; }
int kg_dev_hoppers(void) { return multiprocessors; }

bool kg_dev_boxes(struct kg_boxes *boxes, struct kg_mat m, int rows)
{
    const int halves = m.dtype == KG_F32 ? 2 : 1;
    const struct kg_emu_matrix from = {m.data,
                                       m.rows,
                                       m.cols * halves,
                                       m.stride * halves,
                                       rows,
                                       m.dtype == KG_F32 ? FP32_BOX_COLS : BOX_COLS};

    if (((uintptr_t)m.data | (uintptr_t)from.stride * sizeof *from.data) % COPY_BYTES)
        return false;
    memset(boxes, 0, sizeof *boxes);
    memcpy(boxes, &from, sizeof from);
    return true;
}
