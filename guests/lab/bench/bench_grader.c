/* Grading of mathematics: answers a second of processor time on one core.
 *
 * The answers are of the kinds that models give: responses with a formula or a number in
 * them and bare answers; right, wrong, and one that cannot be decided. Surds, identities
 * and intervals, which cost most, are more of them than is usual.
 */
#include "bench/measure.h"

#include "base/clock.h"
#include "math/math.h"

#include <string.h>

enum { ROUNDS = 20 };
static const double ASKED = 5000; /* answers a second */

static const struct {
    const char *answer;
    const char *gold;
    enum kg_math_form form;
    enum kg_math_verdict verdict;
} answers[] = {
    {"We add the two costs: $3 \\cdot 4 + 2 \\cdot 5 = 22$.\nThe total is \\boxed{22}.",
     "22", KG_MATH_FORM_RESPONSE, KG_MATH_RIGHT},
    {"She sells 16 - 3 - 4 = 9 eggs a day and gets 9 * 2 = $18.\n#### 18", "18",
     KG_MATH_FORM_RESPONSE, KG_MATH_RIGHT},
    {"<think>Perhaps \\boxed{7}? No.</think>\nThe roots are \\boxed{x = 2, x = -3}.",
     "x = -3, x = 2", KG_MATH_FORM_RESPONSE, KG_MATH_RIGHT},
    {"There are 5 ways for the first and 4 for the second.\n\nAnswer: 24", "20",
     KG_MATH_FORM_RESPONSE, KG_MATH_WRONG},
    {"Both sides are squared, so $x^2 = 5 + 2\\sqrt{6}$ and the answer is "
     "$\\boxed{\\sqrt{2} + \\sqrt{3}}$.",
     "\\sqrt{5 + 2\\sqrt{6}}", KG_MATH_FORM_RESPONSE, KG_MATH_RIGHT},
    {"The area is \\[A = \\frac{1}{2} \\cdot 6 \\cdot 8 = 24,\\] so the ratio is "
     "$\\frac{24}{36} = \\frac{2}{3}$.",
     "0.75", KG_MATH_FORM_TEXT, KG_MATH_WRONG},
    {"Therefore $x < 5$ is the solution.", "$x > 5$", KG_MATH_FORM_TEXT, KG_MATH_WRONG},
    {"$(-\\infty, -2] \\cup (3, \\infty)$", "$(3,\\infty)\\cup(-\\infty,-2]$",
     KG_MATH_FORM_TEXT, KG_MATH_RIGHT},
    {"$\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}$",
     "$\\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}$", KG_MATH_FORM_TEXT,
     KG_MATH_RIGHT},
    {"the interest is $16{,}386.20$ dollars", "$16386.16$", KG_MATH_FORM_TEXT,
     KG_MATH_WRONG},
    {"$28$ %", "$28\\%$", KG_MATH_FORM_TEXT, KG_MATH_RIGHT},
    {"So $\\sin 15^\\circ = \\boxed{\\frac{\\sqrt{6}-\\sqrt{2}}{4}}$.",
     "\\frac{1}{\\sqrt{6}+\\sqrt{2}}", KG_MATH_FORM_TEXT, KG_MATH_RIGHT},
    {"\\{1, 4, 9\\}", "\\{9, 1, 4\\}", KG_MATH_FORM_ANSWER, KG_MATH_RIGHT},
    {"(x+1)(x-1)(x^2+1)", "x^4 - 1", KG_MATH_FORM_ANSWER, KG_MATH_RIGHT},
    {"(x+1)(x-1)(x^2-1)", "x^4 - 1", KG_MATH_FORM_ANSWER, KG_MATH_WRONG},
    {"\\frac{n(n+1)}{2}", "\\binom{n+1}{2}", KG_MATH_FORM_ANSWER, KG_MATH_RIGHT},
    {"\\sum_{k=0}^n a_k", "\\sum_{k=1}^n a_k", KG_MATH_FORM_ANSWER, KG_MATH_UNDECIDED},
    {"918.5", "918\\frac{1}{2}", KG_MATH_FORM_ANSWER, KG_MATH_RIGHT},
    {"3\\sqrt{13}", "\\sqrt{117}", KG_MATH_FORM_ANSWER, KG_MATH_RIGHT},
    {"\\text{Evelyn}", "\\text{Briana}", KG_MATH_FORM_ANSWER, KG_MATH_WRONG},
    {"D. it cannot be A or B", "D", KG_MATH_FORM_CHOICE, KG_MATH_RIGHT},
};
enum { N_ANSWERS = sizeof answers / sizeof *answers };

static kg_status grade(struct kg_math_result *r, size_t i, struct kg_err *err)
{
    struct kg_math_opts opts = {.form = answers[i].form};
    struct kg_math_text text = {answers[i].answer, strlen(answers[i].answer)};
    struct kg_math_text gold = {answers[i].gold, strlen(answers[i].gold)};

    KG_TRY(kg_math_grade(r, &opts, text, &gold, 1, err));
    if (r->verdict == answers[i].verdict)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "'%.60s' against '%.60s': expected %s, found %s",
                   answers[i].answer, answers[i].gold,
                   kg_math_verdict_name(answers[i].verdict),
                   kg_math_verdict_name(r->verdict));
}

static kg_status grade_all(double *seconds, void *user, struct kg_err *err)
{
    struct kg_math_result r = {0};
    double start = kg_clock_thread_seconds();
    kg_status status = KG_OK;

    (void)user;
    for (size_t i = 0; i < (size_t)N_ANSWERS * ROUNDS && status == KG_OK; i++)
        status = grade(&r, i % N_ANSWERS, err);
    *seconds = kg_clock_thread_seconds() - start;
    kg_math_result_release(&r);
    return status;
}

kg_status kg_bench_grader(struct kg_bench_report *r, struct kg_err *err)
{
    const struct kg_bench_job job = {
        .run = grade_all, .user = NULL, .repeats = 5, .warm = true};
    struct kg_bench_share share = {.name = "grading, one core",
                                   .whole = ASKED,
                                   .unit = "answers/s",
                                   .of = "what is asked",
                                   .bar = {.limit = 1, .at_most = false}};
    struct kg_bench_timing t;

    KG_TRY(kg_bench_time(&t, r, &job, err));
    share.part = N_ANSWERS * ROUNDS / kg_bench_best(&t);
    return kg_bench_put_share(r, &share, err);
}
