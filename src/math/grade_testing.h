/* Grading for tests: the verdict on two texts, and how often a mode agrees with cases
 * collected from other projects. Included by *_test.c only.
 */
#ifndef KG_MATH_GRADE_TESTING_H
#define KG_MATH_GRADE_TESTING_H

#include "base/clock.h"
#include "base/mem.h"
#include "data/jsonl.h"
#include "math/math.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kg_err err;

static inline void ok(kg_status status)
{
    if (status != KG_OK)
        fail_msg("%s", err.message);
}

static inline enum kg_math_verdict grade(const struct kg_math_opts *opts,
                                         const char *gold, const char *answer,
                                         char reason[128])
{
    struct kg_math_result r = {0};
    struct kg_math_text g = {gold, strlen(gold)};
    struct kg_math_text a = {answer, strlen(answer)};
    enum kg_math_verdict v;

    ok(kg_math_grade(&r, opts, a, &g, 1, &err));
    v = r.verdict;
    snprintf(reason, 128, "%.60s (found '%.50s')", r.reason, kg_str_text(&r.extracted));
    kg_math_result_release(&r);
    return v;
}

static inline void repeat(char *out, size_t size, const char *piece, size_t times)
{
    size_t n = strlen(piece);

    out[0] = 0;
    for (size_t i = 0; i < times && (i + 1) * n < size; i++)
        memcpy(out + i * n, piece, n + 1);
}

/* Responses of a megabyte that never close what they open. */
static inline void long_texts_end_in_time(const char *mode)
{
    static char text[1 << 20];
    static const char *const pieces[] = {
        "\\(",
        "\\boxed{",
        "$ 1 ",
        "(1,",
        "\\text{ ",
        "1,111",
        "Answer: ",
        "cm",
        "\\frac",
        "</think>",
        "{",
        "1 ",
        "\\frac{",
        "1\\pi ",
        "1\\pi a ",
        "not 1",
        "not \\boxed{1}",
        "5 (",
        "0.(1",
        "(A) or ",
        "Option A ",
    };

    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        repeat(text, sizeof text, pieces[i], sizeof text / strlen(pieces[i]) - 1);
        struct kg_math_opts opts = {0};
        char reason[128];
        double start = kg_clock_thread_seconds();

        ok(kg_math_mode_find(&opts.mode, mode, &err));
        opts.form = i % 2 ? KG_MATH_FORM_RESPONSE : KG_MATH_FORM_AUTO;
        grade(&opts, "5", text, reason);
        opts.form = KG_MATH_FORM_ANSWER;
        grade(&opts, "5", text, reason);
        opts.form = KG_MATH_FORM_CHOICE;
        grade(&opts, "B", text, reason);
        if (kg_clock_thread_seconds() - start > 4)
            fail_msg("'%s' repeated takes %.1f s in mode %s", pieces[i],
                     kg_clock_thread_seconds() - start, mode);
    }
}

/* ---- collected cases ---- */

struct score {
    int n;
    int agree;
};

static inline struct kg_math_opts opts_of(const struct kg_json *root, const char *mode)
{
    struct kg_math_opts opts = {0};
    const struct kg_json *p = kg_json_get(root, "precision");
    const char *form = kg_json_text(kg_json_get(root, "form"), NULL);

    ok(kg_math_mode_find(&opts.mode, mode, &err));
    if (form)
        ok(kg_math_form_find(&opts.form, form, &err));
    opts.strict_sets = !kg_json_bool(kg_json_get(root, "allow_set_relation_comp"), true);
    if (kg_json_type(p) == KG_JSON_INT)
        opts.decimals = (int)kg_json_int(p, 0);
    if (kg_json_type(p) == KG_JSON_REAL)
        opts.tolerance[opts.n_tolerance++] = kg_json_real(p, 0);
    for (size_t i = 0; kg_json_type(p) == KG_JSON_ARRAY && i < kg_json_size(p); i++)
        opts.tolerance[opts.n_tolerance++] = kg_json_real(kg_json_at(p, i), 0);
    return opts;
}

static inline size_t golds_of(struct kg_math_text *out, const struct kg_json *gold)
{
    size_t n = kg_json_type(gold) == KG_JSON_ARRAY ? kg_json_size(gold) : 1;

    for (size_t i = 0; i < n; i++)
        out[i].text = kg_json_text(
            n == 1 && kg_json_type(gold) == KG_JSON_STRING ? gold : kg_json_at(gold, i),
            &out[i].n);
    return n;
}

/* Counts whether the verdict agrees with `column` of reference_verdicts or, if NULL, with
 * `expected`. */
static inline void score_line(struct score *s, const struct kg_json *root,
                              const char *mode, const char *column)
{
    const struct kg_json *want = kg_json_get(root, "expected");
    struct kg_math_opts opts = opts_of(root, mode);
    struct kg_math_result r = {0};
    struct kg_math_text golds[64];
    struct kg_math_text answer;
    size_t n = golds_of(golds, kg_json_get(root, "gold"));

    if (column)
        want = kg_json_get(kg_json_get(root, "reference_verdicts"), column);
    if (kg_json_type(want) != KG_JSON_BOOL)
        return;
    answer.text = kg_json_text(kg_json_get(root, "answer"), &answer.n);
    if (!answer.text) {
        answer.text = kg_json_text(kg_json_get(root, "response"), &answer.n);
        opts.form = KG_MATH_FORM_RESPONSE;
    }
    ok(kg_math_grade(&r, &opts, answer, golds, n, &err));
    s->n++;
    s->agree += (r.verdict == KG_MATH_RIGHT) == kg_json_bool(want, false);
    kg_math_result_release(&r);
}

static inline struct score score_file(const char *path, const char *mode,
                                      const char *column)
{
    struct kg_jsonl *lines;
    struct kg_json_doc doc = {0};
    struct score s = {0};
    bool more = true;

    ok(kg_jsonl_open(&lines, path, &err));
    for (;;) {
        ok(kg_jsonl_next(lines, &doc, &more, &err));
        if (!more)
            break;
        score_line(&s, doc.root, mode, column);
    }
    kg_json_release(&doc);
    kg_jsonl_close(lines);
    return s;
}

static inline void agrees(const char *path, const char *mode, const char *column,
                          int percent)
{
    struct score s = score_file(path, mode, column);

    assert_true(s.n > 50);
    if (s.agree * 100 < s.n * percent)
        fail_msg("%s, mode %s: expected agreement in %d %%, found %d of %d", path, mode,
                 percent, s.agree, s.n);
}

static inline bool absent(const char *path)
{
    if (access(path, R_OK) == 0)
        return false;
    print_message("skip: no %s\n", path);
    return true;
}

#endif
