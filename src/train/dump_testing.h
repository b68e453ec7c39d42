/* Dumped rollouts of a step, for tests of which version of the weights sampled which
 * token (rollout.max_staleness).
 *
 * Included by *_test.c only.
 */
#ifndef KG_TRAIN_DUMP_TESTING_H
#define KG_TRAIN_DUMP_TESTING_H

#include "base/need_testing.h"
#include "data/jsonl.h"

#include <stdio.h>
#include <string.h>

enum { DUMP_LINES = 256 };

struct dump {
    struct kg_str text;
    struct kg_json_doc line[DUMP_LINES];
    size_t n;
};

static inline void read_dump(struct dump *d, const char *dir, int step)
{
    char path[256];

    memset(d, 0, sizeof *d);
    snprintf(path, sizeof path, "%s/rollouts/step-%06d.jsonl.zst", dir, step);
    NEED(kg_zst_read(&d->text, path, 1 << 24, err));
    for (const char *at = kg_str_text(&d->text); *at; at += strcspn(at, "\n") + 1) {
        assert_true(d->n < DUMP_LINES);
        NEED(kg_json_parse(&d->line[d->n++], at, strcspn(at, "\n"), path, err));
    }
    assert_true(d->n > 0);
}

static inline void release_dump(struct dump *d)
{
    for (size_t i = 0; i < d->n; i++)
        kg_json_release(&d->line[i]);
    kg_str_release(&d->text);
}

static inline const struct kg_json *get(const struct dump *d, size_t i, const char *key)
{
    return kg_json_get(d->line[i].root, key);
}

/* The version of token j by the spans of line i; -1: it has none. */
static inline int64_t version_at(const struct dump *d, size_t i, size_t j)
{
    const struct kg_json *spans = get(d, i, "versions");
    int64_t version = -1;

    for (size_t v = 0; v < kg_json_size(spans); v++)
        if (kg_json_int(kg_json_at(kg_json_at(spans, v), 0), -1) <= (int64_t)j)
            version = kg_json_int(kg_json_at(kg_json_at(spans, v), 1), -1);
    return version;
}

/* Compares everything in two dumps except which versions sampled the tokens. */
static inline void assert_same_lines(const struct dump *a, const struct dump *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        size_t k = 0;

        for (size_t x = 0; x < kg_json_size(b->line[i].root); x++) {
            const char *key = kg_json_key_at(b->line[i].root, x);
            struct kg_str p = {0}, q = {0};

            if (strcmp(key, "versions") == 0)
                continue;
            assert_string_equal(key, kg_json_key_at(a->line[i].root, k));
            NEED(kg_json_put_value(&p, kg_json_value_at(a->line[i].root, k++), err));
            NEED(kg_json_put_value(&q, kg_json_value_at(b->line[i].root, x), err));
            assert_string_equal(kg_str_text(&p), kg_str_text(&q));
            kg_str_release(&p);
            kg_str_release(&q);
        }
        assert_int_equal(k, kg_json_size(a->line[i].root));
    }
}

#endif
