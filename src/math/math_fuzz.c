/* Fuzz target: any answer against any gold answer, in every mode and form, ends with a
 * verdict and a reason, and the same texts give the same verdict again.
 *
 * The first byte selects mode and form; the rest is gold answer and answer, separated by
 * the first newline.
 */
#include "math/math.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int kg_fuzz_math(const uint8_t *bytes, size_t n);

static enum kg_math_verdict verdict_of(bool *timed_out, const struct kg_math_opts *opts,
                                       struct kg_math_text gold,
                                       struct kg_math_text answer)
{
    struct kg_math_result r = {0};
    struct kg_err err;
    enum kg_math_verdict v;

    if (kg_math_grade(&r, opts, answer, &gold, 1, &err) != KG_OK || r.reason[0] == 0 ||
        r.verdict > KG_MATH_UNDECIDED)
        abort();
    v = r.verdict;
    *timed_out = *timed_out || strstr(r.reason, "time limit");
    kg_math_result_release(&r);
    return v;
}

int kg_fuzz_math(const uint8_t *bytes, size_t n)
{
    const char *text = (const char *)bytes + 1;
    const char *split;
    struct kg_math_opts opts = {0};
    struct kg_math_text gold;
    struct kg_math_text answer;
    enum kg_math_verdict first;
    bool timed_out = false;

    if (n < 2)
        return 0;
    opts.mode = &kg_math_modes()[bytes[0] % 4];
    if (!opts.mode->grade) /* a mode of a guest that is not linked */
        return 0;
    opts.form = (enum kg_math_form)(bytes[0] / 4 % 6);
    opts.lenient = bytes[0] & 128;
    split = memchr(text, '\n', n - 1);
    gold = (struct kg_math_text){text, split ? (size_t)(split - text) : 0};
    answer = (struct kg_math_text){split ? split + 1 : text,
                                   n - 1 - (split ? gold.n + 1 : 0)};
    first = verdict_of(&timed_out, &opts, gold, answer);
    /* the time limit depends on the machine's speed, so a timeout may differ */
    if (verdict_of(&timed_out, &opts, gold, answer) != first && !timed_out)
        abort();
    return 0;
}
