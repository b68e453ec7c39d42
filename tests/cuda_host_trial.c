/* The calls that the host side of the CUDA backend makes to CUDA's runtime, a fake one
 * (runtime_fake.h). tests/cuda_driver_test runs `host_trial NAME`, which prints nothing
 * if they are right.
 */
#include "emu/runtime_fake.h"
#include "tensor/cuda/library.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64, LOST = 700, FULL = 2 };

static const struct kg_backend *be;
static struct kg_err err;
static bool is_shown; /* the host can access memory */

#define EXPECT(what)                                                                     \
    do {                                                                                 \
        if (!(what)) {                                                                   \
            printf("line %d: expected %s; %s\n", __LINE__, #what, err.message);          \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static kg_status open_device(int device)
{
    static const struct kg_cuda_host host = {NULL, NULL};
    const struct kg_cuda_opts opts = {
        .device = device, .products = KG_CUDA_EXACT, .shown = is_shown};

    return kg_backend_cuda_about.open(&be, &host, &opts, &err);
}

static char *zeros(void)
{
    char *p = be->alloc(N, "trial", &err);

    EXPECT(p);
    return p;
}

static bool all_are(const char *p, char x)
{
    for (int i = 0; i < N; i++)
        if (p[i] != x)
            return false;
    return true;
}

/* With memory that the host can access, as in tests of operations. */
static void shown(void)
{
    char *p, *q;

    is_shown = true;
    EXPECT(open_device(KG_FAKE_GOOD) == KG_OK);
    p = zeros();
    EXPECT(all_are(p, 0));
    memset(p, 5, N);
    q = zeros();
    EXPECT(be->copy(q, p, N, &err) == KG_OK);
    EXPECT(all_are(p, 5) && all_are(q, 5));
    EXPECT(be->swap(p, q, N, &err) == KG_OK);
}

static void refused(void)
{
    char x[N];

    EXPECT(open_device(KG_FAKE_REFUSED) == KG_EDEVICE);
    EXPECT(strstr(err.message, "no kernels for this architecture"));
    EXPECT(open_device(KG_FAKE_GOOD) == KG_OK);
    EXPECT(be->get(x, zeros(), N, &err) == KG_OK && all_are(x, 0));
    EXPECT(open_device(KG_FAKE_REFUSED) == KG_ECONFLICT);
}

/* The thread that writes a checkpoint: it starts without a current device. */
static void *fetch(void *p)
{
    char *pinned = be->pin(N, "trial", &err);
    char x[N];

    EXPECT(pinned && all_are(pinned, 0));
    EXPECT(be->fetch(pinned, p, N, &err) == KG_OK && all_are(pinned, 5));
    EXPECT(be->get(x, p, N, &err) == KG_OK && all_are(x, 5));
    be->unpin(pinned);
    return NULL;
}

static void thread(void)
{
    char x[N], *p, *q;
    pthread_t other;

    EXPECT(open_device(KG_FAKE_GOOD) == KG_OK);
    p = zeros();
    q = zeros();
    EXPECT(be->put(p, memset(x, 5, N), N, &err) == KG_OK);
    EXPECT(be->copy(q, p, N, &err) == KG_OK); /* asynchronous: fetch must wait */
    EXPECT(pthread_create(&other, NULL, fetch, q) == 0);
    EXPECT(pthread_join(other, NULL) == 0);
}

/* A thread that serves or queries an index: its first call may launch a kernel (here) or
 * allocate (take). */
static void *compute(void *p)
{
    char x[N];

    EXPECT(be->swap(p, (char *)p + N / 2, N / 2, &err) == KG_OK);
    EXPECT(be->put(p, memset(x, 5, N), N, &err) == KG_OK);
    EXPECT(be->get(x, p, N, &err) == KG_OK && all_are(x, 5));
    return NULL;
}

static void *take(void *p)
{
    uint64_t total, left;

    (void)p;
    EXPECT(be->memory(&total, &left, &err) == KG_OK);
    be->free(zeros());
    return NULL;
}

static void threads(void)
{
    void *(*const first[])(void *) = {compute, take};
    char *p;

    EXPECT(open_device(KG_FAKE_GOOD) == KG_OK);
    p = zeros();
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        pthread_t other;

        EXPECT(pthread_create(&other, NULL, first[i], p) == 0);
        EXPECT(pthread_join(other, NULL) == 0);
    }
}

static void later(void)
{
    char *p, *up, *down;
    uint64_t mark;
    bool there;

    EXPECT(open_device(KG_FAKE_GOOD) == KG_OK);
    p = zeros();
    up = be->pin(N, "trial", &err);
    down = be->pin(N, "trial", &err);
    EXPECT(up && down);
    memset(up, 5, N);
    EXPECT(be->put_later(p, up, N, &err) == KG_OK);
    EXPECT(be->get_later(down, p, N, &err) == KG_OK && all_are(down, 0));
    EXPECT(be->mark(&mark, &err) == KG_OK);
    EXPECT(be->reached(&there, mark, &err) == KG_OK && !there);
    EXPECT(be->wait(mark, &err) == KG_OK && all_are(down, 5));
    EXPECT(be->reached(&there, mark, &err) == KG_OK && there);
    be->unpin(up);
    be->unpin(down);
    be->free(p);
}

static void full(void)
{
    EXPECT(open_device(KG_FAKE_GOOD) == KG_OK);
    kg_fake_runtime_fail(FULL);
    EXPECT(!be->alloc(N, "the anchor", &err) && err.code == KG_ENOMEM);
    EXPECT(strcmp(err.message,
                  "the anchor: expected 64 bytes of device memory, found too "
                  "little free") == 0);
    EXPECT(!be->pin(N, "the anchor", &err) && err.code == KG_ENOMEM);
    kg_fake_runtime_fail(0);
    (void)zeros(); /* the error is not reported again */
    kg_fake_runtime_fail(LOST);
    EXPECT(!be->alloc(N, "the anchor", &err) && err.code == KG_EDEVICE);
    EXPECT(strncmp(err.message, "the anchor: error 700", 21) == 0);
    EXPECT(!be->pin(N, "the anchor", &err) && err.code == KG_EDEVICE);
    EXPECT(be->zero(NULL, 1, &err) == KG_EDEVICE);
}

struct step {
    char *to, *from;
    int calls;
    bool looks; /* read while recording, which no recording can contain */
};

static kg_status step(void *arg, struct kg_err *e)
{
    struct step *s = arg;
    char x[N];

    if (++s->calls == 2 && s->looks)
        KG_TRY(be->get(x, s->from, N, e));
    KG_TRY(be->zero(s->to, N, e));
    return be->copy(s->to, s->from, N / 2, e);
}

static void run_steps(struct step *s, uint64_t key)
{
    char x[N];

    for (char i = 1; i <= 4; i++) {
        EXPECT(be->put(s->from, memset(x, i, N), N, &err) == KG_OK);
        EXPECT(be->replay(key, step, s, &err) == KG_OK);
        EXPECT(be->get(x, s->to, N, &err) == KG_OK);
        EXPECT(x[0] == i && x[N / 2 - 1] == i && x[N / 2] == 0 && x[N - 1] == 0);
    }
}

static void record(void)
{
    struct step s = {0};

    EXPECT(open_device(KG_FAKE_GOOD) == KG_OK);
    s.to = zeros();
    s.from = zeros();
    run_steps(&s, 1);
    EXPECT(s.calls == 2 && kg_buf_traffic(be).replays == 3);
    s.calls = 0;
    s.looks = true;
    run_steps(&s, 2); /* runs directly each time: nothing could be recorded */
    EXPECT(s.calls == 5 && kg_buf_traffic(be).replays == 3);
    be->free(s.to); /* no recording uses it any more */
    be->free(s.from);
}

/* Kernels whose shared memory grows with the number of columns: less and more than a
 * block may have. */
static void shared(void)
{
    static const int64_t cols[] = {64, 6200, 8192, 7000, 1024, 6144, 20000, 6200};
    const struct kg_vec none = {NULL, 0};

    EXPECT(open_device(KG_FAKE_GOOD) == KG_OK);
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
        float *const p = be->alloc((uint64_t)cols[i] * sizeof *p, "trial", &err);
        const struct kg_mat m = kg_mat(p, KG_F32, 1, cols[i]);
        const struct kg_vec w = {p, cols[i]}, one = {p, 1};

        EXPECT(p && be->rmsnorm(m, none, m, w, 0.0f, &err) == KG_OK);
        EXPECT(be->rmsnorm_bwd(m, false, none, m, m, w, one, &err) == KG_OK);
        be->free(p);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} trials[] = {{"shown", shown},     {"refused", refused}, {"thread", thread},
              {"later", later},     {"full", full},       {"record", record},
              {"threads", threads}, {"shared", shared}};

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        if (argc > 1 && strcmp(argv[1], trials[i].name) == 0) {
            trials[i].run();
            printf("%s", kg_fake_runtime_fault() ? kg_fake_runtime_fault() : "");
            return kg_fake_runtime_fault() != NULL;
        }
    return 2;
}
