/* verl's digit completion: the prompt "a,b:m,k" asks for the next k numbers of the
 * sequence that starts a, b and goes on by b - a, modulo m; the answer separates them by
 * commas. In verl's vocabulary of characters S starts the answer and E ends it.
 *
 * The reward is dense: 1 / (characters of the truth + 1) for each character up to the
 * first wrong one. The end token earns nothing, so a perfect answer of n characters gets
 * n / (n + 1).
 */
#include "base/mem.h"
#include "task/task_internal.h"

#include <string.h>

enum {
    START = 'S',
    END = 'E',
};

static kg_status append_start(struct kg_record *r, struct kg_err *err)
{
    size_t n = strlen(r->prompt);
    char *prompt;

    if (!kg_task_has_question(r) || (n > 0 && r->prompt[n - 1] == START))
        return KG_OK;
    prompt = kg_mem_calloc(n + 2, 1, "prompt", err);
    if (!prompt)
        return err->code;
    memcpy(prompt, r->prompt, n);
    prompt[n] = START;
    return kg_task_set_question(r, prompt, err);
}

static kg_status finish(struct kg_record *r, const struct kg_dataset *d,
                        struct kg_err *err)
{
    size_t valid = strspn(r->ground_truth, "0123456789,");

    if (r->ground_truth[valid] != 0)
        return kg_fail(err, KG_EFORMAT,
                       "%s: %s %lld: expected digits and commas as answer, found '%.60s'",
                       d->name, d->unit, (long long)r->line, r->ground_truth);
    if (!r->solution) {
        r->solution = kg_mem_strdup(r->ground_truth, err);
        if (!r->solution)
            return err->code;
    }
    return append_start(r, err);
}

kg_status kg_task_digits_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                              const char *path, struct kg_err *err)
{
    kg_status status;

    KG_TRY(kg_task_read(d, path, opts, true, err));
    for (size_t i = 0; i < d->n; i++)
        KG_TRY_GOTO(fail, finish(&d->records[i], d, err));
    return KG_OK;
fail:
    kg_dataset_release(d);
    return status;
}

kg_status kg_task_digits_grade(struct kg_grade *g, const struct kg_record *r,
                               const char *response, size_t n, struct kg_err *err)
{
    size_t truth_n = strlen(r->ground_truth);
    size_t right = 0;

    (void)err;
    /* whether the end shows in the text depends on how special tokens are printed */
    if (n > 0 && response[n - 1] == END)
        n--;
    while (right < n && right < truth_n && response[right] == r->ground_truth[right])
        right++;
    g->graded = true;
    g->correct = right == truth_n && n == truth_n;
    g->reward = (double)right / (double)(truth_n + 1);
    return KG_OK;
}
