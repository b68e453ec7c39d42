/* `kedge algorithms check`: its numbers equal those of an independent program
 * (tests/data/exact), what theory says about a row holds, and every row is printed. */
#include "lab/algorithms.h"

#include "base/file.h"
#include "data/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_WORDS = 8, MOST_LINES = 512, MOST_BYTES = 1 << 20 };

static struct kg_err err;

static void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

/* The parsed lines of JSON output. */
struct rows {
    struct kg_json_doc doc[MOST_LINES];
    int n;
};

static void parse(struct rows *r, const struct kg_str *text)
{
    size_t len;

    r->n = 0;
    for (const char *p = kg_str_text(text); *p; p += len + (p[len] == '\n')) {
        len = strcspn(p, "\n");
        assert_true(r->n < MOST_LINES);
        ok(kg_json_parse(&r->doc[r->n++], p, len, "line", &err));
    }
}

static void release(struct rows *r)
{
    for (int i = 0; i < r->n; i++)
        kg_json_release(&r->doc[i]);
}

/* Runs the command with arguments separated by spaces. */
static kg_status run(struct kg_str *out, const char *words, bool json)
{
    char text[256], *args[MOST_WORDS];
    size_t n = 0;

    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        args[n++] = word;
    return kg_algorithms_check(out, args, n, json, &err);
}

static void must_run(struct rows *r, const char *words)
{
    struct kg_str out = {0};

    ok(run(&out, words, true));
    parse(r, &out);
    kg_str_release(&out);
}

static const char *text_of(const struct kg_json *row, const char *key)
{
    const char *text = kg_json_text(kg_json_get(row, key), NULL);

    return text ? text : "";
}

/* path: a key, or "loss.bias" for a key of an object inside; NAN: null or absent. */
static double number(const struct kg_json *row, const char *path)
{
    size_t n = strcspn(path, ".");
    char key[32];

    snprintf(key, sizeof key, "%.*s", (int)n, path);
    if (path[n])
        return number(kg_json_get(row, key), path + n + 1);
    return kg_json_real(kg_json_get(row, key), NAN);
}

static bool is_same_row(const struct kg_json *a, const struct kg_json *b)
{
    return strcmp(text_of(a, "key"), text_of(b, "key")) == 0 &&
           strcmp(text_of(a, "name"), text_of(b, "name")) == 0 &&
           strcmp(text_of(a, "gradient"), text_of(b, "gradient")) == 0 &&
           number(a, "nats") == number(b, "nats");
}

/* ---- against tests/data/exact ---- */

static void compare(const struct kg_json *found, const struct kg_json *want,
                    const char *where)
{
    for (size_t i = 0; i < kg_json_size(want); i++) {
        const char *key = kg_json_key_at(want, i);
        const struct kg_json *w = kg_json_value_at(want, i), *f = kg_json_get(found, key);

        if (kg_json_type(w) == KG_JSON_OBJECT) {
            compare(f, w, where);
        } else if (kg_json_is_number(w)) {
            double x = kg_json_real(w, NAN), y = kg_json_real(f, NAN);

            if (!(fabs(x - y) <= 1e-10 * (1 + fabs(x))))
                fail_msg("%s, %s: expected %.12g, found %.12g", where, key, x, y);
        } else if (kg_json_type(w) != kg_json_type(f)) {
            fail_msg("%s, %s: expected %s, found %s", where, key, kg_json_type_name(w),
                     kg_json_type_name(f));
        }
    }
}

static void numbers_are_those_of_the_published_formulas(void **state)
{
    static struct rows want, found;
    struct kg_str text = {0};

    (void)state;
    ok(kg_file_read(&text, "tests/data/exact/rows.jsonl", MOST_BYTES, &err));
    parse(&want, &text);
    kg_str_release(&text);
    assert_int_equal(want.n, 144);
    must_run(&found, "");
    for (int i = 0; i < want.n; i++) {
        const struct kg_json *w = want.doc[i].root;
        int at = 0;

        while (at < found.n && !is_same_row(found.doc[at].root, w))
            at++;
        assert_true(at < found.n);
        compare(found.doc[at].root, w, text_of(w, "name"));
    }
    release(&want);
    release(&found);
}

/* ---- what is known without computing ---- */

static void what_theory_says_holds(void **state)
{
    static const struct {
        const char *words, *path;
        double value;
    } cases[] = {
        {"exact-reverse exact-forward", "value_bias", 0},
        {"exact-reverse exact-forward", "loss.bias", 0},
        {"exact-reverse exact-forward", "loss.noise", 0},
        {"exact-reverse exact-forward", "stale_unweighted.bias", 0},
        /* a term that depends only on the context has no gradient at its own token */
        {"exact-reverse exact-forward", "advantage.length", 0},
        /* the mean score is 0: as a loss K1 has no gradient (bias 1), and as an advantage
         * it is unbiased */
        {"k1", "loss.length", 0},
        {"k1", "loss.bias", 1},
        {"k1 k4", "advantage.bias", 0},
        {"k2 k4 k3++ k5", "loss.bias", 0},
        {"k2 k4 k3++ k5", "stale.bias", 0},
        {"k1 k3 k3++ k4 k5", "value_bias", 0},
        {"reward-fkl", "advantage.bias", 0},
        /* a head of all ids leaves no tail */
        {"topk-reverse topk-forward kl.top_k=10", "loss.bias", 0},
        {"topk-reverse topk-forward kl.top_k=10", "loss.noise", 0},
        {"truncated-reverse truncated-forward kl.top_k=10", "loss.bias", 0},
        {"generalised-reverse kl.top_k=10", "value_bias", 0},
        /* an empty head leaves K4 or K5 */
        {"topk-reverse topk-forward kl.top_k=0", "loss.bias", 0},
        {"reinforce pg-is importance", "stopped", 0},
        {"dppo-binary-tv algo.delta_low=1 algo.delta_high=1", "stopped", 0},
        {"trm-mean algo.mask_delta=1000", "stopped", 0},
        {"icepop algo.tis=1e6 algo.tis_low=0", "stopped", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct rows r;

        must_run(&r, cases[i].words);
        assert_true(r.n >= 3);
        for (int n = 0; n < r.n; n++) {
            double x = number(r.doc[n].root, cases[i].path);

            if (text_of(r.doc[n].root, "gradient")[0]) /* the published one is biased */
                continue;
            if (!(fabs(x - cases[i].value) < 1e-9))
                fail_msg("%s, %s: expected %g, found %g", cases[i].words, cases[i].path,
                         cases[i].value, x);
        }
        release(&r);
    }
}

/* With bounds that are never reached, a row equals the one that has no bound. */
static void a_bound_that_is_never_reached_changes_nothing(void **state)
{
    static const char *const pairs[][2] = {
        {"ppo-clip algo.clip_low=1 algo.clip_high=1000", "importance"},
        {"cispo algo.clip_low=1 algo.clip_high=1000", "pg-is"},
        {"dppo-binary-tv algo.delta_low=1 algo.delta_high=1 algo.truncate=0", "pg-is"},
        {"dppo-topk-kl algo.delta_low=100 algo.delta_high=100 algo.truncate=0", "pg-is"},
        {"cppo algo.delta_low=1 algo.delta_high=1 algo.prefix_budget=1", "pg-is"},
        {"ratio-mask algo.clip_low=1 algo.clip_high=1000", "pg-is"},
        {"m2po algo.m2_budget=1000", "importance"},
        {"trm-max algo.mask_delta=1000", "importance"},
        {"off-policy algo.mask_delta=1000", "importance"},
        {"vaco algo.mask_delta=1000", "importance"},
        {"icepop algo.tis=1e6 algo.tis_low=0", "pg-is"},
        {"ipo algo.delta_low=1 algo.delta_high=1", "importance"},
        {"rpg-rf-urkl algo.clip_low=1 algo.clip_high=1000", "pg-is"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        static struct rows a, b;

        must_run(&a, pairs[i][0]);
        must_run(&b, pairs[i][1]);
        assert_int_equal(a.n, 3);
        assert_int_equal(b.n, 3);
        for (int n = 0; n < 3; n++)
            compare(kg_json_get(a.doc[n].root, "loss"),
                    kg_json_get(b.doc[n].root, "loss"), pairs[i][0]);
        release(&a);
        release(&b);
    }
}

/* ---- rows and refusals ---- */

static void every_row_is_printed_once(void **state)
{
    static const enum kg_policy_table tables[] = {KG_TABLE_KL, KG_TABLE_SURROGATE,
                                                  KG_TABLE_MASK};
    struct kg_str out = {0};
    size_t lines = 0, want = 2 /* published forms */ + 2 * 2 /* heads */;

    (void)state;
    ok(run(&out, "", false));
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < kg_policy_n_rows(tables[t]); i++) {
            const char *name = kg_policy_row(tables[t], i)->name;
            char cell[80];

            snprintf(cell, sizeof cell, "\n| `%s` | ", name);
            want += strcmp(name, "none") != 0;
            if (strcmp(name, "none") != 0 && !strstr(kg_str_text(&out), cell))
                fail_msg("expected a line of %s, found none", name);
        }
    for (const char *p = kg_str_text(&out); (p = strstr(p, "\n|")); p++)
        lines++;
    assert_int_equal(lines, want);
    kg_str_release(&out);
}

static void what_cannot_be_checked_is_refused(void **state)
{
    static const struct {
        const char *words, *says;
    } cases[] = {
        {"k9", "expected a row of kl.estimator, algo.surrogate or algo.mask"},
        {"none", "found 'none'"},
        {"k3 grpo", "found 'grpo'"},
        {"K3", "found 'K3'"},
        {"k3 kl.beta=1", "expected a key that a checked row reads"},
        {"k3 kl.top_k=2", "found 'kl.top_k'"},
        {"reinforce algo.clip_low=0.1", "found 'algo.clip_low'"},
        {"ppo-clip algo.clip=0.1", "found 'algo.clip'"},
        {"ppo-clip =0.1", "found ''"},
        {"ppo-clip algo.clip_low=wide", "algo.clip_low"},
        {"ppo-clip algo.clip_low=-1", "algo.clip_low"},
        {"topk-reverse kl.top_k=11", "expected at most 10"},
        {"dppo-topk-tv algo.top_k=11", "expected at most 10"},
        {"kl.top_k=3 k1", "found 'kl.top_k'"},
        {"vaco algo.tis=2", "found 'algo.tis'"},
        {"vaco algo.mask_delta=-1", "algo.mask_delta"},
        {"icepop algo.tis=-1", "algo.tis"},
        {"icepop algo.tis=2 algo.tis_low=3",
         "algo.tis_low: expected at most algo.tis, 2"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kg_str out = {0};

        if (run(&out, cases[i].words, false) == KG_OK)
            fail_msg("%s was not refused", cases[i].words);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s: expected '%s', found: %s", cases[i].words, cases[i].says,
                     err.message);
        kg_str_release(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_published_formulas),
        cmocka_unit_test(what_theory_says_holds),
        cmocka_unit_test(a_bound_that_is_never_reached_changes_nothing),
        cmocka_unit_test(every_row_is_printed_once),
        cmocka_unit_test(what_cannot_be_checked_is_refused),
    };

    return cmocka_run_group_tests_name("lab/algorithms_check", tests, NULL, NULL);
}
