/* `kedge doctor` on a device whose products have other bits than the CPU's, or break a
 * promise. Each test copies the program to its own folder, with a libkedge_cuda.so
 * compiled from a few lines of C. */
#include "base/folder_testing.h"
#include "base/str.h"
#include "emu/nccl_testing.h"
#include "tensor/cuda/library.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Source of the library. Element i of a product is VALUE, which may use the true product
 * `sums`; EXACT(t) says whether the device promises exact products of dtype t. */
static const char library[] =
    "#define QUOTED(x) #x\n"
    "#define TEXT(x) QUOTED(x)\n"
    "static float at(struct kg_mat m, int64_t i)"
    "{ uint32_t u; float f;"
    " if (m.dtype == KG_F32) return ((const float *)m.data)[i];"
    " u = (uint32_t)((const uint16_t *)m.data)[i] << 16; memcpy(&f, &u, 4); return f; }"
    "static float sums[1536 * 2304], right[6912 * 1600];"
    "static void sum(struct kg_mat c, struct kg_mat a, struct kg_mat b, int kind)"
    "{ int64_t M = c.rows, N = c.cols, K = kind == 2 ? a.rows : a.cols, m, n, k;"
    " for (k = 0; k < K; k++) for (n = 0; n < N; n++)"
    "  right[k * N + n] = at(b, kind == 0 ? n * K + k : k * N + n);"
    " memset(sums, 0, (size_t)(M * N) * 4);"
    " for (m = 0; m < M; m++) for (k = 0; k < K; k++)"
    "  { float x = at(a, kind == 2 ? k * M + m : m * K + k), *s = sums + m * N;"
    "  for (n = 0; n < N; n++) s[n] += x * right[k * N + n]; } }"
    "static void set(struct kg_mat c, int64_t i, float x, bool add)"
    "{ uint32_t u;"
    " if (c.dtype == KG_F32) ((float *)c.data)[i] = add ? ((float *)c.data)[i] + x : x;"
    " else memcpy(&u, &x, 4), ((uint16_t *)c.data)[i] = u + 0x8000 >> 16; }"
    "static const struct kg_cuda_host *door;"
    "static kg_status devices(char *t, size_t n, struct kg_err *e)"
    "{ (void)n, (void)e; memcpy(t, \"one of tests\", 13); return KG_OK; }"
    "static void describe(char *t, size_t n)"
    "{ (void)n; memcpy(t, \"cuda, products: of tests\", 25); }"
    "static bool exact(enum kg_dtype t) { return EXACT(t); }"
    "static void *alloc(uint64_t n, const char *w, struct kg_err *e)"
    "{ return door->calloc(1, n, w, e); }"
    "static void release(void *p) { door->free(p); }"
    "static kg_status move(void *to, const void *from, uint64_t n, struct kg_err *e)"
    "{ (void)e; memcpy(to, from, n); return KG_OK; }"
    "static kg_status matmul(struct kg_mat c, struct kg_mat a, struct kg_mat b,"
    " enum kg_matmul_kind kind, bool accumulate, struct kg_err *e)"
    "{ (void)e;"
    " if (strstr(TEXT(VALUE), \"sums\")) sum(c, a, b, kind);"
    " for (int64_t i = 0; i < c.rows * c.cols; i++)"
    "  set(c, i, VALUE, accumulate);"
    " return KG_OK; }"
    "static kg_status memory(uint64_t *total, uint64_t *left, struct kg_err *e)"
    "{ (void)e; *total = 80000000000; *left = 12340000000; return KG_OK; }"
    "static kg_status lend(int *r, int (*call)(void *a, void *s), void *a,"
    " const void *const *m, size_t n, struct kg_err *e)"
    "{ (void)m, (void)n, (void)e; *r = call(a, 0); return KG_OK; }"
    "static const struct kg_backend table = {.name = \"cuda\", .describe = describe,"
    " .exact = exact, .one_caller = true, .memory = memory, .lend = lend, .alloc = "
    "alloc, "
    ".free = "
    "release, .put = move,"
    " .get = move, .matmul = matmul};"
    "static kg_status open_it(const struct kg_backend **be,"
    " const struct kg_cuda_host *h, const struct kg_cuda_opts *o, struct kg_err *e)"
    "{ (void)o, (void)e; door = h; *be = &table; return KG_OK; }"
    "const struct kg_cuda_about kg_backend_cuda_about = {KG_CUDA_INTERFACE,"
    " sizeof(struct kg_backend), KG_VERSION, \"sm_0\", devices, open_it};";

/* Copies the program and compiles its library.   skips the test where either is
 * impossible */
static void make_program(const char *exact, const char *value)
{
    char line[1024];

    if (access("./kedge", X_OK) != 0 || access("src/tensor/backend.h", R_OK) != 0 ||
        system("${CC:-cc} --version >/dev/null 2>&1") != 0) {
        print_message("skip: ./kedge is not built, or no library can be\n");
        skip();
    }
    put("fake.c", library);
    snprintf(line, sizeof line,
             "cp ./kedge %s && ${CC:-cc} -O3 -shared -fPIC -Isrc '-DKG_VERSION=\"%s\"' "
             "'-DEXACT(t)=%s' '-DVALUE=%s' -include string.h -include "
             "tensor/cuda/library.h -o %s %s 2>%s",
             in_dir("kedge"), KG_VERSION, exact, value, in_dir("libkedge_cuda.so"),
             in_dir("fake.c"), in_dir("said"));
    if (system(line) != 0)
        holds("said", "");
}

/* out <- all that doctor prints, on stdout and stderr.   returns its exit status */
static int doctor(struct kg_str *out, const char *flags)
{
    char line[600];
    int status;

    snprintf(line, sizeof line, "%s doctor --device cuda --products own %s >%s 2>&1",
             in_dir("kedge"), flags, in_dir("out"));
    status = system(line);
    kg_str_clear(out);
    assert_int_equal(kg_file_read(out, in_dir("out"), 1 << 16, &err), KG_OK);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void has(const struct kg_str *out, const char *line)
{
    if (!strstr(kg_str_text(out), line))
        fail_msg("expected \"%s\" in \"%s\"", line, kg_str_text(out));
}

#define ROWS       "product keeps its bits for every number of rows and threads\n"
#define VALUES     "product is the sum in double, up to rounding"
#define DEFINITION "product has the bits that kedge defines for every machine"

static void bits_of_its_own_are_other_and_no_failure(void **state)
{
    struct kg_str out = {0};

    (void)state;
    make_program("(t == KG_BF16 && false)", "sums[i]");
    assert_int_equal(doctor(&out, ""), 0);
    has(&out, "device: cuda, products: of tests\n"
              "memory: 80.00 GB, 12.34 of them free\n");
    has(&out, "holds   a row of a fp32 " ROWS);
    has(&out, "holds   a row of a bf16 " ROWS);
    has(&out, "other   an element of a fp32 " DEFINITION "\n");
    has(&out, "other   an element of a bf16 " DEFINITION "\n");
    has(&out, "holds   an element of a fp32 " VALUES "\n");
    has(&out, "holds   an element of a bf16 " VALUES "\n");
    has(&out, "Sampler and trainer agree bit for bit on this machine");
    assert_int_equal(doctor(&out, "--json"), 0);
    has(&out,
        "{\"memory\": {\"total_bytes\": 80000000000, \"free_bytes\": 12340000000}}\n");
    has(&out, "{\"check\": \"definition of bf16 products\", \"result\": \"other\"}\n");
    has(&out,
        "{\"check\": \"row invariance of bf16 products\", \"result\": \"holds\"}\n");
    kg_str_release(&out);
}

static void the_nccl_that_ranks_would_open_is_said(void **state)
{
    struct kg_str out = {0};
    char flags[300], said[400];

    (void)state;
    make_program("(t == KG_BF16 && false)", "sums[i]");
    make_good_nccl(in_dir("nccl"));
    snprintf(flags, sizeof flags, "--nccl %s", in_dir("nccl"));
    assert_int_equal(doctor(&out, flags), 0);
    snprintf(said, sizeof said, "nccl: 2.28.9, %s/libnccl.so.2\n", in_dir("nccl"));
    has(&out, said);
    snprintf(flags, sizeof flags, "--json --nccl %s", in_dir("nccl"));
    assert_int_equal(doctor(&out, flags), 0);
    snprintf(said, sizeof said,
             "{\"nccl\": {\"version\": \"2.28.9\", \"library\": \"%s/libnccl.so.2\"}}\n",
             in_dir("nccl"));
    has(&out, said);
    snprintf(flags, sizeof flags, "--nccl %s", in_dir("nowhere"));
    assert_int_equal(doctor(&out, flags), 1);
    snprintf(said, sizeof said,
             "kedge doctor: --nccl: nccl: no libnccl.so.2 in %s; ranks.link=host needs "
             "no NCCL",
             in_dir("nowhere"));
    has(&out, said);
    kg_str_release(&out);
}

static void a_definition_that_is_promised_must_hold(void **state)
{
    struct kg_str out = {0};

    (void)state;
    make_program("(t == KG_BF16)", "0");
    assert_int_not_equal(doctor(&out, ""), 0);
    has(&out, "other   an element of a fp32 " DEFINITION "\n");
    has(&out, "FAILS   an element of a bf16 " DEFINITION ": ");
    has(&out, "a promise does not hold on this machine");
    assert_null(strstr(kg_str_text(&out), "Sampler and trainer agree"));
    kg_str_release(&out);
}

/* Even a device that promises no bits must give a row the same bits in every batch. */
static void rows_that_change_are_a_failure(void **state)
{
    struct kg_str out = {0};

    (void)state;
    make_program("(t == KG_BF16 && false)", "(float)(c.rows > 16)");
    assert_int_not_equal(doctor(&out, "--json"), 0);
    has(&out, "{\"check\": \"values of bf16 products\", \"result\": \"FAILS\"}\n");
    has(&out,
        "{\"check\": \"row invariance of bf16 products\", \"result\": \"FAILS\"}\n");
    has(&out, "{\"check\": \"definition of bf16 products\", \"result\": \"other\"}\n");
    kg_str_release(&out);
}

/* The device has its own bits, and rows are the same in every batch, but the values are
 * not the product's. */
static void what_is_no_product_is_a_failure(void **state)
{
    struct kg_str out = {0};

    (void)state;
    make_program("(t == KG_BF16 && false)", "sums[i] - (a.dtype == KG_BF16) * 1e-2f");
    assert_int_not_equal(doctor(&out, ""), 0);
    has(&out, "holds   a row of a bf16 " ROWS);
    has(&out, "other   an element of a bf16 " DEFINITION "\n");
    has(&out, "holds   an element of a fp32 " VALUES "\n");
    has(&out, "FAILS   an element of a bf16 " VALUES ": bf16 NT product to fp32, M 1, "
              "N 520, K 896, element (0, 0): expected ");
    kg_str_release(&out);
}

int main(void)
{
#define OF(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        OF(bits_of_its_own_are_other_and_no_failure),
        OF(the_nccl_that_ranks_would_open_is_said),
        OF(a_definition_that_is_promised_must_hold),
        OF(rows_that_change_are_a_failure),
        OF(what_is_no_product_is_a_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
