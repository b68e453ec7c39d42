/* Fuzz target: a damaged index. Each four bytes of input change one byte of a small
 * index: three are the offset, one is the new byte. If the index still opens, it is
 * searched: the answer must be well-formed, or an error.
 *
 * The seal would detect every change, but the author of a hostile index can make its seal
 * too, so the seal is not checked here.
 */
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "retriever/build.h"
#include "search/index_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int kg_fuzz_index(const uint8_t *bytes, size_t n);

static char fuzz_path[1024];
static unsigned char fuzz_whole[1 << 18]; /* the original index */
static size_t fuzz_bytes;

static void fuzz_demand(kg_status status)
{
    if (status != KG_OK)
        abort();
}

static void fuzz_build(void)
{
    static const char corpus[] =
        "{\"id\": \"cat\", \"contents\": \"\\\"Cat\\\"\\nThe cat sat on the mat.\"}\n"
        "{\"id\": \"dog\", \"contents\": \"\\\"Dog\\\"\\nDogs chase the cats of "
        "Łódź.\"}\n"
        "{\"id\": 7, \"contents\": \"\\\"Wing\\\"\\nA wing in a slipstream.\"}\n";
    struct kg_index_build_opts o = {.path = fuzz_path, .bm25 = kg_bm25_default};
    struct kg_index_info info;
    struct kg_str whole = {0};
    struct kg_err err;
    char from[sizeof fuzz_path + 8];

    const char *folder = getenv("TMPDIR");
    if (!folder)
        folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : P_tmpdir;
    int n = snprintf(fuzz_path, sizeof fuzz_path, "%s/kedge-fuzz-%d", folder,
                     (int)getpid());
    if (n < 0 || (size_t)n >= sizeof fuzz_path)
        abort(); /* the folder's name is too long */
    snprintf(from, sizeof from, "%s.jsonl", fuzz_path);
    o.corpus = from;
    fuzz_demand(kg_file_write_atomic(from, corpus, sizeof corpus - 1, &err));
    fuzz_demand(kg_index_build(&info, &o, &err));
    fuzz_demand(kg_file_read(&whole, fuzz_path, sizeof fuzz_whole, &err));
    memcpy(fuzz_whole, whole.data, whole.len);
    fuzz_bytes = whole.len;
    kg_str_release(&whole);
    unlink(from);
    unlink(fuzz_path);
}

static void fuzz_ask(struct kg_searcher *s, const char *query)
{
    struct kg_hits hits;
    struct kg_err err;
    double last = 0;

    if (kg_searcher_find(&hits, s, query, strlen(query), 3, &err) != KG_OK)
        return;
    if (hits.n > 3)
        abort();
    for (size_t i = 0; i < hits.n; i++) {
        const struct kg_passage *p = &hits.passages[i];

        if (!p->id || !p->contents || (i > 0 && p->score > last))
            abort();
        last = p->score;
    }
}

static void fuzz_open(void)
{
    static const char *const queries[] = {"cat", "the dogs of Łódź", "wing wing", ""};
    struct kg_index *index;
    struct kg_searcher *s = NULL;
    struct kg_err err;

    if (kg_index_open_unsealed(&index, fuzz_path, NULL, &err) == KG_OK &&
        kg_searcher_open(&s, index, &err) == KG_OK)
        for (size_t i = 0; i < sizeof queries / sizeof *queries; i++)
            fuzz_ask(s, queries[i]);
    kg_searcher_close(s);
    kg_index_close(index);
}

int kg_fuzz_index(const uint8_t *bytes, size_t n)
{
    static unsigned char changed[sizeof fuzz_whole];
    struct kg_err err;

    if (!fuzz_path[0])
        fuzz_build();
    uint64_t before = kg_mem_current_bytes();
    memcpy(changed, fuzz_whole, fuzz_bytes);
    for (size_t i = 0; i + 4 <= n && i < 4 * 64; i += 4) {
        size_t at = (size_t)bytes[i] << 16 | (size_t)bytes[i + 1] << 8 | bytes[i + 2];

        changed[at % fuzz_bytes] = bytes[i + 3];
    }
    fuzz_demand(kg_file_write_atomic(fuzz_path, changed, fuzz_bytes, &err));
    fuzz_open();
    unlink(fuzz_path);
    if (kg_mem_current_bytes() != before)
        abort();
    return 0;
}
