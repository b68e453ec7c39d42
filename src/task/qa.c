/* Metrics, extraction, the format reward. All metrics read texts normalised in one way
 * and test for equality, containment, or shared words (F1, counted on sorted lists). The
 * answer of an episode is the last pair of tags that the model wrote. The format reward
 * is a function of a few facts about an episode, not of text, so all of its cases are
 * tested. */
#define _GNU_SOURCE /* memmem */
#include "task/qa.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- metrics ---- */

static kg_status score_em(double *score, struct kg_qa_text prediction,
                          struct kg_qa_text gold, struct kg_err *err)
{
    (void)err;
    *score = prediction.n == gold.n && memcmp(prediction.text, gold.text, gold.n) == 0;
    return KG_OK;
}

static bool contains(struct kg_qa_text text, struct kg_qa_text part)
{
    return part.n == 0 || memmem(text.text, text.n, part.text, part.n) != NULL;
}

static kg_status score_subem(double *score, struct kg_qa_text prediction,
                             struct kg_qa_text gold, struct kg_err *err)
{
    (void)err;
    *score = contains(prediction, gold);
    return KG_OK;
}

static int compare_words(const void *left, const void *right)
{
    const struct kg_qa_text *a = left;
    const struct kg_qa_text *b = right;
    int order = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);

    return order ? order : (a->n > b->n) - (a->n < b->n);
}

/* The words of a normalised text, sorted.   words: (n) owned */
static kg_status sorted_words(struct kg_qa_text **words, size_t *n, struct kg_qa_text t,
                              struct kg_err *err)
{
    size_t from = 0;

    *n = 0;
    KG_TRY(kg_mem_new(words, t.n / 2 + 1, sizeof **words, "words of an answer", err));
    for (size_t i = 0; i <= t.n; i++) {
        if (i < t.n && t.text[i] != ' ')
            continue;
        if (i > from)
            (*words)[(*n)++] = (struct kg_qa_text){t.text + from, i - from};
        from = i + 1;
    }
    qsort(*words, *n, sizeof **words, compare_words);
    return KG_OK;
}

/* Number of words that two sorted lists share, counted with repetitions. */
static size_t shared_words(const struct kg_qa_text *a, size_t n_a,
                           const struct kg_qa_text *b, size_t n_b)
{
    size_t shared = 0;

    for (size_t i = 0, j = 0; i < n_a && j < n_b;) {
        int order = compare_words(&a[i], &b[j]);

        shared += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return shared;
}

static kg_status score_f1(double *score, struct kg_qa_text prediction,
                          struct kg_qa_text gold, struct kg_err *err)
{
    struct kg_qa_text *a = NULL;
    struct kg_qa_text *b = NULL;
    size_t n_a, n_b, shared;
    kg_status status;

    *score = 0;
    KG_TRY_GOTO(out, sorted_words(&a, &n_a, prediction, err));
    KG_TRY_GOTO(out, sorted_words(&b, &n_b, gold, err));
    shared = shared_words(a, n_a, b, n_b);
    if (shared > 0)
        *score = 2.0 * (double)shared / (double)(n_a + n_b);
out:
    kg_mem_free(a);
    kg_mem_free(b);
    return status;
}

static const struct kg_qa_metric metrics[] = {
    {"em", "exact match: equal to a gold answer, both normalised", true, score_em},
    {"subem", "a gold answer is part of the answer, both normalised", true, score_subem},
    {"f1", "harmonic mean of precision and recall of words", false, score_f1},
    {.name = NULL},
};

const struct kg_qa_metric *kg_qa_metrics(void) { return metrics; }

kg_status kg_qa_metric_find(const struct kg_qa_metric **metric, const char *name,
                            struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "metric", name, metrics,
                       sizeof metrics / sizeof *metrics - 1, sizeof *metrics, err));
    *metric = &metrics[i];
    return KG_OK;
}

static struct kg_qa_text text_of(const struct kg_str *s)
{
    return (struct kg_qa_text){kg_str_text(s), s->len};
}

kg_status kg_qa_score(double *score, const struct kg_qa_metric *metric,
                      struct kg_qa_text prediction, const struct kg_qa_text *golds,
                      size_t n_golds, struct kg_err *err)
{
    struct kg_str said = {0};
    struct kg_str gold = {0};
    kg_status status;

    *score = 0;
    KG_TRY_GOTO(out, kg_qa_normalise(&said, prediction.text, prediction.n, err));
    for (size_t i = 0; i < n_golds && *score < 1; i++) {
        double of_this;

        kg_str_clear(&gold);
        KG_TRY_GOTO(out, kg_qa_normalise(&gold, golds[i].text, golds[i].n, err));
        KG_TRY_GOTO(out, metric->score(&of_this, text_of(&said), text_of(&gold), err));
        *score = of_this > *score ? of_this : *score;
    }
out:
    kg_str_release(&said);
    kg_str_release(&gold);
    return status;
}

/* ---- extraction ---- */

/* The last pair of the text; *n counts all of them. */
static void last_pair(struct kg_tagged *last, size_t *n, const char *text, size_t len)
{
    struct kg_tagged next;

    for (size_t at = 0;; at = next.end) {
        kg_tagged_next(&next, &kg_search_tags.answer, text, len, at);
        if (!next.text)
            return;
        *last = next;
        ++*n;
    }
}

bool kg_qa_extract(struct kg_qa_text *answer, const struct kg_qa_episode *e, int pairs)
{
    struct kg_tagged shown;
    struct kg_tagged last = {.text = NULL};
    size_t n = 0;

    if (pairs == 2 && e->prompt)
        last_pair(&shown, &n, e->prompt, e->prompt_n);
    for (size_t i = 0; i < e->n_spans; i++) {
        if (e->spans[i].source == KG_SOURCE_MODEL)
            last_pair(&last, &n, e->spans[i].text, e->spans[i].n);
    }
    *answer = (struct kg_qa_text){"", 0};
    if (!last.text || n < (size_t)pairs)
        return false;
    answer->text = kg_text_trim(&answer->n, last.text, last.n);
    return true;
}

/* ---- retrieval ---- */

static kg_status add_passages(bool *yes, const char *text, size_t n,
                              const struct kg_str *golds, size_t n_golds,
                              struct kg_err *err)
{
    struct kg_str passage = {0};
    kg_status status = kg_qa_normalise(&passage, text, n, err);

    for (size_t i = 0; status == KG_OK && i < n_golds && !*yes; i++)
        *yes = contains(text_of(&passage), text_of(&golds[i]));
    kg_str_release(&passage);
    return status;
}

static void release_golds(struct kg_str *golds, size_t n)
{
    for (size_t i = 0; golds && i < n; i++)
        kg_str_release(&golds[i]);
    kg_mem_free(golds);
}

/* *out (n) owned: the gold answers, normalised */
static kg_status normalise_golds(struct kg_str **out, const struct kg_qa_text *golds,
                                 size_t n, struct kg_err *err)
{
    kg_status status = KG_OK;

    KG_TRY(kg_mem_new(out, n, sizeof **out, "gold answers", err));
    for (size_t i = 0; i < n && status == KG_OK; i++)
        status = kg_qa_normalise(&(*out)[i], golds[i].text, golds[i].n, err);
    if (status != KG_OK) {
        release_golds(*out, n);
        *out = NULL;
    }
    return status;
}

kg_status kg_qa_is_retrieved(bool *yes, const struct kg_qa_episode *e,
                             const struct kg_qa_text *golds, size_t n_golds,
                             struct kg_err *err)
{
    struct kg_str *plain;
    kg_status status;

    *yes = false;
    KG_TRY(normalise_golds(&plain, golds, n_golds, err));
    for (size_t i = 0; i < e->n_spans && !*yes; i++) {
        const struct kg_span *s = &e->spans[i];

        if (s->source == KG_SOURCE_TOOL && kg_qa_is_information(s))
            KG_TRY_GOTO(out, add_passages(yes, s->text, s->n, plain, n_golds, err));
    }
    status = KG_OK;
out:
    release_golds(plain, n_golds);
    return status;
}

kg_status kg_qa_is_retrieved_text(bool *yes, const char *text, size_t n,
                                  const struct kg_qa_text *golds, size_t n_golds,
                                  struct kg_err *err)
{
    struct kg_tagged block;
    struct kg_str *plain;
    kg_status status = KG_OK;

    *yes = false;
    KG_TRY(normalise_golds(&plain, golds, n_golds, err));
    kg_tagged_next(&block, &kg_information_tags, text, n, 0);
    while (block.text && !*yes) {
        KG_TRY_GOTO(out, add_passages(yes, block.text, block.n, plain, n_golds, err));
        kg_tagged_next(&block, &kg_information_tags, text, n, block.end);
    }
out:
    release_golds(plain, n_golds);
    return status;
}

/* ---- the format reward ---- */

double kg_qa_format_score(const struct kg_qa_format *f, const struct kg_qa_facts *facts)
{
    if (facts->answered && facts->right)
        return facts->valid ? 1 : 1 - f->structure;
    if (facts->valid)
        return f->structure + (facts->retrieved ? f->retrieval : 0);
    return facts->answered ? f->final : 0;
}
