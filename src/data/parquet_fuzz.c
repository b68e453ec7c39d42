/* Fuzz target: if a file opens, every row is made and written out, up to a limit that
 * keeps one input fast. */
#include "data/parquet.h"

#include <stdlib.h>

enum { FUZZ_ROWS = 3000 };

int kg_fuzz_parquet(const uint8_t *bytes, size_t n);

static void read_rows(struct kg_parquet *file)
{
    struct kg_json_doc doc = {0};
    struct kg_parquet_rows *rows;
    struct kg_str text = {0};
    struct kg_err err;
    bool more = true;

    if (kg_parquet_rows_open(&rows, file, &err) != KG_OK)
        return;
    for (int i = 0; i < FUZZ_ROWS && more; i++) {
        if (kg_parquet_rows_next(rows, &doc, &more, &err) != KG_OK)
            break;
        kg_str_clear(&text);
        if (more && (kg_json_type(doc.root) != KG_JSON_OBJECT ||
                     kg_json_put_value(&text, doc.root, &err) != KG_OK))
            abort();
    }
    kg_str_release(&text);
    kg_json_release(&doc);
    kg_parquet_rows_close(rows);
}

int kg_fuzz_parquet(const uint8_t *bytes, size_t n)
{
    struct kg_parquet *file;
    struct kg_err err;

    if (kg_parquet_open_bytes(&file, bytes, n, "fuzz", &err) != KG_OK)
        return 0;
    read_rows(file);
    kg_parquet_close(file);
    return 0;
}
