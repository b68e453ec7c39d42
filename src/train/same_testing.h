/* Checks that two runs are equal: their files byte by byte, their logs except for
 * measurements.
 *
 * Included by *_test.c and *_testing.h only.
 */
#ifndef KG_TRAIN_SAME_TESTING_H
#define KG_TRAIN_SAME_TESTING_H

#include "base/file.h"
#include "base/need_testing.h"
#include "data/json.h"

#include <stdio.h>
#include <string.h>

static inline void read_in(struct kg_str *out, const char *dir, const char *name)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    NEED(kg_file_read(out, path, 1u << 30, err));
}

static inline bool same_file(const char *a_dir, const char *b_dir, const char *name)
{
    struct kg_str a = {0}, b = {0};
    bool same;

    read_in(&a, a_dir, name);
    read_in(&b, b_dir, name);
    assert_true(a.len > 0);
    same = a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
    kg_str_release(&a);
    kg_str_release(&b);
    return same;
}

static inline void assert_same_file(const char *a_dir, const char *b_dir,
                                    const char *name)
{
    if (!same_file(a_dir, b_dir, name))
        fail_msg("%s differs in %s and %s", name, a_dir, b_dir);
}

/* Metrics that depend on the clock, the machine, or earlier calls of this process. */
static inline bool is_measured(const char *key)
{
    return strncmp(key, "tool/", 5) == 0 || strncmp(key, "grader/", 7) == 0 ||
           strstr(key, "seconds") || strstr(key, "tokens_per_second") ||
           strstr(key, "memory/") || strstr(key, "ceiling");
}

/* Index of the next metric that is not measured, from i on; the size if there is none. */
static inline size_t next_decided(const struct kg_json *line, size_t i)
{
    while (i < kg_json_size(line) && is_measured(kg_json_key_at(line, i)))
        i++;
    return i;
}

static inline void assert_same_metrics(const char *a, size_t a_n, const char *b,
                                       size_t b_n)
{
    struct kg_json_doc x = {0}, y = {0};

    NEED(kg_json_parse(&x, a, a_n, "expected", err));
    NEED(kg_json_parse(&y, b, b_n, "found", err));
    for (size_t i = next_decided(x.root, 0), j = next_decided(y.root, 0);
         i < kg_json_size(x.root) || j < kg_json_size(y.root);
         i = next_decided(x.root, i + 1), j = next_decided(y.root, j + 1)) {
        struct kg_str p = {0}, q = {0};
        const char *key = kg_json_key_at(x.root, i);

        assert_true(i < kg_json_size(x.root) && j < kg_json_size(y.root));
        assert_string_equal(key, kg_json_key_at(y.root, j));
        NEED(kg_json_put_value(&p, kg_json_value_at(x.root, i), err));
        NEED(kg_json_put_value(&q, kg_json_value_at(y.root, j), err));
        if (strcmp(p.data, q.data) != 0)
            fail_msg("%.*s\n%.*s\ndiffer in %s", (int)a_n, a, (int)b_n, b, key);
        kg_str_release(&p);
        kg_str_release(&q);
    }
    kg_json_release(&x);
    kg_json_release(&y);
}

static inline void assert_same_log(const char *a_dir, const char *b_dir)
{
    struct kg_str a = {0}, b = {0};
    const char *p, *q;

    read_in(&a, a_dir, "metrics.jsonl");
    read_in(&b, b_dir, "metrics.jsonl");
    for (p = a.data, q = b.data; *p && *q;) {
        size_t p_n = strcspn(p, "\n"), q_n = strcspn(q, "\n");

        assert_same_metrics(p, p_n, q, q_n);
        p += p_n + 1;
        q += q_n + 1;
    }
    assert_int_equal(*p, '\0');
    assert_int_equal(*q, '\0');
    kg_str_release(&a);
    kg_str_release(&b);
}

/* Compares the model that a checkpoint has for users: all weights, or adapters. */
static inline void assert_same_weights(const char *a, const char *b)
{
    char path[512];

    snprintf(path, sizeof path, "%s/checkpoints/latest/adapter", a);
    if (kg_file_exists(path)) {
        assert_same_file(a, b, "checkpoints/latest/adapter/adapter_model.safetensors");
        assert_same_file(a, b, "checkpoints/latest/anchor/adapter_model.safetensors");
        return;
    }
    assert_same_file(a, b, "checkpoints/latest/model/model.safetensors");
    assert_same_file(a, b, "checkpoints/latest/anchor/model.safetensors");
}

/* Compares the files of `steps` steps, for runs whose anchor is saved. */
static inline void assert_same_steps(const char *a, const char *b, int steps)
{
    assert_same_weights(a, b);
    assert_same_file(a, b, "checkpoints/latest/state.safetensors");
    for (int i = 1; i <= steps; i++) {
        char dump[64];

        snprintf(dump, sizeof dump, "rollouts/step-%06d.jsonl.zst", i);
        assert_same_file(a, b, dump);
    }
}

/* Also compares the logs of two runs that were validated after the same steps. */
static inline void assert_same_run(const char *a, const char *b, int steps)
{
    assert_same_steps(a, b, steps);
    assert_same_log(a, b);
}

#endif
