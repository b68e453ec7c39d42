/* A suite: the problems of an evaluation, and its settings.
 *
 * A YAML file with the sections suite (name, seed), model, server, sets (a mapping per
 * set, under its name) and defaults (values for sets without their own). All keys of a
 * set are in one table, set_rows of suite.c, which shares macros with recipes
 * (task/rows.h). A resolved suite has a value for every key of every set. A results
 * folder stores it, and is continued only by an equal suite.
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
    const char *model_path, *model_adapter, *model_dtype, *model_base_dtype,
        *model_device;
    const char *server_url, *server_model, *server_api;
};

struct kg_suite {
    struct kg_config *config; /* owned */
    /* (n_all) owned: first the n selected sets, then those excluded by suite.sets; both
     * in file order */
    char **names;
    size_t n;
    size_t n_all;
    bool is_file;            /* false: a single set, made from flags */
    struct kg_opt_row *rows; /* owned, with their keys */
};

/* path NULL: the single set KG_EVAL_SET with default values.
 * errors: those of kg_config_load_yaml, EINVAL (no set, a name with characters other than
 * letters, digits, _ and -) */
kg_status kg_suite_open(struct kg_suite *s, const char *path,
                        struct kg_err *err) KG_MUST_CHECK;
void kg_suite_release(struct kg_suite *s); /* {0} allowed */
/* The suite's own keys; borrowed until its config changes. */
struct kg_suite_about kg_suite_about(const struct kg_suite *s);
/* Sets suite.sets to the sets in a list "a,b"; if `without`, removes these sets from
 * suite.sets, or from all sets if suite.sets is empty.
 * errors: EINVAL (an unknown set, none left) */
kg_status kg_suite_pick(struct kg_suite *s, const char *list, bool without,
                        const char *where, struct kg_err *err) KG_MUST_CHECK;
/* Moves the sets of suite.sets to the front; n becomes their number (suite.sets empty: no
 * change).   errors: EINVAL (an unknown set) */
kg_status kg_suite_choose(struct kg_suite *s, struct kg_err *err) KG_MUST_CHECK;
/* Sets the missing values of every set from `defaults`, then calls kg_suite_choose. */
kg_status kg_suite_resolve(struct kg_suite *s, struct kg_err *err) KG_MUST_CHECK;
/* Sets a key, such as "samples", of all selected sets. */
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
    const char *source;    /* origin of the data, "" if unknown */
    const char *licence;   /* of the data */
    const char *chat_name; /* auto, none, or a file */
    const char *only;      /* data_source of the records to use, "" for all */
    struct kg_str path;    /* owned: the data file, "" if problems are generated */
    struct kg_str encoder; /* owned: folder of the retriever's encoder, "" if none */
    const struct kg_task_row *task;
    /* the set owns its chat, excluded, running and rewards */
    struct kg_task_opts task_opts;
    struct kg_further_names further; /* additional numbers returned by graders so far */
    enum kg_special special;
    char exclude_key[2 * KG_SUITE_NAME_BYTES]; /* used by task_opts */
    struct kg_sampling sampling;
    struct kg_episode_opts episode; /* env NULL: single turns */
    int32_t samples;
    int64_t limit;  /* maximum number of problems; 0: all */
    int64_t expect; /* expected value of `records`; 0: any */
    struct kg_eval_ks ks;
    struct kg_chat_template *chat; /* owned or NULL */
    struct kg_dataset data;        /* owned: the problems, once loaded */
    int64_t records;               /* number of records in the file, after `unique` */
};

/* Initialises set i of a resolved suite; reads no data. data_dir: prefix of relative
 * paths, NULL for none
 * errors: EINVAL (unknown task, a k that is not a number or exceeds the samples, ...);
 * all name the set */
kg_status kg_eval_set_init(struct kg_eval_set *set, const struct kg_suite *s, size_t i,
                           const char *data_dir, struct kg_err *err) KG_MUST_CHECK;
void kg_eval_set_release(struct kg_eval_set *set); /* {0} allowed */
/* Reads the problems. chat: NULL, or a template that replaces the one the set names
 * (taken); model_dir: for chat_template auto, NULL if there is none
 * errors: those of the task; EINVAL (an unexpected number of records, none left), with
 * the name of the set */
kg_status kg_eval_set_load(struct kg_eval_set *set, struct kg_chat_template *chat,
                           const char *model_dir, struct kg_err *err) KG_MUST_CHECK;
/* Whether the data file exists, or none is needed. */
bool kg_eval_set_has_data(const struct kg_eval_set *set);
/* Appends "FILE, 30 records, from SOURCE (LICENCE)", without what is unknown. */
kg_status kg_eval_set_put_needs(struct kg_str *out, const struct kg_eval_set *set,
                                struct kg_err *err) KG_MUST_CHECK;
/* Checks lists of excluded names. A name that no loaded set with this list contains is an
 * error, or only a warning if another set with the same list was not loaded. */
kg_status kg_suite_check_excluded(const struct kg_suite *s,
                                  const struct kg_eval_set *sets,
                                  struct kg_err *err) KG_MUST_CHECK;
/* The evaluation options of a set. */
struct kg_eval_opts kg_eval_set_opts(const struct kg_eval_set *set);

/* Initialises every set. kg_suite_check_data fails with ENOTFOUND and a list of all
 * missing files. sets: (n) owned, freed by kg_suite_sets_free */
kg_status kg_suite_sets(struct kg_eval_set **sets, const struct kg_suite *s,
                        const char *data_dir, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_suite_check_data(const struct kg_eval_set *sets, size_t n,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_suite_sets_free(struct kg_eval_set *sets, size_t n);

#endif
