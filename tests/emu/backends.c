/* The backends of tests, by name, and what the environment chooses for a test program:
 *   KEDGE_TEST_BACKEND     the backend to open if no name is given; logged once
 *   KEDGE_TEST_PRODUCTS    implementation of bf16 products: cublas, own, exact (the
 *                          default), or unpinned: cublas with its fastest plans
 *   KEDGE_TEST_LIBRARIES   the folder of cuBLASLt
 *   KEDGE_TEST_WITHOUT     what a device must not use, separated by commas: replay, draw,
 *                          copies, wgmma, attention
 *   KEDGE_TEST_ONLY        the only test of the program to run
 * The program is linked without this file and reads none of these.
 */
#include "emu/backends.h"
#include "emu/emu.h"
#include "emu/far.h"
#include "tensor/device.h"

#include "base/library.h"
#include "base/log.h"
#include "base/str.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From cmocka; NULL in the program. */
extern void cmocka_set_test_filter(const char *pattern) __attribute__((weak));

__attribute__((constructor)) static void run_only(void)
{
    const char *name = getenv("KEDGE_TEST_ONLY");

    if (name && cmocka_set_test_filter)
        cmocka_set_test_filter(name);
}

static bool is_without(const char *name)
{
    const char *list = getenv("KEDGE_TEST_WITHOUT");
    const size_t n = strlen(name);

    for (; list && *list; list += strcspn(list, ","), list += *list == ',')
        if (strcspn(list, ",") == n && strncmp(list, name, n) == 0)
            return true;
    return false;
}

/* The table without some slots: callers then do as for backends that lack them. */
static const struct kg_backend *less(const struct kg_backend *be)
{
    static struct kg_backend table;

    if (!getenv("KEDGE_TEST_WITHOUT"))
        return be;
    table = *be;
    if (is_without("replay"))
        table.replay = NULL;
    if (is_without("draw"))
        table.draw = NULL, table.feed = NULL;
    if (is_without("copies"))
        table.put_later = NULL, table.get_later = NULL;
    return &table;
}

kg_status kg_device_test_opts(struct kg_cuda_opts *opts, struct kg_err *err)
{
    const char *name = getenv("KEDGE_TEST_PRODUCTS");

    *opts = (struct kg_cuda_opts){.libraries = getenv("KEDGE_TEST_LIBRARIES"),
                                  .unpinned = name && strcmp(name, "unpinned") == 0,
                                  .mma_only = is_without("wgmma"),
                                  .attention_mma_only = is_without("wgmma") ||
                                                        is_without("attention"),
                                  /* tests access device memory, the program does not */
                                  .shown = cmocka_set_test_filter != NULL};
    return kg_cuda_products_find(&opts->products,
                                 opts->unpinned ? "cublas"
                                 : name         ? name
                                                : "exact",
                                 err);
}

/* A test program is some folders below the library of its build. */
static kg_status open_cuda(const struct kg_backend **be, struct kg_err *err)
{
    enum { ABOVE = 5 };
    struct kg_program_folders own;
    struct kg_cuda_opts opts;
    char text[ABOVE][PATH_MAX];
    const char *list[ABOVE];

    KG_TRY(kg_device_test_opts(&opts, err));
    KG_TRY(kg_program_folders(&own, err));
    for (int i = 0; i < ABOVE; i++) {
        snprintf(text[i], PATH_MAX, "%s%.*s", own.list[0], 3 * i, "/../../../../..");
        list[i] = text[i];
    }
    return kg_cuda_open_in(be, list, ABOVE, &opts, err);
}

static const struct {
    const char *name;
    const char *help;
    kg_status (*open)(const struct kg_backend **be, struct kg_err *err);
} backends[] = {
    {"cpu", "the kernels of this machine's processor", kg_backend_open_cpu},
    {"cuda", "an NVIDIA GPU", open_cuda},
    {"far", "the CPU's on memory that the host cannot touch", kg_far_open},
    /* last, because not every machine has a compiler for it */
    {"emu", "kernels for devices, emulated", kg_emu_open},
};

static const char *named_by_environment(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *name = getenv("KEDGE_TEST_BACKEND");

    if (name && !atomic_flag_test_and_set(&said))
        kg_log_info("backend: %s (KEDGE_TEST_BACKEND)", name);
    return name ? name : "cpu";
}

kg_status kg_backend_open_tested(const struct kg_backend **be, const char *name,
                                 struct kg_err *err)
{
    const size_t n = sizeof backends / sizeof *backends - (kg_emu_open == NULL);

    name = name ? name : named_by_environment();
    for (size_t i = 0; i < n; i++)
        if (strcmp(backends[i].name, name) == 0) {
            KG_TRY(backends[i].open(be, err));
            *be = less(*be);
            return KG_OK;
        }
    return kg_str_unknown(KG_ENOTFOUND, "backend", name, backends, n, sizeof *backends,
                          err);
}
