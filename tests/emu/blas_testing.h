/* Compiles blas_fake.c to a fake cuBLASLt in a folder.
 *
 * Included by *_test.c only, after base/folder_testing.h.
 */
#ifndef KG_EMU_BLAS_TESTING_H
#define KG_EMU_BLAS_TESTING_H

#include "emu/blas_fake.h"

#include <sys/stat.h>
#include <unistd.h>

#define BLAS_FILE "libcublasLt.so.13"

/* Makes dir/NAME/libcublasLt.so.13 with this version, status of cublasLtCreate, and name
 * of the product function. Skips the test if there is no compiler. */
static inline void make_blas(const char *name, const char *version, const char *status,
                             const char *matmul)
{
    char line[1024];

    if (system("${CC:-cc} --version >/dev/null 2>&1") != 0 ||
        access("tests/emu/blas_fake.c", R_OK) != 0) {
        print_message("skip: no C compiler, or not at the top of the tree: no library "
                      "can be made\n");
        skip();
    }
    assert_int_equal(mkdir(in_dir(name), 0777), 0);
    snprintf(
        line, sizeof line,
        "${CC:-cc} -shared -fPIC -O2 -ffp-contract=off -Isrc -Itests -DFAKE_VERSION=%s "
        "-DFAKE_STATUS=%s -DFAKE_MATMUL=%s -o %s/" BLAS_FILE
        " tests/emu/blas_fake.c 2>%s",
        version, status, matmul, in_dir(name), in_dir("said"));
    if (system(line) != 0)
        holds("said", "");
}
static inline void make_good_blas(const char *name)
{
    make_blas(name, "130100", "KG_LT_OK", "cublasLtMatmul");
}

/* Copies the fake library of lib/ to `folder`. */
static inline void copy_blas(const char *folder)
{
    char file[200];

    snprintf(file, sizeof file, "%s/" BLAS_FILE, in_dir(folder));
    assert_int_equal(kg_file_make_dirs(in_dir(folder), &err), KG_OK);
    assert_int_equal(kg_file_copy(in_dir("lib/" BLAS_FILE), file, &err), KG_OK);
}

#endif
