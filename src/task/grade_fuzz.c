/* Fuzz target: every grader takes any response, and says right or wrong; the same text
 * says the same again.
 *
 * The first byte picks the task. The ground truths are fixed, as they come from the data
 * set and not from a model.
 */
#include "task/task.h"

#include <stdlib.h>
#include <string.h>

int kg_fuzz_grade(const uint8_t *bytes, size_t n);

static void grade(struct kg_grade *g, const struct kg_task_row *row,
                  const struct kg_record *r, const uint8_t *bytes, size_t n)
{
    struct kg_err err;

    if (row->grade(g, r, (const char *)bytes, n, &err) != KG_OK ||
        !(g->reward >= 0 && g->reward <= 1) || !g->graded)
        abort();
}

int kg_fuzz_grade(const uint8_t *bytes, size_t n)
{
    static char number[] = "-1,234.50";
    static char puzzle[] = "{\"target\":46,\"numbers\":[3,7,25]}";
    static char digits[] = "1,2,3";
    static const struct {
        const char *task;
        char *truth;
    } rows[] = {{"arithmetic", number},
                {"countdown", puzzle},
                {"digits", digits},
                {"qa-number", number}};
    const struct kg_task_row *row;
    struct kg_grade first = {0};
    struct kg_grade second = {0};
    struct kg_record r = {.line = 1};
    struct kg_err err;

    if (n == 0)
        return 0;
    r.ground_truth = rows[bytes[0] % 4].truth;
    if (kg_task_find(&row, rows[bytes[0] % 4].task, &err) != KG_OK)
        abort();
    grade(&first, row, &r, bytes + 1, n - 1);
    grade(&second, row, &r, bytes + 1, n - 1);
    if (first.reward != second.reward || first.correct != second.correct)
        abort();
    return 0;
}
