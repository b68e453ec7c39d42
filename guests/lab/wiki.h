/* A made-up world to learn searching on: works by people, people born in places, places
 * on rivers; a corpus of one short passage each, and questions that take two searches.
 *
 *     Sursot is a play by Hutsan.
 *     Hutsan was born in Vulgul and studied under Masbor.
 *     Where was the author of Sursot born?
 *
 * Names are two syllables of three letters, so that a tokenizer trained on the syllables
 * writes every name in two tokens and a small model can copy one that it never saw. The
 * world has two parts that share no name: what training asks about, and what the test
 * asks about. The corpus holds both, and nothing else holds the second: its answers are
 * found by searching or not at all.
 *
 * Everything is a function of the seed and the size.
 */
#ifndef KG_LAB_WIKI_H
#define KG_LAB_WIKI_H

#include "base/status.h"
#include "task/env.h"

#include <stdint.h>

struct kg_wiki_opts {
    uint64_t seed;
    int64_t works; /* that training asks about: 8 to 3,000; two thirds as many people, a
                    * third as many places; the test's part has an eighth of that */
};

struct kg_wiki; /* opaque */
/* errors: EINVAL, ENOMEM */
kg_status kg_wiki_create(struct kg_wiki **out, const struct kg_wiki_opts *opts,
                         struct kg_err *err) KG_MUST_CHECK;
void kg_wiki_free(struct kg_wiki *w);

enum kg_wiki_part { KG_WIKI_TRAIN, KG_WIKI_TEST, KG_WIKI_PARTS };

struct kg_wiki_counts {
    int64_t passages, names;
    int64_t questions[KG_WIKI_PARTS];
};
void kg_wiki_count(struct kg_wiki_counts *out, const struct kg_wiki *w);

/* Into the folder dir, which is made:
 *   corpus.jsonl       {id, contents}
 *   train.jsonl        {id, question, golden_answers, data_source, extra_info.hops}: what
 *   test.jsonl         is asked, and the names whose passages must be read
 *   tokenizer.jsonl    {text}: every syllable, and the words around names
 * errors: EINVAL (another file of such a name is there), EIO, ENOSPACE, ENOMEM */
kg_status kg_wiki_write(const struct kg_wiki *w, const char *dir,
                        struct kg_err *err) KG_MUST_CHECK;

/* ---- episodes ---- */

/* Somebody plays training questions in a real environment, and does it badly: a share of
 * the episodes searches the wrong thing, stops after the first search, answers with the
 * wrong name, or does not search. What the environment says is kept as it said it. */
struct kg_wiki_play {
    const struct kg_env_row *row; /* the search agent */
    void *env;                    /* its state, open */
    int64_t count;                /* episodes */
    double fault_rate;            /* share that goes wrong */
};
enum { KG_WIKI_WAYS = 6 };
struct kg_wiki_played {
    struct {
        const char *name; /* "right" first */
        int64_t n;
    } ways[KG_WIKI_WAYS];
};
/* path: {prompt, segments, way}, for supervised training.
 * errors: EINVAL (count, fault_rate), EIO (path, the environment), EFORMAT (the
 * environment ends an episode after a search, or does not find what is in the corpus) */
kg_status kg_wiki_episodes(struct kg_wiki_played *out, const struct kg_wiki *w,
                           const struct kg_wiki_play *play, const char *path,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
