/* A suite: which problems a model is evaluated on, and how.
 *
 * A YAML file with the sections suite (name, seed), sets (one mapping for each set, under
 * its name) and defaults (what holds for every set that does not say otherwise). Every
 * key stands in one table, set_rows of suite.c, but those of a retriever, which recipes
 * have too (task/env.h). A resolved suite gives every set a value
 * for every key, and is what a results folder keeps and compares.
 */
#ifndef KG_EVAL_SUITE_H
#define KG_EVAL_SUITE_H

#include "base/status.h"
#include "data/options.h"
#include "eval/eval.h"
#include "rollout/episode.h"
#include "task/prompts.h"
#include "text/chat_template.h"

#include <stdbool.h>
#include <stdint.h>

enum { KG_SUITE_NAME_BYTES = 64, KG_SUITE_MAX_SETS = 256 };

struct kg_suite_about {
    const char *name, *about;
    uint64_t seed;
    struct kg_opt_list sets; /* none: all */
    const char *model_path, *model_adapter, *model_dtype, *model_device;
    const char *server_url, *server_model, *server_api;
};

struct kg_suite {
    struct kg_config *config; /* owned */
    /* (n_all) owned: the n sets that are evaluated, then those that suite.sets leaves
     * out; both in the order of the file */
    char **names;
    size_t n;
    size_t n_all;
    bool is_file;            /* false: there is one set, which flags make */
    struct kg_opt_row *rows; /* owned, and their keys */
};

/* path NULL: the one set KG_EVAL_SET, every key at its default.
 * errors: those of kg_config_load_yaml, EINVAL (no set, a name with other bytes than
 * letters, digits, _ and -) */
kg_status kg_suite_open(struct kg_suite *s, const char *path,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_suite_release(struct kg_suite *s); /* {0} allowed */
/* What is said of the suite as a whole; borrowed until its config is changed. */
struct kg_suite_about kg_suite_about(const struct kg_suite *s);
/* Give suite.sets the sets that a list "a,b" names; without: of those that it has
 * (where it is empty: of all) the others.
 * errors: EINVAL (a name of no set, none left) */
kg_status kg_suite_pick(struct kg_suite *s, const char *list, bool without,
                        const char *where, struct kg_err *err) KG_MUST_CHECK;
/* Leave out what suite.sets does not name.   errors: EINVAL (a name of no set) */
kg_status kg_suite_choose(struct kg_suite *s, struct kg_err *err) KG_MUST_CHECK;
/* Give every set a value for every key that it does not say, the one of defaults; then
 * choose. */
kg_status kg_suite_resolve(struct kg_suite *s, struct kg_err *err) KG_MUST_CHECK;
/* Give a key to all sets. */
kg_status kg_suite_set_all(struct kg_suite *s, const char *key, const char *value,
                           const char *where, struct kg_err *err) KG_MUST_CHECK;

/* One set of a resolved suite. Texts are borrowed from the suite. */
struct kg_eval_set {
    const char *name;
    struct {
        const char *data, *task, *env; /* file, and names of rows */
        struct kg_opt_list rewards, reward_weights;
        struct kg_opt_list pass_k, maj_k, stops;
    } said;
    const char *group;     /* "" for none */
    const char *source;    /* where the data come from, "" unknown */
    const char *licence;   /* of the data */
    const char *chat_name; /* auto, none, or a file */
    const char *only;      /* data_source of the records that count, "" for all */
    struct kg_str path;    /* owned: the data file, "" where problems are generated */
    struct kg_str encoder; /* owned: folder of the retriever's, "" where it has none */
    const struct kg_task_row *task;
    /* the set owns its chat, excluded, running and rewards */
    struct kg_task_opts task_opts;
    struct kg_further_names further; /* said by graders so far */
    enum kg_special special;
    char exclude_key[2 * KG_SUITE_NAME_BYTES]; /* of task_opts */
    struct kg_sampling sampling;
    struct kg_episode_opts episode; /* env NULL: answers of one turn */
    int32_t samples;
    int64_t limit;  /* problems used at most; 0: all */
    int64_t expect; /* records that the file must have; 0: any number */
    struct kg_eval_ks ks;
    struct kg_chat_template *chat; /* owned or NULL */
    struct kg_dataset data;        /* owned: the problems, once loaded */
    int64_t records;               /* that the file has */
};

/* Set i as the suite says, nothing opened.   data_dir: in front of relative paths, NULL
 * for none
 * errors: EINVAL (unknown task, a k that is no number or over the samples, ...), all with
 * the name of the set */
kg_status kg_eval_set_init(struct kg_eval_set *set, const struct kg_suite *s, size_t i,
                           const char *data_dir, struct kg_err *err) KG_MUST_CHECK;
void kg_eval_set_release(struct kg_eval_set *set); /* {0} allowed */
/* Read the problems.   chat: NULL, or the template instead of the one the set names
 * (taken over); model_dir: of chat_template auto, NULL where there is none
 * errors: those of the task; EINVAL (another number of records than expected, none left),
 * with the name of the set */
kg_status kg_eval_set_load(struct kg_eval_set *set, struct kg_chat_template *chat,
                           const char *model_dir, struct kg_err *err) KG_MUST_CHECK;
/* Whether there is a data file, where one is needed. */
bool kg_eval_set_has_data(const struct kg_eval_set *set);
/* "expected FILE: 30 records (from ..., licence ...)" */
kg_status kg_eval_set_put_needs(struct kg_str *out, const struct kg_eval_set *set,
                                struct kg_err *err) KG_MUST_CHECK;
/* A name to be excluded that no record of a loaded set has (a list that is given to
 * several sets: of none of them) is an error; a warning where a set of the suite has the
 * list and is left out or not loaded. */
kg_status kg_suite_check_excluded(const struct kg_suite *s,
                                  const struct kg_eval_set *sets,
                                  struct kg_err *err) KG_MUST_CHECK;
/* How the set is evaluated. */
struct kg_eval_opts kg_eval_set_opts(const struct kg_eval_set *set);

/* Every set initialised; all missing data files in one error.   sets: owned (n) */
kg_status kg_suite_sets(struct kg_eval_set **sets, const struct kg_suite *s,
                        const char *data_dir, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_suite_check_data(const struct kg_eval_set *sets, size_t n,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_suite_sets_free(struct kg_eval_set *sets, size_t n);

#endif
