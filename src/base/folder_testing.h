/* Shared by tests of files: a folder for each test, created before it and removed after
 * it; memory leaks fail the test.
 *
 * Included by *_test.c only.
 */
#ifndef KG_BASE_FOLDER_TESTING_H
#define KG_BASE_FOLDER_TESTING_H

#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;
static char dir[64];

/* A path in the folder, valid until the fourth call after this one. */
static inline const char *in_dir(const char *name)
{
    static char path[4][200];
    static int next;
    char *p = path[next++ % 4];

    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static inline int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kedge-test-XXXXXX");
    memset(&err, 0, sizeof err);
    return mkdtemp(dir) == NULL;
}

static inline int remove_dir(void **state)
{
    (void)state;
    kg_file_fail_at(0, 0);
    kg_mem_fail_at(0);
    return kg_file_remove_tree(dir, &err) != KG_OK || kg_mem_current_bytes() != 0;
}

static inline void put(const char *name, const char *text)
{
    assert_int_equal(kg_file_write_atomic(in_dir(name), text, strlen(text), &err), KG_OK);
}

static inline void holds(const char *name, const char *text)
{
    struct kg_str found = {0};

    assert_int_equal(kg_file_read(&found, in_dir(name), 1 << 24, &err), KG_OK);
    assert_string_equal(kg_str_text(&found), text);
    kg_str_release(&found);
}

#endif
