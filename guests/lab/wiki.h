/* A synthetic world for learning to search: works by people, people born in places,
 * places on rivers. The corpus has a short passage for each; a question takes two
 * searches.
 *
 *     Sursot is a play by Hutsan.
 *     Hutsan was born in Vulgul and studied under Masbor.
 *     Where was the author of Sursot born?
 *
 * Names are two syllables of three letters, so that a tokenizer trained on the syllables
 * writes every name in two tokens. A small model can then copy a name that it never saw.
 * The world has two parts without common names, one for training questions and one for
 * test questions. The corpus covers both. No other file has the test part, so its answers
 * can be found only by searching.
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
    /* number of works in the training part, 8 to 3,000. There are two thirds as many
     * people and a third as many places. The test part is an eighth in size */
    int64_t works;
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

/* Creates the folder dir with:
 *   corpus.jsonl       {id, contents}
 *   train.jsonl        {id, question, golden_answers, data_source, extra_info.hops};
 *   test.jsonl         hops: the names whose passages must be read
 *   tokenizer.jsonl    {text}: every syllable, and the words around names
 * errors: EINVAL (another file has one of these names), EIO, ENOSPACE, ENOMEM */
kg_status kg_wiki_write(const struct kg_wiki *w, const char *dir,
                        struct kg_err *err) KG_MUST_CHECK;

/* ---- episodes ---- */

/* A script answers training questions in a real environment, which writes the
 * observations. A fraction of its episodes is faulty: a wrong search, only one search, a
 * wrong answer, or no search. */
struct kg_wiki_play {
    const struct kg_env_row *row; /* the search agent */
    void *env;                    /* its state, open */
    int64_t count;                /* episodes */
    double fault_rate;            /* fraction of faulty episodes */
};
enum { KG_WIKI_WAYS = 6 };
struct kg_wiki_played {
    struct {
        const char *name; /* "right" first */
        int64_t n;
    } ways[KG_WIKI_WAYS];
};
/* Writes path with records {prompt, segments, way}, for SFT.
 * errors: EINVAL (count, fault_rate), EIO (path, the environment), EFORMAT (the
 * environment ends an episode after a search, or does not find a passage of the
 * corpus) */
kg_status kg_wiki_episodes(struct kg_wiki_played *out, const struct kg_wiki *w,
                           const struct kg_wiki_play *play, const char *path,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
