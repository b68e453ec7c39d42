/* Fuzz target: a data file in any form: lines, an array, gzip, zstd, Parquet. Reading it
 * twice gives the same records or the same error. As zstd it is also read as one text,
 * which stays within its limit.
 */
#include "base/hash.h"
#include "base/mem.h"
#include "data/jsonl.h"
#include "data/records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int kg_fuzz_records(const uint8_t *bytes, size_t n);

enum { FUZZ_RECORDS = 2000, FUZZ_TEXT = 1 << 20 };

/* Hash of all records and of the final status. */
static uint64_t read_records(const char *path)
{
    struct kg_records *r;
    struct kg_json_doc doc = {0};
    struct kg_err err = {0};
    struct kg_str text = {0};
    uint64_t sum = 0;
    bool more = true;

    if (kg_records_open(&r, path, &err) == KG_OK) {
        for (int i = 0; i < FUZZ_RECORDS && more; i++) {
            if (kg_records_next(r, &doc, &more, &err) != KG_OK || !more)
                break;
            kg_str_clear(&text);
            if (kg_json_type(doc.root) != KG_JSON_OBJECT ||
                kg_json_put_value(&text, doc.root, &err) != KG_OK)
                abort();
            sum = sum * 31 + kg_hash_bytes(text.data, text.len);
        }
        kg_json_release(&doc);
        kg_records_close(r);
    }
    kg_str_release(&text);
    return sum ^ kg_hash_bytes(err.message, strlen(err.message));
}

static void read_zst(const char *path)
{
    struct kg_str text = {0};
    struct kg_err err;

    if (kg_zst_read(&text, path, FUZZ_TEXT, &err) == KG_OK && text.len > FUZZ_TEXT)
        abort();
    kg_str_release(&text);
}

int kg_fuzz_records(const uint8_t *bytes, size_t n)
{
    uint64_t before = kg_mem_current_bytes();
    int fd = (int)syscall(SYS_memfd_create, "records", 1U);
    char path[64];

    if (fd < 0 || (n > 0 && write(fd, bytes, n) != (ssize_t)n))
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (read_records(path) != read_records(path))
        abort();
    read_zst(path);
    close(fd);
    if (kg_mem_current_bytes() != before)
        abort();
    return 0;
}
