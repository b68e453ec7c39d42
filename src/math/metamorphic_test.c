/* Metamorphic tests of the grader: rewriting a gold answer without changing its value
 * gives a right answer, changing its value gives a wrong one; in any order, on any
 * thread, in any locale.
 *
 * The gold answers are kedge's own and, if present, those of published data sets.
 */
#include "base/mem.h"
#include "data/jsonl.h"
#include "math/math.h"

#include <ctype.h>
#include <locale.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TEXT = 1024 };

static const char *const own[] = {
    "\\frac{3}{8}",
    "-\\frac{1}{2}",
    "2\\sqrt{3}",
    "\\frac{1+\\sqrt{5}}{2}",
    "3\\sqrt{13}-2",
    "12\\pi",
    "\\frac{9\\pi}{4}",
    "x^2+2x+1",
    "\\frac{x+2}{7}",
    "11z^{17}+5z",
    "1+3i",
    "(3,-2,2)",
    "\\left( -\\infty, -\\frac{1}{2} \\right] \\cup \\left[ \\frac{1}{2}, \\infty "
    "\\right)",
    "[3,15]",
    "1, 2, 5",
    "\\{1,3\\}",
    "\\begin{pmatrix} 4 & 9 \\\\ 4 & 3 \\end{pmatrix}",
    "y = 3x+4",
    "x \\le 7",
    "2^{10}-1",
    "e^{2}+1",
    "\\log_2 5 + 3",
    "7.353 \\times 10^{14}",
    "0.625",
    "6\\frac{1}{6}",
    "1,296,540",
    "44\\%",
    "105^\\circ",
    "\\binom{7}{3}+1",
    "\\sin 2+1",
    "\\frac{n(n+1)}{2}",
    "5 \\text{ cm}",
    "\\$2.75",
    "3:8",
};

struct change {
    const char *name;
    /* Rewrites `in` into `out` (TEXT bytes).   returns false if it does not apply */
    bool (*make)(char *out, const char *in);
    bool keeps;
};

static bool put(char *out, const char *lead, const char *in, const char *tail)
{
    return snprintf(out, TEXT, "%s%s%s", lead, in, tail) < TEXT;
}

/* ---- rewrites that keep the value ---- */

static bool spaced(char *out, const char *in)
{
    size_t n = 0;

    for (; *in && n + 4 < TEXT; in++) {
        bool sign = kg_char_in("+=", *in);

        if (sign)
            out[n++] = ' ';
        out[n++] = *in;
        if (sign || *in == '{')
            out[n++] = ' ';
    }
    out[n] = 0;
    return *in == 0;
}

static bool replaced(char *out, const char *in, const char *from, const char *to)
{
    size_t n = 0;
    bool any = false;

    while (*in && n + strlen(to) + 2 < TEXT) {
        if (strncmp(in, from, strlen(from)) == 0) {
            n += (size_t)sprintf(out + n, "%s", to);
            in += strlen(from);
            any = true;
        } else {
            out[n++] = *in++;
        }
    }
    out[n] = 0;
    return any && *in == 0;
}

static bool display_fractions(char *out, const char *in)
{
    return replaced(out, in, "\\frac", "\\dfrac");
}

static bool boxed(char *out, const char *in)
{
    return put(out, "Therefore the answer is $\\boxed{", in, "}$.");
}

static bool dollars(char *out, const char *in)
{
    return !strchr(in, '$') && put(out, "$", in, "$");
}

static bool full_stop(char *out, const char *in) { return put(out, "", in, "."); }

static bool is_formula(const char *in)
{
    return !strstr(in, "\\text") && !strstr(in, "\\mbox") && !strchr(in, '$') &&
           !strchr(in, ':') && !strstr(in, "\\cup") && !strstr(in, "begin") &&
           !strpbrk(in, ",;=<>") && !strstr(in, "le") && !strstr(in, "\\ge") &&
           !strstr(in, "\\(") && !strstr(in, "\\[") && !strstr(in, "\\ne") &&
           !strstr(in, "\\or") && !strstr(in, "infty") && !strstr(in, "and");
}

static bool times_one(char *out, const char *in)
{
    return is_formula(in) && !strstr(in, "circ") && !strchr(in, '%') &&
           put(out, "\\frac{2 \\cdot (", in, ")}{2}");
}

static bool twice_halved(char *out, const char *in)
{
    return is_formula(in) && !strstr(in, "circ") && !strchr(in, '%') &&
           put(out, "(", in, ") + \\sqrt{8} - 2\\sqrt{2}");
}

static bool reversed_list(char *out, const char *in)
{
    char copy[TEXT];
    char *last;

    if (strpbrk(in, "()[]{};\\") || !strstr(in, ", "))
        return false;
    snprintf(copy, sizeof copy, "%s", in);
    out[0] = 0;
    while ((last = strrchr(copy, ',')) != NULL) {
        strcat(out, last + 1);
        strcat(out, ", ");
        *last = 0;
    }
    strcat(out, copy);
    return true;
}

/* ---- rewrites that change the value ---- */

/* The first digit of a value, before any \text and not in a subscript. */
static const char *first_digit(const char *in)
{
    const char *stop = strstr(in, "\\text");

    for (const char *p = in; *p && p != stop; p++) {
        if (strncmp(p, "\\mbox", 5) == 0)
            return NULL;
        if (isdigit((unsigned char)*p) && p > in && p[-1] != '_')
            return p;
        if (isdigit((unsigned char)*p) && p == in)
            return p;
    }
    return NULL;
}

static bool other_digit(char *out, const char *in)
{
    const char *at = first_digit(in);

    if (!at || !put(out, "", in, ""))
        return false;
    out[at - in] = (char)(*at == '9' ? '7' : *at + 1);
    return true;
}

static bool other_sign(char *out, const char *in)
{
    bool zero = true;

    for (const char *p = in; *p; p++)
        zero = zero && !isalnum((unsigned char)*p) ? true : *p == '0' && zero;
    return is_formula(in) && !zero && !strstr(in, "\\pm") && put(out, "-(", in, ")");
}

static bool added_term(char *out, const char *in)
{
    return is_formula(in) && !strstr(in, "circ") && !strchr(in, '%') &&
           put(out, "", in, "+1");
}

static bool squared(char *out, const char *in)
{
    return is_formula(in) && strlen(in) > 1 && strcmp(in, "-1") != 0 &&
           !strchr(in, '%') && put(out, "(", in, ")^2");
}

static bool dropped_item(char *out, const char *in)
{
    const char *comma = strrchr(in, ',');

    if (!comma || strpbrk(in, "()[]{}\\;") || strncmp(comma, ", ", 2) != 0)
        return false;
    snprintf(out, TEXT, "%.*s", (int)(comma - in), in);
    return strcmp(out, comma + 2) != 0;
}

static const struct change changes[] = {
    {"spaces", spaced, true},
    {"\\dfrac", display_fractions, true},
    {"a box in a sentence", boxed, true},
    {"dollars", dollars, true},
    {"a full stop", full_stop, true},
    {"2 x / 2", times_one, true},
    {"+ sqrt 8 - 2 sqrt 2", twice_halved, true},
    {"reversed list", reversed_list, true},
    {"another digit", other_digit, false},
    {"another sign", other_sign, false},
    {"an added term", added_term, false},
    {"squared", squared, false},
    {"a dropped item", dropped_item, false},
};
enum { CHANGES = sizeof changes / sizeof *changes };

struct tally {
    long tried[CHANGES];
    long failed[CHANGES];
    char example[CHANGES][300];
};

static enum kg_math_verdict grade(const char *gold, const char *answer)
{
    struct kg_math_opts opts = {0};
    struct kg_math_result r = {0};
    struct kg_math_text g = {gold, strlen(gold)};
    struct kg_math_text a = {answer, strlen(answer)};
    struct kg_err err;
    enum kg_math_verdict v;

    if (kg_math_grade(&r, &opts, a, &g, 1, &err) != KG_OK)
        fail_msg("%s", err.message);
    v = r.verdict;
    kg_math_result_release(&r);
    return v;
}

static void try_gold(struct tally *t, const char *gold)
{
    char text[TEXT];

    for (size_t i = 0; i < CHANGES; i++) {
        enum kg_math_verdict v;

        if (strlen(gold) > 300 || !changes[i].make(text, gold))
            continue;
        v = grade(gold, text);
        t->tried[i]++;
        if (v == (changes[i].keeps ? KG_MATH_RIGHT : KG_MATH_WRONG))
            continue;
        t->failed[i]++;
        snprintf(t->example[i], sizeof t->example[i], "gold '%.90s', '%.100s' is %s",
                 gold, text, kg_math_verdict_name(v));
        if (getenv("KEDGE_TEST_SHOW"))
            print_message("%s: %s\n", changes[i].name, t->example[i]);
    }
}

/* At most `allowed` in a thousand fail, for each rewrite. */
static void check(const struct tally *t, long allowed)
{
    for (size_t i = 0; i < CHANGES; i++) {
        if (t->failed[i] * 1000 > t->tried[i] * allowed)
            fail_msg("%s: %ld of %ld fail, such as: %s", changes[i].name, t->failed[i],
                     t->tried[i], t->example[i]);
    }
}

static void own_answers_survive_rewriting(void **state)
{
    struct tally t = {{0}, {0}, {{0}}};

    (void)state;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        try_gold(&t, own[i]);
    for (size_t i = 0; i < CHANGES; i++)
        assert_true(t.tried[i] > 0);
    check(&t, 0);
}

static void try_file(struct tally *t, const char *path)
{
    struct kg_jsonl *lines;
    struct kg_json_doc doc = {0};
    struct kg_err err;
    bool more = true;

    if (kg_jsonl_open(&lines, path, &err) != KG_OK)
        fail_msg("%s", err.message);
    while (kg_jsonl_next(lines, &doc, &more, &err) == KG_OK && more) {
        size_t n;
        const char *gold = kg_json_text(kg_json_get(doc.root, "answer"), &n);

        if (gold && n > 0)
            try_gold(t, gold);
    }
    kg_json_release(&doc);
    kg_jsonl_close(lines);
}

static void published_answers_survive_rewriting(void **state)
{
    static const char *const files[] = {"../shared/data/math/math500.jsonl",
                                        "../shared/data/math/deepscaler_sub_1209.jsonl"};
    struct tally t = {{0}, {0}, {{0}}};

    (void)state;
    if (access(files[0], R_OK) != 0) {
        print_message("skip: no %s\n", files[0]);
        skip();
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        try_file(&t, files[i]);
    check(&t, 10);
}

/* ---- order, threads, locale ---- */

enum { OWN = sizeof own / sizeof *own };

static void verdicts(enum kg_math_verdict *out, bool backwards)
{
    for (size_t k = 0; k < OWN * OWN; k++) {
        size_t i = backwards ? OWN * OWN - 1 - k : k;

        out[i] = grade(own[i / OWN], own[i % OWN]);
    }
}

static void *on_a_thread(void *out)
{
    verdicts(out, true);
    return NULL;
}

static void order_threads_and_locale_do_not_matter(void **state)
{
    static enum kg_math_verdict first[OWN * OWN];
    static enum kg_math_verdict other[3][OWN * OWN];
    pthread_t thread[2];

    (void)state;
    verdicts(first, false);
    for (size_t i = 0; i < OWN; i++)
        assert_int_equal(first[i * OWN + i], KG_MATH_RIGHT);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, on_a_thread, other[i]), 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    if (!setlocale(LC_ALL, "de_DE.UTF-8"))
        setlocale(LC_ALL, "C.UTF-8");
    verdicts(other[2], false);
    setlocale(LC_ALL, "C");
    for (size_t i = 0; i < 3; i++)
        assert_memory_equal(first, other[i], sizeof first);
    assert_int_equal(kg_mem_current_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_answers_survive_rewriting),
        cmocka_unit_test(published_answers_survive_rewriting),
        cmocka_unit_test(order_threads_and_locale_do_not_matter),
    };

    return cmocka_run_group_tests_name("grading, rewritten", tests, NULL, NULL);
}
