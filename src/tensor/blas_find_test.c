/* Where kedge looks for cuBLASLt, and in which order: tested on emulated kernels in a
 * separate process, whose environment the test sets. */
#define _GNU_SOURCE
#include "base/folder_testing.h"
#include "base/str.h"
#include "emu/blas_testing.h"
#include "tensor/backend_testing.h"

#include <link.h>
#include <sys/wait.h>

#define WHEEL "venv/lib/python3.12/site-packages/nvidia/cu13/lib"

/* Runs in the separate process, with the test's environment and CUDA folder: writes what
 * the process finds to `file`. */
static int find_and_say(const char *root, const char *file)
{
    const struct kg_backend *be;
    char text[KG_ERR_MESSAGE_BYTES];

    kg_emu_cuda(root);
    setenv("KEDGE_TEST_PRODUCTS", "cublas", true);
    unsetenv("KEDGE_TEST_LIBRARIES");
    if (kg_emu_open(&be, &err) == KG_OK)
        be->describe(text, sizeof text);
    else
        snprintf(text, sizeof text, "%s", err.message);
    return kg_file_write_atomic(file, text, strlen(text), &err) != KG_OK;
}

/* *path <- the dynamic loader of this program. */
static int find_loader(struct dl_phdr_info *program, size_t bytes, void *path)
{
    (void)bytes;
    for (int i = 0; i < program->dlpi_phnum; i++)
        if (program->dlpi_phdr[i].p_type == PT_INTERP)
            *(const char **)path = (const char *)(program->dlpi_addr +
                                                  program->dlpi_phdr[i].p_vaddr);
    return 1; /* stop: the program is the first entry */
}

static _Noreturn void start_anew(void)
{
    const char *loader = NULL;
    char self[512] = "";

    setenv("LD_LIBRARY_PATH", in_dir("loader"), true);
    setenv("VIRTUAL_ENV", in_dir("venv"), true);
    (void)dl_iterate_phdr(find_loader, &loader);
    if (loader && readlink("/proc/self/exe", self, sizeof self - 1) > 0)
        execl(loader, loader, "--inhibit-cache", self, in_dir("cuda"), in_dir("said"),
              NULL);
    _exit(127);
}

/* said <- what is found in the test's folders, without the loader's cache of this
 * machine.   skips if programs do not start without the cache */
static void search(struct kg_str *said)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0)
        start_anew();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 127) {
        print_message("skip: programs do not start without the loader's cache\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(kg_file_read(said, in_dir("said"), 4096, &err), KG_OK);
}

static void finds(const char *path)
{
    struct kg_str said = {0};
    char want[300];

    snprintf(want, sizeof want, " of %s; ", path);
    search(&said);
    if (!strstr(kg_str_text(&said), want))
        fail_msg("expected \"%s\" in \"%s\"", want, kg_str_text(&said));
    kg_str_release(&said);
}

/* The places, in order: the compiler's CUDA, the loader's path, Python's packages. */
static void the_first_place_that_has_it_is_taken(void **state)
{
    static const char *const places[] = {"cuda/lib64", "cuda/lib", "loader", WHEEL};
    const size_t n = sizeof places / sizeof *places;
    char file[200];

    (void)state;
    make_good_blas("lib");
    for (size_t i = 0; i < n; i++)
        copy_blas(places[i]);
    for (size_t i = 0; i < n; i++) {
        snprintf(file, sizeof file, "%s/" BLAS_FILE, in_dir(places[i]));
        finds(file);
        assert_int_equal(unlink(file), 0);
    }
}

/* Places are listed in order. Those of this machine's Python, which follow, vary. */
static void all_places_are_listed(void **state)
{
    struct kg_str said = {0};
    char want[700];

    (void)state;
    snprintf(want, sizeof want,
             "cublas: no " BLAS_FILE " in %s, %s, the loader's path, "
             "%s/lib/python3*/site-packages/nvidia/cu13/lib, /usr/local/lib/",
             in_dir("cuda/lib64"), in_dir("cuda/lib"), in_dir("venv"));
    search(&said);
    if (strncmp(kg_str_text(&said), "emu, products: cublas ", 22) != 0 &&
        strncmp(kg_str_text(&said), want, strlen(want)) != 0)
        fail_msg("expected \"%s\" in \"%s\"", want, kg_str_text(&said));
    kg_str_release(&said);
}

static void behind_one_that_is_broken_no_other_is_tried(void **state)
{
    struct kg_str said = {0};

    (void)state;
    make_good_blas("lib");
    copy_blas("loader");
    copy_blas(WHEEL);
    assert_int_equal(kg_file_make_dirs(in_dir("cuda/lib"), &err), KG_OK);
    put("cuda/lib/" BLAS_FILE, "some text, longer than the header of a library is, so "
                               "that it is read as one\n");
    search(&said);
    if (!strstr(kg_str_text(&said), in_dir("cuda/lib/" BLAS_FILE)) ||
        strncmp(kg_str_text(&said), "cublas: ", 8) != 0)
        fail_msg("%s", kg_str_text(&said));
    kg_str_release(&said);
}

int main(int argc, char **argv)
{
#define OF(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        OF(the_first_place_that_has_it_is_taken),
        OF(all_places_are_listed),
        OF(behind_one_that_is_broken_no_other_is_tried),
    };
    const struct CMUnitTest none_here[] = {cmocka_unit_test(kernels_are_not_emulated)};

    if (argc == 3)
        return find_and_say(argv[1], argv[2]);
    if (!use_backend("emu"))
        return 0;
    return kg_emu_open ? cmocka_run_group_tests(tests, NULL, NULL)
                       : cmocka_run_group_tests(none_here, NULL, NULL);
}
