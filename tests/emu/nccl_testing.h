/* Compiles nccl_fake.c to a fake NCCL in a folder.
 *
 * Included by *_test.c only.
 */
#ifndef KG_EMU_NCCL_TESTING_H
#define KG_EMU_NCCL_TESTING_H

#include "ranks/nccl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define NCCL_FAKE "tests/emu/nccl_fake.c"

/* Values of FAKE_NCCL: each makes one call of an exchange fail at one of three ranks. */
static const char *const nccl_failures[] = {"group_start@2", "send@0", "recv@1",
                                            "group_end@0", "async@2"};
enum { NCCL_FAILURES = sizeof nccl_failures / sizeof *nccl_failures };

/* Makes folder/libnccl.so.2 with this version and name of the send function. Skips the
 * test if there is no compiler. */
static inline void make_nccl(const char *folder, int version, const char *send)
{
    char line[1024];

    if (system("${CC:-cc} --version >/dev/null 2>&1") != 0 ||
        access(NCCL_FAKE, R_OK) != 0) {
        print_message("skip: no C compiler, or not at the top of the tree: no library "
                      "can be made\n");
        skip();
    }
    (void)mkdir(folder, 0777);
    snprintf(line, sizeof line,
             "${CC:-cc} -shared -fPIC -O1 -Isrc -Itests -DFAKE_VERSION=%d -DFAKE_SEND=%s "
             "-o '%s/" KG_NCCL_LIBRARY "' " NCCL_FAKE,
             version, send, folder);
    assert_int_equal(system(line), 0);
}
static inline void make_good_nccl(const char *folder)
{
    make_nccl(folder, 22809, "ncclSend");
}

#endif
