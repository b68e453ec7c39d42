/* Tasks: each supplies prompts and grades completions. One row of a table per task.
 *
 * A task generates its problems (arithmetic, countdown; these also read files) or reads
 * them from data files (all others). To add one, write a file like arithmetic.c and a row
 * in task.c. Grading inside kedge is a pure function of record, options and completion. A
 * completion that cannot be graded is reported and counted, never silently scored 0.
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
    char *solution;     /* owned or NULL: a worked solution, for SFT */
    char *data_source;  /* owned */
    char *extra_json;   /* owned or NULL: extra_info as JSON text */
    char *id;           /* owned or NULL: the record's id in its file */
    /* owned or NULL: the prompt as a conversation {"messages", "tools"}; only while
     * reading a file, unless the task keeps it */
    char *turns;
    bool is_single; /* turns is a single message, whose text is the prompt */
    int64_t line;   /* its number in the file (kg_dataset.unit), or generated index */
    bool excluded;  /* excluded by name; only while reading a file */
    bool rendered;  /* the prompt was rendered by a chat template: see text/prompt.h */
};

/* One of several files of a data set. */
struct kg_dataset_file {
    char *name;               /* owned */
    size_t end;               /* end of this file's records */
    int64_t dropped_repeated; /* see struct kg_dataset */
};
struct kg_dataset {
    struct kg_record *records; /* owned */
    size_t n;
    size_t capacity;
    char *name;                    /* owned: file or generator, for messages */
    struct kg_dataset_file *files; /* (n_files) owned: set by kg_dataset_join */
    size_t n_files;
    size_t files_capacity;
    bool is_file;     /* false: the records were generated */
    const char *unit; /* static: unit of kg_record.line, "line", "row" or "element" */
    char format[32];  /* format of the file, see kg_records_format */
    /* counts of dropped records, reported before step 0 */
    int64_t dropped_no_prompt;
    int64_t dropped_too_long;
    int64_t dropped_excluded; /* dropped by name: see task_opts.exclude */
    int64_t dropped_golds;    /* dropped as not gradable: task_opts.drop_golds */
    int64_t dropped_repeated; /* see task_opts.unique */
    /* records kept although an earlier record has the same prompt, gold answer and
     * data_source */
    int64_t repeated;
};
void kg_dataset_release(struct kg_dataset *d);
kg_status kg_dataset_push(struct kg_dataset *d, const struct kg_record *r,
                          struct kg_err *err) KG_MUST_CHECK; /* copies the strings */
/* Appends the records of another file to d; more is empty afterwards. d's name becomes
 * "D, MORE", and the counts are added. */
kg_status kg_dataset_join(struct kg_dataset *d, struct kg_dataset *more,
                          struct kg_err *err) KG_MUST_CHECK;
/* Drops the records that drop (n) marks; the others keep their order. */
void kg_dataset_drop(struct kg_dataset *d, const bool *drop);
/* Warns in the log if there are repeated records. key: the option that drops them */
void kg_dataset_warn_repeated(const struct kg_dataset *d, const char *key);
/* The file of record i, to which its line number refers.   borrowed */
const char *kg_dataset_file(const struct kg_dataset *d, size_t i);

struct kg_grade {
    double reward;
    bool correct; /* for accuracy */
    bool graded;  /* false: no verdict, or undecided and not counted as wrong */
    /* the grader cannot parse or decide the answer; `reward` is then that of a wrong
     * answer */
    bool undecided;
    /* several rewards (task.rewards): each unweighted, NaN if it could not be graded;
     * reward is their weighted sum */
    int n_parts;
    double part[KG_TRAJ_PARTS];
    struct kg_further further; /* additional numbers of an external grader */
};

/* The reward for a mean over all samples: 0 without a verdict; if undecided, the reward
 * of a wrong answer. */
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

/* Life of an external grader's program: auto, run, batch. */
enum kg_task_life {
    KG_TASK_LIFE_AUTO,  /* RUN if it replies before its input ends, else BATCH */
    KG_TASK_LIFE_RUN,   /* started once, used for every batch */
    KG_TASK_LIFE_BATCH, /* started for every batch; its input ends after the batch */
};
/* What an answer that cannot be parsed or decided counts as: ungraded, wrong. */
enum kg_task_undecided {
    KG_TASK_UNDECIDED_UNGRADED, /* for evaluation, which reports it separately */
    KG_TASK_UNDECIDED_WRONG,    /* for training: such answers must not pay off */
};
struct kg_task_grader;  /* a persistent program, see below */
struct kg_task_rewards; /* several graders, see below */

struct kg_task_opts {
    uint64_t seed;
    /* generator difficulty: a name in the task's list, or a mixture "a+b" */
    const char *level;
    int64_t count; /* number of problems to generate */
    /* generators: index of the first problem; disjoint ranges give disjoint problems */
    uint64_t first_index;
    /* generators: use the held-out problems, chosen by a hash of the problem, so that
     * they are disjoint from the others for every seed and level */
    bool held_out;
    /* generators: fraction of solutions with one wrong step that leads to a wrong answer
     * (for SFT of a mediocre model); ground truth stays right */
    double fault_rate;
    /* data files: column names; "" for the verl schema and common names */
    const char *prompt_key;
    const char *answer_key; /* "a.b" is key b of the object a */
    bool need_answer;       /* task none: a record without an answer is an error */
    /* data files: of records with equal prompt, gold answer and data_source, keep the
     * first */
    bool unique;
    struct kg_prompt_opts prompt; /* how text or messages become the prompt */
    const char *command; /* external grader: program and arguments, run by sh -c */
    int timeout_ms;      /* external grader: timeout of one batch */
    const char *
        env; /* external grader: names "A,B" of additional environment variables for it */
    enum kg_task_life life; /* life of the external grader */
    /* external grader: its running program; NULL: started for each batch; borrowed */
    struct kg_task_grader *running;
    /* names of the grader's additional numbers; NULL: these are dropped; borrowed, one
     * caller at a time */
    struct kg_further_names *further;
    const char *further_of; /* prefix of these names, a reward's name; NULL: none */
    /* several rewards instead of the row's own grader; NULL: the grader of the row;
     * borrowed */
    struct kg_task_rewards *rewards;
    const char *grader;  /* math: a mode of math/; NULL or "": default */
    double wrong_reward; /* tasks of exact reward: reward of a wrong answer, below 1 */
    enum kg_task_undecided undecided;
    bool keep_thinking; /* math: also read the text before </think> */
    /* math: ids to drop (or line numbers, for records without id), "a,b" */
    const char *exclude;
    /* math: drop and count records whose gold answer is not graded as right; else they
     * are errors */
    bool drop_golds;
    const char *exclude_key; /* option name in messages; NULL: task.exclude */
    /* NULL, or one flag per name in `exclude`, set when a record of any loaded file has
     * this name; borrowed */
    bool *excluded;
    const char *metric; /* search-qa: a metric of task/qa.h or "format"; NULL: em */
    /* search-qa: answer pairs required, counting those in the prompt; 0 means 1 */
    int answer_tags;
    struct kg_qa_format format; /* search-qa, metric format */
    const char *wording;        /* search-qa: see task/wording.h; NULL: the first */
};

/* A part of an episode from one source. */
struct kg_span {
    const char *text; /* borrowed; without special tokens */
    size_t n;
    enum kg_source source;
};
struct kg_grade_item {
    const struct kg_record *record;
    /* the model's text of all turns; tool output is never graded as an answer */
    const char *response;
    size_t n;
    /* (n_spans) the episode after the prompt, a span per turn and observation; NULL for a
     * single turn. Tasks may ignore it and read the response. */
    const struct kg_span *spans;
    size_t n_spans;
    const struct kg_traj *traj; /* NULL: unknown, as for a completion from a file */
};
/* The tasks that generate problems, for the conditions of keys (data/needs.h). */
#define KG_TASKS_MADE "arithmetic,countdown"
struct kg_task_row {
    const char *name;
    const char *help;
    const char *levels; /* generators: "easy|hard"; NULL for tasks that read data */
    bool exact_reward;  /* reward is 1 if right, else opts.wrong_reward */
    bool judges_none;   /* never gives verdicts */
    bool keeps_turns;   /* records keep `turns`, for a program that renders them */
    /* Fills d from the file at path; path NULL: generates problems. */
    kg_status (*load)(struct kg_dataset *d, const struct kg_task_opts *opts,
                      const char *path, struct kg_err *err);
    /* Grades one completion (text without special tokens). NULL if grade_by is set, and
     * for `external`, which grades batches. */
    kg_status (*grade)(struct kg_grade *g, const struct kg_record *r,
                       const char *response, size_t n, struct kg_err *err);
    /* `grade` for graders that read options; NULL if grade is set. */
    kg_status (*grade_by)(struct kg_grade *g, const struct kg_task_opts *opts,
                          const struct kg_grade_item *item, struct kg_err *err);
    /* For votes (maj@k): extract appends the answer found in a completion, or nothing;
     * same decides whether two such answers are equal. Both NULL: no votes. */
    kg_status (*extract)(struct kg_str *out, const struct kg_task_opts *opts,
                         const struct kg_grade_item *item, struct kg_err *err);
    kg_status (*same)(bool *same, const struct kg_task_opts *opts, const char *a,
                      const char *b, struct kg_err *err);
};

/* A table ended by a row with name NULL; a failed look-up lists the valid names. */
const struct kg_task_row *kg_task_table(void);
kg_status kg_task_find(const struct kg_task_row **row, const char *name,
                       struct kg_err *err) KG_MUST_CHECK;

/* Loads through the row, checks that there is at least one record and that each has a
 * prompt, and makes the prompts by opts->prompt.
 * errors: EINVAL (no record, an unknown level: lists the valid ones), EFORMAT (an empty
 * prompt), those of the row's load and of kg_prompt_put */
kg_status kg_task_load(struct kg_dataset *d, const struct kg_task_row *row,
                       const struct kg_task_opts *opts, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;

/* Number of names in a list "a,b". */
size_t kg_task_names(const char *list);
/* errors: EINVAL with the first name in opts->exclude without a record */
kg_status kg_task_check_excluded(const struct kg_task_opts *opts,
                                 struct kg_err *err) KG_MUST_CHECK;

/* Grades n completions, items[i] into grades[i]: by opts->rewards if set, else by the
 * row's function, or for `external` by opts->running or one run of opts->command.
 * errors: ETIMEOUT and EIO (with the last line of the grader's stderr), EFORMAT */
kg_status kg_task_grade(struct kg_grade *grades, const struct kg_task_row *row,
                        const struct kg_task_opts *opts,
                        const struct kg_grade_item *items, size_t n,
                        struct kg_err *err) KG_MUST_CHECK;

/* Appends the record's members as a user's program reads them, without braces: "prompt",
 * "response" (NULL: none), "ground_truth", "data_source", "extra_info", and if r->turns
 * is kept "conversation": {"messages", "tools"}. */
kg_status kg_task_put_record(struct kg_str *out, const struct kg_record *r,
                             const char *response, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
bool kg_task_is_external(const struct kg_task_row *row);
/* Whether completions are expected to get a verdict. */
bool kg_task_judges(const struct kg_task_row *row, const struct kg_task_opts *opts);
/* The program of an external grader that persists across batches. It is started at the
 * first batch, and again if it dies after a successful batch. Calls of several threads
 * take turns. Pass it in opts->running; close it after the last batch.
 * errors: EINVAL (no command, a variable in opts->env is not set), ENOMEM */
kg_status kg_task_grader_open(struct kg_task_grader **grader,
                              const struct kg_task_opts *opts,
                              struct kg_err *err) KG_MUST_CHECK;
void kg_task_grader_close(struct kg_task_grader *grader); /* NULL is allowed */
struct kg_task_grader_stats {
    int64_t starts;
    int64_t restarts; /* starts that replaced a process that died */
    int64_t batches;  /* batches graded */
};
struct kg_task_grader_stats kg_task_grader_stats(struct kg_task_grader *grader);

/* Several rewards. specs: (n) "NAME=TASK" or "NAME=external COMMAND"; weights: (n), NULL
 * for 1 each. The graders use opts. To grade by *rewards, pass it as `rewards` of another
 * kg_task_opts.
 * errors: EINVAL (a malformed entry, an unknown task, too many entries), ENOMEM */
enum { KG_TASK_PART_NAME = 32 };
kg_status kg_task_rewards_open(struct kg_task_rewards **rewards, const char *const *specs,
                               const double *weights, size_t n,
                               const struct kg_task_opts *opts,
                               struct kg_err *err) KG_MUST_CHECK;
/* Opens rewards from option lists; `keys` has the options' names for messages. *rewards
 * is NULL if the list is empty. Weights: one per reward, or none.
 * errors: EINVAL with the key (also: opts has a command that no reward runs), ENOMEM */
struct kg_task_rewards_keys {
    const char *rewards;
    const char *weights;
    const char *command; /* name of opts->command */
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
/* Adds up the counters of the external graders.   returns whether there is one */
bool kg_task_rewards_stats(struct kg_task_grader_stats *sum,
                           const struct kg_task_rewards *rewards);
/* Whether grading runs a program, so that batches are needed. */
bool kg_task_runs_program(const struct kg_task_row *row, const struct kg_task_opts *opts);
/* Reads a file of any format of data/records.h, in verl's schema {prompt: [{content}] or
 * text, data_source, reward_model.ground_truth, extra_info} or in plain columns
 * ({question|problem|prompt|text, golden_answers|answer|...|completion|response}); named
 * columns override. An answer may be text, a number, a bool ("True", "False"), or an
 * object or array (kept as JSON text). A column solution, completion or response becomes
 * `solution`, else an answer that contains "####". A prompt that is a list of messages is
 * kept as `turns`, which kg_task_load renders.
 * errors: EFORMAT with the place (malformed, no prompt, no answer), EINVAL (no record) */
kg_status kg_dataset_read(struct kg_dataset *d, const char *path, const char *prompt_key,
                          const char *answer_key, bool need_answer,
                          struct kg_err *err) KG_MUST_CHECK;

#endif
