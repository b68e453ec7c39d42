/* kedge wiki: the synthetic world of wiki.h as files, and episodes played in it.
 *
 * Seed and size determine a world, so its files fit episodes played later. Episodes are
 * played by the environment that training uses, against an index that was built from the
 * corpus, so they match what the model will see in training. An index of another world is
 * refused. The counts of episodes by kind go to stderr.
 */
#include "cli/cli.h"

#include "lab/wiki.h"

#include <stdio.h>
#include <string.h>

static int64_t seed = 1, works = 3000, count = 5000, topk = 2;
static double fault_rate = 0.65;

const struct kg_flag kg_wiki_flags[] = {
    {"seed", 0, KG_TO(seed), "S", "seed of the world (default 1)", 0, 1e15},
    {"works", 0, KG_TO(works), "N",
     "size of the world: number of works in training questions (default 3000)", 8, 3000},
    {"count", 'n', KG_IF("=episodes", count), "N", "number of episodes (default 5000)", 1,
     1e7},
    {"fault-rate", 0, KG_IF("=episodes", fault_rate), "F",
     "share of bad episodes (default 0.65)", 0, 1},
    {"topk", 'k', KG_IF("=episodes", topk), "N", "passages for a query (default 2)", 1,
     100},
    {0},
};

static kg_status write_corpus(const struct kg_wiki *w, char **argv, struct kg_err *err)
{
    struct kg_wiki_counts c;

    KG_TRY(kg_wiki_write(w, argv[1], err));
    kg_wiki_count(&c, w);
    fprintf(stderr,
            "%s: %lld passages on %lld names, %lld questions to train on, %lld held "
            "out\n",
            argv[1], (long long)c.passages, (long long)c.names,
            (long long)c.questions[KG_WIKI_TRAIN], (long long)c.questions[KG_WIKI_TEST]);
    return KG_OK;
}

static kg_status play(const struct kg_wiki *w, char **argv, struct kg_err *err)
{
    struct kg_env_opts opts = {
        .retriever = argv[1], .topk = (int)topk, .stop_when_down = true};
    struct kg_wiki_play how = {.count = count, .fault_rate = fault_rate};
    struct kg_wiki_played played;

    KG_TRY(kg_env_find(&how.row, "search", err));
    KG_TRY(how.row->open(&how.env, &opts, err));
    kg_status status = kg_wiki_episodes(&played, w, &how, argv[2], err);
    how.row->close(how.env);
    if (status == KG_EFORMAT)
        return kg_err_prefix(err, "%.200s, and the world of --seed %lld --works %lld",
                             argv[1], (long long)seed, (long long)works);
    if (status == KG_OK) {
        fprintf(stderr, "%s:", argv[2]);
        for (int k = 0; k < KG_WIKI_WAYS; k++)
            fprintf(stderr, "%s %lld %s", k ? "," : "", (long long)played.ways[k].n,
                    played.ways[k].name);
        fputc('\n', stderr);
    }
    return status;
}

int kg_cmd_wiki(int argc, char **argv)
{
    struct kg_wiki_opts opts = {.seed = (uint64_t)seed, .works = works};
    bool corpus = argc == 2 && strcmp(argv[0], "corpus") == 0,
         episodes = argc == 3 && strcmp(argv[0], "episodes") == 0;
    struct kg_wiki *w = NULL;
    struct kg_err err;
    kg_status status;

    if (!corpus && !episodes)
        return kg_cli_usage("expected corpus DIR, or episodes INDEX OUT.jsonl");
    KG_TRY_GOTO(out, kg_wiki_create(&w, &opts, &err));
    status = corpus ? write_corpus(w, argv, &err) : play(w, argv, &err);
out:
    kg_wiki_free(w);
    return kg_cli_exit(status, &err);
}
