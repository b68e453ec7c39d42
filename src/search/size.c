/* The size of an index, counted as SQLite lays out a table that is only appended to.
 *
 * A row of KG_DENSE_ROWS vectors is one cell. What of it is too large for a page of the
 * tree goes to a chain of pages of its own; a page of the tree takes cells until the next
 * one does not fit, since every row comes behind all others; above stand pages that name
 * them. See "Database File Format", 1.6, of sqlite.org.
 */
#include "search/size.h"

#include "search/dense.h"

enum {
    PAGE = KG_INDEX_PAGE_BYTES,
    LEAF_HEAD = 8,
    INNER_HEAD = 12,
    POINTER = 2,                         /* of a cell, in its page */
    PAGE_NUMBER = 4,                     /* of another page */
    LARGEST = PAGE - 35,                 /* of a row, whole in the tree */
    LEAST = (PAGE - 12) * 32 / 255 - 23, /* of a row, in the tree at least */
    LINKED = PAGE - PAGE_NUMBER,         /* of a row, in a page of its chain */
    PASSAGE_FILE_BYTES = 1075, /* 1.57 for each of the 685 of a line of wiki-18.jsonl */
};

/* Bytes of a number as SQLite writes it. */
static int64_t number_bytes(uint64_t n)
{
    int64_t bytes = 1;

    while (n >>= 7)
        bytes++;
    return bytes;
}

struct row {
    int64_t cell;    /* bytes in the page of the tree, without its own number */
    int64_t chained; /* pages of its own */
};

static struct row row_of(int64_t vectors, int32_t dim)
{
    const int64_t blob = vectors * dim * (int64_t)sizeof(uint16_t);
    /* a head: its own length, the key's type, the blob's */
    const int64_t payload = 2 + number_bytes((uint64_t)blob * 2 + 12) + blob;
    int64_t inside = payload;

    if (payload > LARGEST) {
        inside = LEAST + (payload - LEAST) % LINKED;
        inside = inside <= LARGEST ? inside : LEAST;
    }
    return (struct row){number_bytes((uint64_t)payload) + inside +
                            (inside < payload ? PAGE_NUMBER : 0),
                        (payload - inside + LINKED - 1) / LINKED};
}

/* Pages of the tree above so many. */
static int64_t inner_pages(int64_t leaves)
{
    int64_t pages = 0;

    while (leaves > 1) {
        const int64_t cell = PAGE_NUMBER + number_bytes((uint64_t)leaves) + POINTER;

        leaves = 1 + (leaves - 1) / (1 + (PAGE - INNER_HEAD) / cell);
        pages += leaves;
    }
    return pages;
}

static uint64_t table_bytes(int64_t passages, int32_t dim)
{
    const int64_t rows = (passages + KG_DENSE_ROWS - 1) / KG_DENSE_ROWS;
    const struct row whole = row_of(KG_DENSE_ROWS, dim),
                     last = row_of(passages - (rows - 1) * KG_DENSE_ROWS, dim);
    int64_t leaves = 1, chained = 0, used = LEAF_HEAD;

    for (int64_t i = 0; i < rows; i++) {
        const struct row r = i + 1 < rows ? whole : last;
        const int64_t cell = r.cell + number_bytes((uint64_t)i) + POINTER;

        if (used + cell > PAGE) {
            leaves++;
            used = LEAF_HEAD;
        }
        used += cell;
        chained += r.chained;
    }
    return (uint64_t)(leaves + chained + inner_pages(leaves)) * PAGE;
}

void kg_search_size(struct kg_search_size *out, int64_t passages, int32_t dim)
{
    const uint64_t n = (uint64_t)passages, d = (uint64_t)dim;

    *out = (struct kg_search_size){.words_file = n * PASSAGE_FILE_BYTES,
                                   .lengths = n * sizeof(uint32_t)};
    if (dim == 0)
        return;
    out->vectors_file = table_bytes(passages, dim);
    out->vectors_fp16 = n * d * sizeof(uint16_t);
    out->vectors_int8 = n * (d + 2 * sizeof(float));
}
