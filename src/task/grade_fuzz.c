/* Fuzz target: every grader accepts any response and decides right or wrong; a second
 * call gives the same result.
 *
 * The first byte, a digit, selects the task. The gold answers are fixed, because they
 * come from a data set and not from a model.
 */
#include "task/task.h"

#include <stdlib.h>
#include <string.h>

int kg_fuzz_grade(const uint8_t *bytes, size_t n);

static void grade(struct kg_grade *g, const struct kg_task_row *row,
                  const struct kg_record *r, const uint8_t *bytes, size_t n)
{
    const struct kg_task_opts opts = {.metric = "format", .format = {0.2, 0.1, 0.05}};
    const struct kg_grade_item item = {
        .record = r, .response = (const char *)bytes, .n = n};
    struct kg_err err;
    kg_status status = row->grade ? row->grade(g, r, item.response, n, &err)
                                  : row->grade_by(g, &opts, &item, &err);

    if (status != KG_OK || !(g->reward >= 0 && g->reward <= 1) || !g->graded)
        abort();
}

int kg_fuzz_grade(const uint8_t *bytes, size_t n)
{
    static char number[] = "-1,234.50";
    static char puzzle[] = "{\"target\":46,\"numbers\":[3,7,25]}";
    static char digits[] = "1,2,3";
    static char city[] = "[\"Rome\",\"\"]";
    static const struct {
        const char *task;
        char *truth;
    } rows[] = {{"arithmetic", number},
                {"countdown", puzzle},
                {"digits", digits},
                {"qa-number", number},
                {"search-qa", city}};
    size_t pick = n ? (uint8_t)(bytes[0] - '0') % (sizeof rows / sizeof *rows) : 0;
    const struct kg_task_row *row;
    struct kg_grade first = {0};
    struct kg_grade second = {0};
    struct kg_record r = {.line = 1};
    struct kg_err err;

    if (n == 0)
        return 0;
    r.ground_truth = rows[pick].truth;
    if (kg_task_find(&row, rows[pick].task, &err) != KG_OK)
        abort();
    grade(&first, row, &r, bytes + 1, n - 1);
    grade(&second, row, &r, bytes + 1, n - 1);
    if (first.reward != second.reward || first.correct != second.correct)
        abort();
    return 0;
}
