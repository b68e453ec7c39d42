/* Tasks: where prompts come from and how answers are graded. One row of a table per task.
 *
 * A task either generates its problems (arithmetic, countdown; these read files too) or
 * reads them from data files (digits, qa-number, math, search-qa, external). To add one:
 * a file beside arithmetic.c and a row in task.c. Grading is a pure function of the
 * record and the response; a response that cannot be graded is said to be so and counted,
 * never scored 0 in silence.
 */
#ifndef KG_TASK_TASK_H
#define KG_TASK_TASK_H

#include "base/status.h"
#include "base/str.h"
#include "data/json.h"
#include "data/options.h"
#include "text/prompt.h"
#include "traj/traj.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_record {
    char *prompt;       /* owned; text shown to the model: see kg_task_load */
    char *ground_truth; /* owned; "" when the task needs none */
    char *solution;     /* owned or NULL: a worked right response, for SFT warm starts */
    char *data_source;  /* owned */
    char *extra_json;   /* owned or NULL: extra_info as JSON text */
    char *id;           /* owned or NULL: the record's name in its file */
    /* owned or NULL: the conversation {"messages", "tools"} that the file has as prompt;
     * only while a file is read */
    char *turns;
    bool is_single; /* turns is one message, whose text the prompt is */
    int64_t line;   /* of the file, or index of the generator */
    bool excluded;  /* by name; only while a file is read */
    bool rendered;  /* the prompt is a chat template's: see text/prompt.h */
};

/* One of several files of a data set. */
struct kg_dataset_file {
    char *name; /* owned */
    size_t end; /* records before it are of this file or of those before it */
    int64_t dropped_repeated; /* see struct kg_dataset */
};
struct kg_dataset {
    struct kg_record *records; /* owned */
    size_t n;
    size_t capacity;
    char *name;                    /* owned: file or generator, for messages */
    struct kg_dataset_file *files; /* (n_files) owned: of kg_dataset_join; else none */
    size_t n_files;
    size_t files_capacity;
    bool is_file;     /* a record's number is its place in the file */
    const char *unit; /* static: what that number counts, "line", "row" or "element" */
    char format[32];  /* of the file, see kg_records_format */
    /* counts of what was left out, reported before step 0 */
    int64_t dropped_no_prompt;
    int64_t dropped_too_long;
    int64_t dropped_excluded; /* by name: see task_opts.exclude */
    int64_t dropped_golds;    /* nobody can answer them: see task_opts.drop_golds */
    int64_t dropped_repeated; /* see task_opts.unique */
    /* records that are there though their problem stands in the file before: with equal
     * prompt, gold answer and data_source */
    int64_t repeated;
};
void kg_dataset_release(struct kg_dataset *d);
kg_status kg_dataset_push(struct kg_dataset *d, const struct kg_record *r,
                          struct kg_err *err) KG_MUST_CHECK; /* copies the strings */
/* Moves the records of another file behind those of d; more is empty afterwards. d's name
 * then names both, its counts are sums. */
kg_status kg_dataset_join(struct kg_dataset *d, struct kg_dataset *more,
                          struct kg_err *err) KG_MUST_CHECK;
/* Leave out the records that drop (n) marks; the others stay in order. */
void kg_dataset_drop(struct kg_dataset *d, const bool *drop);
/* Say in the log that there are repeated records; nothing where there are none.   key:
 * what leaves them out */
void kg_dataset_warn_repeated(const struct kg_dataset *d, const char *key);
/* The file that record i is of: what its line counts in.   borrowed */
const char *kg_dataset_file(const struct kg_dataset *d, size_t i);

struct kg_grade {
    double reward;
    bool correct; /* for accuracy */
    bool graded;  /* false: no verdict, or undecided and not counted as wrong */
    /* an answer is there that the grader cannot read or decide; reward is then that of a
     * wrong one */
    bool undecided;
    /* several rewards (task.rewards): each without its weight, NaN where it could not be
     * graded; reward is their weighted sum */
    int n_parts;
    double part[KG_TRAJ_PARTS];
    struct kg_further further; /* what an external grader said besides */
};

/* What it counts in a mean over all answers: 0 without a verdict, and that of a wrong one
 * where it was undecided. */
static inline double kg_grade_reward(const struct kg_grade *g)
{
    return g->graded || g->undecided ? g->reward : 0;
}

/* Scores of Search-R1's format reward: see kg_qa_format_score in task/qa.h. */
struct kg_qa_format {
    double structure; /* s */
    double final;     /* f */
    double retrieval; /* r */
};

/* How long the program of an external grader runs: auto, run, batch. */
enum kg_task_life {
    KG_TASK_LIFE_AUTO,  /* RUN where it answers before its input ends, else BATCH */
    KG_TASK_LIFE_RUN,   /* started once, asked for every batch */
    KG_TASK_LIFE_BATCH, /* started for every batch, its input ends behind it */
};
/* What an answer is that is there but cannot be read or decided: ungraded, wrong. */
enum kg_task_undecided {
    KG_TASK_UNDECIDED_UNGRADED, /* of evaluation, which reports it apart */
    KG_TASK_UNDECIDED_WRONG,    /* else garbage may earn more than a wrong answer */
};
struct kg_task_grader;  /* a program that stays, see below */
struct kg_task_rewards; /* several graders, see below */

struct kg_task_opts {
    uint64_t seed;
    /* generator difficulty: a name of the task's own list; "a+b" mixes */
    const char *level;
    int64_t count; /* problems to generate */
    /* generators: index of the first problem; disjoint ranges give disjoint draws */
    uint64_t first_index;
    /* generators: problems of the held-out part, which share none with the others,
     * whatever the seed and level: the part is a hash of the problem */
    bool held_out;
    /* generators: share of solutions with a wrong worked step that is carried on to a
     * wrong answer (SFT of a mediocre start); ground truth stays right */
    double fault_rate;
    /* data files: column names; "" for the verl schema and the usual names */
    const char *prompt_key;
    const char *answer_key; /* "a.b" is key b of the object a */
    bool need_answer;       /* task none: a record without an answer is an error */
    /* data files: of records with equal prompt, gold answer and data_source the first */
    bool unique;
    struct kg_prompt_opts prompt; /* how a record's text or messages become its prompt */
    const char *command; /* external grader: program and arguments, run by sh -c */
    int timeout_ms;      /* external grader: for one batch */
    const char *env;     /* external grader: names of variables "A,B" that it gets too */
    enum kg_task_life life; /* of the external grader that `running` is opened for */
    /* its program; NULL: started for each batch; borrowed */
    struct kg_task_grader *running;
    /* names of the numbers that it says besides; NULL: these are not kept; borrowed, and
     * for one caller at a time */
    struct kg_further_names *further;
    const char *further_of; /* what these names begin with: a reward's; NULL */
    /* several rewards instead of the row's own grader; NULL: that; borrowed */
    struct kg_task_rewards *rewards;
    const char *grader;  /* math: a mode of math/; NULL or "" for default */
    double wrong_reward; /* tasks of exact reward: what a wrong answer earns, below 1 */
    enum kg_task_undecided undecided;
    bool keep_thinking; /* math: read what stands before </think> too */
    /* math: names (ids, or lines where there is none) of records to leave out, "a,b" */
    const char *exclude;
    /* math: leave out and count records whose gold answer does not grade itself right;
     * else they are an error */
    bool drop_golds;
    const char *exclude_key; /* what says it, for advice; NULL: task.exclude */
    /* NULL, or a flag for each name of exclude (kg_task_names of them): set where
     * a record has the name, by every file that is loaded; borrowed */
    bool *excluded;
    const char *metric; /* search-qa: a metric of task/qa.h or "format"; NULL: em */
    int answer_tags;    /* search-qa: pairs an answer needs, the prompt's counted; 0: 1 */
    struct kg_qa_format format; /* search-qa, metric format */
    const char *wording;        /* search-qa: see task/wording.h; NULL: the first */
};

/* A stretch of an episode, in order, by who wrote it. */
struct kg_span {
    const char *text; /* borrowed; special tokens left out */
    size_t n;
    enum kg_source source;
};
struct kg_grade_item {
    const struct kg_record *record;
    /* what the model wrote, all turns in a row: what a tool returned is never graded as
     * an answer */
    const char *response;
    size_t n;
    /* (n_spans) the episode behind the prompt, one span a turn and an observation; NULL
     * for one turn. Tasks that have no use for it read the response. */
    const struct kg_span *spans;
    size_t n_spans;
};
/* Those whose row has levels, for what keys need (data/needs.h). */
#define KG_TASKS_MADE "arithmetic,countdown"
struct kg_task_row {
    const char *name;
    const char *help;
    const char *levels; /* generators: "easy|hard"; NULL for tasks that read data */
    bool exact_reward;  /* reward is 1 when right, else opts.wrong_reward */
    bool judges_none;   /* no answer has a verdict, and none is missed */
    /* Fill d from a file (data tasks; path given) or by generation (path NULL). */
    kg_status (*load)(struct kg_dataset *d, const struct kg_task_opts *opts,
                      const char *path, struct kg_err *err);
    /* Grade one response (text with special tokens skipped). NULL for `external`, which
     * grades in batches. */
    kg_status (*grade)(struct kg_grade *g, const struct kg_record *r,
                       const char *response, size_t n, struct kg_err *err);
    /* The same for a grader that has options of its own; NULL where grade is there. */
    kg_status (*grade_by)(struct kg_grade *g, const struct kg_task_opts *opts,
                          const struct kg_grade_item *item, struct kg_err *err);
    /* For votes (maj@k): append the answer that the grader finds in a response, nothing
     * where it finds none; whether it takes two such answers for the same. Both NULL: the
     * task has no answers to count. */
    kg_status (*extract)(struct kg_str *out, const struct kg_task_opts *opts,
                         const struct kg_grade_item *item, struct kg_err *err);
    kg_status (*same)(bool *same, const struct kg_task_opts *opts, const char *a,
                      const char *b, struct kg_err *err);
};

/* Table ended by a row with name NULL; look-up lists the valid names on failure. */
const struct kg_task_row *kg_task_table(void);
kg_status kg_task_find(const struct kg_task_row **row, const char *name,
                       struct kg_err *err) KG_MUST_CHECK;

/* Load through the row, with the checks that hold for all: at least one record, a prompt
 * each; makes the prompts as opts->prompt says.
 * errors: EINVAL (no record, an unknown level: the valid ones are named), those of
 * kg_prompt_put */
kg_status kg_task_load(struct kg_dataset *d, const struct kg_task_row *row,
                       const struct kg_task_opts *opts, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;

/* How many names a list "a,b" has. */
size_t kg_task_names(const char *list);
/* errors: EINVAL with the first name of opts->exclude that no record had */
kg_status kg_task_check_excluded(const struct kg_task_opts *opts,
                                 struct kg_err *err) KG_MUST_CHECK;

/* Grade n responses, items[i] into grades[i]; runs the row's function, or the external
 * command once for the batch.
 * errors: ETIMEOUT, EIO, EFORMAT for an external grader that fails: named, with its
 * stderr's last line */
kg_status kg_task_grade(struct kg_grade *grades, const struct kg_task_row *row,
                        const struct kg_task_opts *opts,
                        const struct kg_grade_item *items, size_t n,
                        struct kg_err *err) KG_MUST_CHECK;

bool kg_task_is_external(const struct kg_task_row *row);
/* Whether answers are expected to have a verdict. */
bool kg_task_judges(const struct kg_task_row *row, const struct kg_task_opts *opts);
/* The program of an external grader, which stays from batch to batch: it is started when
 * it is first asked, and anew where it died after it had served. Calls of several threads
 * take turns. Give it to opts->running, close it after the last batch.
 * errors: EINVAL (no command, a variable of opts->env that is not set), ENOMEM */
kg_status kg_task_grader_open(struct kg_task_grader **grader,
                              const struct kg_task_opts *opts,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_task_grader_close(struct kg_task_grader *grader); /* NULL is allowed */
struct kg_task_grader_stats {
    int64_t starts;
    int64_t restarts; /* of these: in the place of one that had died */
    int64_t batches;  /* answered */
};
struct kg_task_grader_stats kg_task_grader_stats(struct kg_task_grader *grader);

/* Several rewards. specs: (n) "NAME=TASK" or "NAME=external COMMAND"; weights: (n), NULL
 * for 1 each. The graders have the options of opts; give it to opts->rewards of another.
 * errors: EINVAL, NOTFOUND (an entry), ENOMEM */
enum { KG_TASK_PART_NAME = 32 };
kg_status kg_task_rewards_open(struct kg_task_rewards **rewards, const char *const *specs,
                               const double *weights, size_t n,
                               const struct kg_task_opts *opts,
                               struct kg_err *err) KG_MUST_CHECK;
/* The same from lists of options, with the keys that they have there; NULL where there
 * are none. Weights are a number for each reward, or none.
 * errors: EINVAL (a command of opts that no reward runs), each with its key */
struct kg_task_rewards_keys {
    const char *rewards;
    const char *weights;
    const char *command; /* of opts->command */
};
kg_status kg_task_rewards_read(struct kg_task_rewards **rewards,
                               const struct kg_task_rewards_keys *keys,
                               struct kg_opt_list specs, struct kg_opt_list weights,
                               const struct kg_task_opts *opts,
                               struct kg_err *err) KG_MUST_CHECK;
void kg_task_rewards_close(struct kg_task_rewards *rewards);  /* NULL is allowed */
int kg_task_rewards_n(const struct kg_task_rewards *rewards); /* 0 for NULL */
const char *kg_task_rewards_name(const struct kg_task_rewards *rewards, int i);
double kg_task_rewards_weight(const struct kg_task_rewards *rewards, int i);
/* Add the programs of external graders up.   returns whether there is one */
bool kg_task_rewards_stats(struct kg_task_grader_stats *sum,
                           const struct kg_task_rewards *rewards);
/* Whether grading runs a program: it is asked for batches. */
bool kg_task_runs_program(const struct kg_task_row *row, const struct kg_task_opts *opts);
/* A file of any format that data/records.h reads, in verl's schema {prompt: [{content}]
 * or text, data_source, reward_model.ground_truth, extra_info} or plain columns
 * ({question|problem|prompt|text,
 * golden_answers|answer|answers|ground_truth|completion|response}); named
 * columns override. An answer may be text, a number, or an object or array (kept as JSON
 * text). solution, completion or response, where there is one, becomes the worked
 * response. A prompt that is a list of messages is kept as `turns`; kg_task_load makes
 * the text of it.
 * errors: EFORMAT with the place (malformed, no prompt, no answer), EINVAL (no record) */
kg_status kg_dataset_read(struct kg_dataset *d, const char *path, const char *prompt_key,
                          const char *answer_key, bool need_answer,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
