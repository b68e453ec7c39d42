/* Fuzz target: the model's text, read as a turn. Actions, trimming, the calculator,
 * normalisation and the format of an episode accept any bytes; what they find lies inside
 * the text, and a second call gives the same result.
 *
 * The first byte selects what is tried.
 */
#include "math/math.h"
#include "task/qa.h"

#include <stdlib.h>
#include <string.h>

int kg_fuzz_env(const uint8_t *bytes, size_t n);

static void need(bool holds)
{
    if (!holds)
        abort();
}

static void try_action(const char *text, size_t n)
{
    struct kg_action a;

    kg_action_read(&a, &kg_search_tags, text, n);
    if (a.kind == KG_ACTION_NONE)
        return;
    need(a.raw.begin < a.raw.end && a.raw.end <= n);
    need(a.text >= a.raw.text && a.text + a.n <= a.raw.text + a.raw.n);
}

static void try_calculator(const char *text, size_t n)
{
    struct kg_str first = {0}, second = {0};
    struct kg_err err;
    bool found, again;

    need(kg_math_calculate(&first, &found, text, n, &err) == KG_OK);
    need(kg_math_calculate(&second, &again, text, n, &err) == KG_OK);
    need(first.len > 0 && found == again && strcmp(first.data, second.data) == 0);
    kg_str_release(&first);
    kg_str_release(&second);
}

/* Normalising twice may remove more (an article that punctuation had joined to a word).
 * Text grows only where lowering a capital I with a dot adds bytes. */
static void try_normalise(const char *text, size_t n)
{
    const struct kg_qa_text t = {text, n};
    struct kg_str out = {0};
    struct kg_err err;

    need(kg_qa_normalise(&out, text, n, &err) == KG_OK);
    need(out.len <= 3 * n + 4);
    need(out.len == 0 || (out.data[0] != ' ' && out.data[out.len - 1] != ' '));
    kg_str_release(&out);
    for (const struct kg_qa_metric *m = kg_qa_metrics(); m->name; m++) {
        double score;

        need(kg_qa_score(&score, m, t, &t, 1, &err) == KG_OK);
        need(score == 1 || (score == 0 && !m->exact));
    }
}

/* The bytes as up to three spans, alternately of model and tool; a zero byte ends a
 * span. */
static void try_episode(const char *text, size_t n)
{
    struct kg_span spans[3] = {{text, n, KG_SOURCE_MODEL}};
    struct kg_qa_episode e = {
        .prompt = text, .prompt_n = n, .spans = spans, .n_spans = 1};
    struct kg_qa_text answer;
    struct kg_err err;
    bool yes;

    while (e.n_spans < 3) {
        struct kg_span *last = &spans[e.n_spans - 1];
        const char *end = last->n ? memchr(last->text, 0, last->n) : NULL;

        if (!end)
            break;
        spans[e.n_spans++] = (struct kg_span){
            end + 1, last->n - (size_t)(end - last->text) - 1,
            last->source == KG_SOURCE_MODEL ? KG_SOURCE_TOOL : KG_SOURCE_MODEL};
        last->n = (size_t)(end - last->text);
    }
    for (int pairs = 1; pairs <= 2; pairs++)
        if (kg_qa_extract(&answer, &e, pairs))
            need(answer.text >= text && answer.text + answer.n <= text + n);
    if (kg_qa_is_valid(&e))
        need(kg_qa_extract(&answer, &e, 1));
    (void)kg_qa_is_valid_text(text, n, true);
    need(kg_qa_is_retrieved(&yes, &e, &answer, 1, &err) == KG_OK);
}

int kg_fuzz_env(const uint8_t *bytes, size_t n)
{
    static void (*const tries[])(const char *text, size_t n) = {
        try_action, try_calculator, try_normalise, try_episode};

    if (n > 0)
        tries[bytes[0] % 4]((const char *)bytes + 1, n - 1);
    return 0;
}
