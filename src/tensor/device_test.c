/* Devices by name, and every way in which libkedge_cuda.so can be missing or wrong. No
 * GPU is needed: the test builds its libraries from a few lines of C, and they refuse or
 * compute nothing. */
#include "base/folder_testing.h"
#include "tensor/cuda/library.h"
#include "tensor/device.h"

#include <sys/stat.h>
#include <unistd.h>

static const struct kg_backend *be;

/* Builds a library in dir/NAME/ from C text that uses the names of library.h.   skips
 * without a compiler */
static void make_library(const char *name, const char *text)
{
    char line[1024];

    put("fake.c", text);
    assert_int_equal(mkdir(in_dir(name), 0777), 0);
    snprintf(line, sizeof line,
             "${CC:-cc} -shared -fPIC -Isrc -include tensor/cuda/library.h -o "
             "%s/libkedge_cuda.so %s 2>%s",
             in_dir(name), in_dir("fake.c"), in_dir("said"));
    if (system("${CC:-cc} --version >/dev/null 2>&1") != 0 ||
        access("src/tensor/cuda/library.h", R_OK) != 0) {
        print_message("skip: no C compiler, or not at the top of the tree: no library "
                      "can be made\n");
        skip();
    }
    if (system(line) != 0)
        holds("said", "");
}

#define ABOUT(interface, bytes, version)                                                 \
    "static kg_status devices(char *t, size_t n, struct kg_err *e)"                      \
    "{ (void)t, (void)n, (void)e; return KG_OK; }"                                       \
    "static kg_status list(struct kg_device_list *l, struct kg_err *e)"                  \
    "{ (void)l, (void)e; return KG_OK; }"                                                \
    "static kg_status open_it(const struct kg_backend **be,"                             \
    " const struct kg_cuda_host *h, const struct kg_cuda_opts *o, struct kg_err *e);"    \
    "const struct kg_cuda_about kg_backend_cuda_about = {" interface ", " bytes          \
    ", \"" version "\", \"sm_0\", devices, open_it, list};"
#define OPEN(body)                                                                       \
    "static kg_status open_it(const struct kg_backend **be,"                             \
    " const struct kg_cuda_host *h, const struct kg_cuda_opts *o, struct kg_err *e)"     \
    " {" body "}"
#define OWN ABOUT("KG_CUDA_INTERFACE", "sizeof(struct kg_backend)", KG_VERSION)

static kg_status open_in(const char *folder, int device)
{
    const char *const list[] = {in_dir("nowhere"), in_dir(folder)};

    const struct kg_cuda_opts opts = {
        .device = device, .products = KG_CUDA_CUBLAS, .libraries = "there"};

    return kg_cuda_open_in(&be, list, 2, &opts, &err);
}

static void refuses(const char *folder, kg_status code, const char *says)
{
    assert_int_equal(open_in(folder, 0), code);
    if (!strstr(err.message, says) || strncmp(err.message, "cuda: ", 6) != 0)
        fail_msg("expected \"%s\" in \"%s\"", says, err.message);
}

static void no_library_lists_the_folders(void **state)
{
    char says[300];

    (void)state;
    snprintf(says, sizeof says, "no libkedge_cuda.so in %s, %s (docs/gpu.md",
             in_dir("nowhere"), in_dir("neither"));
    refuses("neither", KG_ENOTFOUND, says);
}

static void a_file_that_is_no_library_is_named(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_dir("text"), 0777), 0);
    put("text/libkedge_cuda.so", "some text, longer than the header of a library is, so "
                                 "that it is read as one\n");
    refuses("text", KG_EFORMAT, in_dir("text/libkedge_cuda.so"));
}

static void a_library_without_the_name_is_refused(void **state)
{
    (void)state;
    make_library("empty", "int something;");
    refuses("empty", KG_EFORMAT, "found one without the symbol kg_backend_cuda_about");
}

/* The library's open() must not run: it would end the test. */
static void a_library_of_another_build_is_refused(void **state)
{
    (void)state;
    make_library("older", ABOUT("KG_CUDA_INTERFACE - 1", "0", "0") OPEN("_exit(9);"));
    refuses("older", KG_ECONFLICT,
            "older/libkedge_cuda.so: expected the library that was ");
    make_library("newer", ABOUT("KG_CUDA_INTERFACE", "0", "9.9") OPEN("_exit(9);"));
    refuses("newer", KG_ECONFLICT,
            "expected the library of kedge " KG_VERSION ", found that of 9.9");
    make_library("slots", ABOUT("KG_CUDA_INTERFACE", "8", KG_VERSION) OPEN("_exit(9);"));
    refuses("slots", KG_ECONFLICT, "bytes), found another one (8 bytes)");
}

static void what_the_library_says_is_passed_on(void **state)
{
    (void)state;
    make_library("refusing",
                 OWN OPEN("memcpy(e->message, \"cuda: no driver\", 16); (void)be, "
                          "(void)h, (void)o; return e->code = KG_EDEVICE;"));
    refuses("refusing", KG_EDEVICE, "cuda: no driver");
}

/* A table with two slots, which call the host's functions. */
static void an_operation_that_is_not_there_is_refused_by_name(void **state)
{
    float x[8] = {0};

    (void)state;
    make_library("bare",
                 OWN "static const struct kg_cuda_host *door;"
                     "static void *alloc(uint64_t n, const char *w, struct kg_err *e)"
                     "{ return door->calloc(1, n, w, e); }"
                     "static void release(void *p) { door->free(p); }"
                     "static const struct kg_backend table = "
                     "{.name = \"cuda\", .alloc = alloc, .free = release};" OPEN(
                         "(void)e; door = h; *be = &table;"
                         "return o->device == 3 && o->products == KG_CUDA_CUBLAS &&"
                         " strcmp(o->libraries, \"there\") == 0 ? KG_OK : KG_EINVAL;"));
    assert_int_equal(open_in("bare", 3), KG_OK);
    assert_string_equal(be->name, "cuda");
    kg_buf_free(be, kg_buf_alloc(be, 64, "test", &err));
    assert_int_equal(kg_op_add(be, kg_vec(x, 8), kg_vec(x, 8), &err), KG_EUNSUPPORTED);
    assert_string_equal(err.message, "backend cuda has no operation add");
}

/* ---- by name ---- */
static kg_status open_by_name(const char *name)
{
    const struct kg_device_opts opts = {.device = name, .bf16 = true};

    return kg_device_open(&be, &opts, &err);
}

static void the_cpu_needs_no_library(void **state)
{
    const struct kg_backend *want;

    (void)state;
    assert_int_equal(kg_backend_open(&want, NULL, &err), KG_OK);
    assert_int_equal(open_by_name("cpu"), KG_OK);
    assert_ptr_equal(be, want);
    assert_int_equal(open_by_name(NULL), KG_OK);
    assert_ptr_equal(be, want);
}

static void names_of_no_device_are_refused(void **state)
{
    static const char *const names[] = {"gpu",     "cuda:",   "cuda:x",
                                        "cuda:-1", "cuda:1 ", "far",
                                        "",        "CUDA",    "cuda:99999999999999"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(open_by_name(names[i]), KG_EINVAL);
        assert_non_null(strstr(err.message, "expected c"));
        assert_non_null(strstr(err.message, names[i]));
    }
}

/* Refused before any library is looked for. */
static void what_has_no_effect_is_refused(void **state)
{
    static const struct {
        struct kg_device_opts opts;
        const char *says;
    } rows[] = {
        {{NULL, "own", NULL, 0, true},
         "products: has an effect only on a GPU, found device cpu"},
        {{"cpu", NULL, "/d", 0, true}, "libraries: has an effect only on a GPU"},
        {{"cpu", NULL, NULL, 1, true}, "unpinned: has an effect only on a GPU"},
        {{"cuda", "own", NULL, 0, false}, "products: has an effect only with bf16"},
        {{"auto", NULL, "/d", 0, false}, "libraries: has an effect only with bf16"},
        {{"cuda", NULL, NULL, 1, false}, "unpinned: has an effect only with bf16"},
        {{"cuda", "own", "/d", 0, true},
         "libraries: has an effect only with products=cublas, found own"},
        {{"cuda", "own", NULL, 1, true},
         "unpinned: has an effect only with products=cublas, found own"},
        {{"cuda", "exact", NULL, 1, true},
         "unpinned: has an effect only with products=cublas, found exact"},
        {{"cuda", "mine", NULL, 0, true}, "expected one of cublas, own, exact"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_not_equal(kg_device_open(&be, &rows[i].opts, &err), KG_OK);
        if (!strstr(err.message, rows[i].says))
            fail_msg("expected \"%s\" in \"%s\"", rows[i].says, err.message);
    }
}

static void products_are_cublas_by_default_where_plans_share_bits(void **state)
{
    static const int majors[] = {9, 10}, others[] = {8, 11, 12, 13};

    (void)state;
    for (size_t i = 0; i < sizeof majors / sizeof *majors; i++)
        assert_int_equal(kg_cuda_products_auto(majors[i]), KG_CUDA_CUBLAS);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(kg_cuda_products_auto(others[i]), KG_CUDA_OWN);
}

/* Whatever this machine has, `auto` opens a backend and describes it in one line. */
static void auto_always_finds_one(void **state)
{
    struct kg_str text = {0};

    (void)state;
    assert_int_equal(open_by_name("auto"), KG_OK);
    assert_non_null(be);
    assert_int_equal(kg_device_say(&text, &err), KG_OK);
    assert_true(text.len > 0 && !strchr(text.data, '\n'));
    kg_str_release(&text);
}

int main(void)
{
#define OF(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        OF(no_library_lists_the_folders),
        OF(a_file_that_is_no_library_is_named),
        OF(a_library_without_the_name_is_refused),
        OF(a_library_of_another_build_is_refused),
        OF(what_the_library_says_is_passed_on),
        OF(an_operation_that_is_not_there_is_refused_by_name),
        cmocka_unit_test(the_cpu_needs_no_library),
        cmocka_unit_test(names_of_no_device_are_refused),
        cmocka_unit_test(what_has_no_effect_is_refused),
        cmocka_unit_test(products_are_cublas_by_default_where_plans_share_bits),
        cmocka_unit_test(auto_always_finds_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
