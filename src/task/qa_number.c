/* Questions whose answer is one number (GSM8K and its kin).
 *
 * If a completion marks its answer by \boxed{..} or ####, the last mark counts and must
 * hold exactly one number: a list of guesses is wrong. Without a mark the last
 * number of the text counts. Numbers are compared as exact decimals, without thousands
 * separators, units, $ and %. It does not do algebra: 1/2 is not 0.5.
 */
#include "task/task_internal.h"

#include <string.h>

static const char BOXED[] = "\\boxed{";

/* The content of the last \boxed{..} with balanced braces.   returns NULL if there is
 * none */
static const char *last_boxed(const char *text, size_t n, size_t *len)
{
    size_t size = sizeof BOXED - 1;

    for (size_t i = n; i >= size; i--) {
        int depth = 1;

        if (memcmp(text + i - size, BOXED, size) != 0)
            continue;
        for (size_t j = i; j < n; j++) {
            depth += (text[j] == '{') - (text[j] == '}');
            if (depth == 0) {
                *len = j - i;
                return text + i;
            }
        }
    }
    return NULL;
}

static bool find_answer(struct kg_task_number *out, const char *text, size_t n)
{
    size_t boxed_n = 0;
    size_t marked_n = 0;
    const char *boxed = last_boxed(text, n, &boxed_n);
    const char *marked = kg_task_after_marker(text, n, &marked_n);

    if (boxed && (!marked || boxed > marked))
        return kg_task_number_only(out, boxed, boxed_n);
    if (marked)
        return kg_task_number_only(out, marked, marked_n);
    return kg_task_number_last(out, text, n);
}

/* GSM8K's own answers are worked solutions that end in "#### n": keeps the number as
 * truth, the text as solution. */
static kg_status split_answer(struct kg_record *r, const struct kg_dataset *d,
                              struct kg_err *err)
{
    struct kg_task_number number;
    size_t len;
    const char *marked = kg_task_after_marker(r->ground_truth, strlen(r->ground_truth),
                                              &len);

    if (!marked) {
        if (kg_task_number_only(&number, r->ground_truth, strlen(r->ground_truth)))
            return KG_OK;
        return kg_fail(err, KG_EFORMAT,
                       "%s: %s %lld: expected one number as answer, found '%.60s'",
                       d->name, d->unit, (long long)r->line, r->ground_truth);
    }
    if (!kg_task_number_only(&number, marked, len))
        return kg_fail(
            err, KG_EFORMAT, "%s: %s %lld: expected one number after ####, found '%.*s'",
            d->name, d->unit, (long long)r->line, (int)(len < 60 ? len : 60), marked);
    return kg_task_split_answer(r, number.text, strlen(number.text), err);
}

kg_status kg_task_qa_number_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                 const char *path, struct kg_err *err)
{
    kg_status status;

    KG_TRY(kg_task_read(d, path, opts, true, err));
    for (size_t i = 0; i < d->n; i++)
        KG_TRY_GOTO(fail, split_answer(&d->records[i], d, err));
    return KG_OK;
fail:
    kg_dataset_release(d);
    return status;
}

kg_status kg_task_qa_number_grade(struct kg_grade *g, const struct kg_record *r,
                                  const char *response, size_t n, struct kg_err *err)
{
    struct kg_task_number gold;
    struct kg_task_number found;

    if (!kg_task_number_only(&gold, r->ground_truth, strlen(r->ground_truth)))
        return kg_fail(err, KG_EFORMAT,
                       "expected one number as ground truth, found '%.40s'",
                       r->ground_truth);
    g->graded = true;
    g->correct = find_answer(&found, response, n) && kg_task_number_same(&gold, &found);
    g->reward = g->correct;
    return KG_OK;
}

kg_status kg_task_qa_number_extract(struct kg_str *out, const struct kg_task_opts *opts,
                                    const struct kg_grade_item *item, struct kg_err *err)
{
    struct kg_task_number found;

    (void)opts;
    return find_answer(&found, item->response, item->n)
               ? kg_task_number_put(out, &found, err)
               : KG_OK;
}
