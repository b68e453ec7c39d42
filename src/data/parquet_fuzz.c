/* Fuzz target: of a file that opens, every column is decoded and every row made, up to a
 * limit that keeps an input fast; values that are text are read to their last byte. */
#include "data/parquet.h"

#include <stdlib.h>
#include <string.h>

enum { FUZZ_ROWS = 3000, FUZZ_BATCHES = 20, FUZZ_GROUPS = 3, FUZZ_COLUMNS = 20 };

int kg_fuzz_parquet(const uint8_t *bytes, size_t n);

static unsigned touch_texts(const struct kg_parquet_batch *batch)
{
    const struct kg_parquet_text *texts = batch->values;
    unsigned sum = 0;

    for (size_t i = 0; i < batch->n_values; i++)
        if (texts[i].n > 0)
            sum += (unsigned char)texts[i].data[0] +
                   (unsigned char)texts[i].data[texts[i].n - 1];
    return sum;
}

static unsigned touch_batch(const struct kg_parquet_batch *batch,
                            const struct kg_parquet_leaf *leaf)
{
    unsigned sum = 0;

    if (batch->n > KG_PARQUET_BATCH || batch->n_values > batch->n)
        abort();
    for (size_t i = 0; i < batch->n; i++) {
        if (batch->rep[i] > leaf->max_rep || batch->def[i] > leaf->max_def)
            abort();
        sum += batch->rep[i] + batch->def[i];
    }
    if (leaf->type == KG_PARQUET_INT96 || leaf->type >= KG_PARQUET_BYTES)
        sum += touch_texts(batch);
    return sum;
}

static unsigned read_column(struct kg_parquet *file, size_t group, size_t column)
{
    struct kg_parquet_batch batch = {.n = 1};
    struct kg_parquet_column *c;
    struct kg_parquet_leaf leaf;
    struct kg_err err;
    unsigned sum = 0;

    kg_parquet_leaf(&leaf, file, column);
    if (kg_parquet_column_open(&c, file, group, column, &err) != KG_OK)
        return 0;
    for (int i = 0; i < FUZZ_BATCHES && batch.n > 0; i++) {
        if (kg_parquet_column_next(c, &batch, &err) != KG_OK)
            break;
        sum += touch_batch(&batch, &leaf);
    }
    kg_parquet_column_close(c);
    return sum;
}

static void read_rows(struct kg_parquet *file)
{
    struct kg_json_doc doc = {0};
    struct kg_parquet_rows *rows;
    struct kg_err err;
    bool more = true;

    if (kg_parquet_rows_open(&rows, file, &err) != KG_OK)
        return;
    for (int i = 0; i < FUZZ_ROWS && more; i++) {
        if (kg_parquet_rows_next(rows, &doc, &more, &err) != KG_OK)
            break;
        if (more && kg_json_type(doc.root) != KG_JSON_OBJECT)
            abort();
    }
    kg_json_release(&doc);
    kg_parquet_rows_close(rows);
}

int kg_fuzz_parquet(const uint8_t *bytes, size_t n)
{
    volatile unsigned sum = 0;
    struct kg_parquet *file;
    struct kg_err err;

    if (kg_parquet_open_bytes(&file, bytes, n, "fuzz", &err) != KG_OK)
        return 0;
    for (size_t g = 0; g < kg_parquet_groups(file) && g < FUZZ_GROUPS; g++)
        for (size_t c = 0; c < kg_parquet_columns(file) && c < FUZZ_COLUMNS; c++)
            sum += read_column(file, g, c);
    read_rows(file);
    kg_parquet_close(file);
    return 0;
}
