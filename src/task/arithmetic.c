/* Stories of small sums with worked steps, made so that a tiny model can learn them.
 *
 *     Q: Anna has 3 shells, finds 4, loses 2, finds 1. How many?
 *     A: 3 +4=7 -2=5 +1=6 #### 6
 *
 * A worked step is a running total. Two things decide how soon a model of a million
 * parameters learns this, and both were measured: a step takes as many tokens as the
 * change that it works out, so that attention copies every change from the same distance;
 * and totals stay small, which leaves about a hundred facts to learn on the easy level.
 * The first three levels differ only in the range of the totals; the long levels have
 * more changes and completions several times as long. Names and things have no meaning;
 * they give words to a tokenizer that is trained on this text. A completion is right if
 * the number after its last #### is. The canonical problem, which decides between train
 * and held-out, is the sum, "3+4-2+1".
 */
#include "task/task_internal.h"

#include <assert.h>
#include <string.h>

enum { MAX_CHANGES = 16 };

static const char *const people[] = {
    "Anna",    "Boris",  "Clara",   "David",   "Elena",  "Felix",  "Greta",   "Hugo",
    "Irene",   "Jonas",  "Karin",   "Leonard", "Marta",  "Nils",   "Olivia",  "Pavel",
    "Quentin", "Rosa",   "Stefan",  "Theresa", "Ulrich", "Vera",   "William", "Xenia",
    "Yusuf",   "Zoe",    "Amina",   "Bruno",   "Chiara", "Dmitri", "Esther",  "Farid",
    "Gustav",  "Hannah", "Ibrahim", "Judith",  "Kofi",   "Lucia",  "Mehmet",  "Nadia",
    "Oskar",   "Priya",  "Ravi",    "Sofia",   "Tomas",  "Walter", "Yvonne",  "Zsofia"};
static const char *const things[] = {
    "shells",  "buttons",  "coins",     "marbles", "apples",   "stamps",   "feathers",
    "candles", "pencils",  "bottles",   "stones",  "lanterns", "tickets",  "pears",
    "ribbons", "carrots",  "postcards", "keys",    "walnuts",  "spoons",   "baskets",
    "books",   "cherries", "drums",     "eggs",    "flowers",  "gloves",   "hats",
    "kites",   "ladders",  "mugs",      "needles", "oranges",  "plates",   "radishes",
    "sheep",   "tulips",   "umbrellas", "violins", "wheels",   "acorns",   "blankets",
    "cups",    "dolphins", "fish",      "hammers", "jugs",     "pumpkins", "yoghurts",
    "mirrors"};

/* Totals stay within 0..largest_total. */
struct level {
    int changes;
    int largest_total;
    int largest_change;
};
static const struct level easy = {3, 9, 9};
static const struct level medium = {3, 12, 9};
static const struct level hard = {3, 19, 9};
static const struct level long_easy = {8, 9, 9};
static const struct level long_medium = {12, 12, 9};
static const struct level long_hard = {16, 12, 9};

struct problem {
    int start;
    int change[MAX_CHANGES]; /* signed, never 0 */
    const struct level *level;
};

/* A wrong total in one step; the later steps continue with it. */
struct fault {
    int step; /* -1: none */
    int total;
};

static bool within(const struct problem *p, int total)
{
    return total >= 0 && total <= p->level->largest_total;
}

/* The total after all changes, or -1 if one on the way is out of range. */
static int work(const struct problem *p, struct fault fault)
{
    int total = p->start;

    for (int i = 0; i < p->level->changes; i++) {
        total = i == fault.step ? fault.total : total + p->change[i];
        if (!within(p, total))
            return -1;
    }
    return total;
}

static int between(struct kg_task_draw *draw, int low, int high)
{
    return low + (int)kg_task_draw_below(draw, (uint64_t)(high - low + 1));
}

/* A change of either sign that keeps the total in range, each with equal chance. */
static int draw_change(struct kg_task_draw *draw, const struct level *level, int total)
{
    int most = level->largest_total - total < level->largest_change
                   ? level->largest_total - total
                   : level->largest_change;
    int least = total < level->largest_change ? total : level->largest_change;
    int k = between(draw, 1, least + most);

    return k <= least ? -k : k - least;
}

/* A wrong total in a random step, or in a later one if the totals after it would leave
 * the range. None follow the last step, so there always is one. */
static struct fault draw_fault(const struct problem *p, struct kg_task_draw *draw)
{
    struct fault none = {.step = -1};
    struct fault fault = {.step = between(draw, 0, p->level->changes - 1)};
    int right = work(p, none);
    int range = p->level->largest_total + 1;
    int first = between(draw, 0, range - 1);

    for (; fault.step < p->level->changes; fault.step++) {
        for (int i = 0; i < range; i++) {
            fault.total = (first + i) % range;
            int end = work(p, fault);
            if (end >= 0 && end != right)
                return fault;
        }
    }
    assert(!"the last total can always be another");
    return none;
}

static kg_status put_solution(struct kg_str *out, const struct problem *p,
                              struct fault fault, struct kg_err *err)
{
    int total = p->start;

    KG_TRY(kg_str_printf(out, err, " %d", total));
    for (int i = 0; i < p->level->changes; i++) {
        total = i == fault.step ? fault.total : total + p->change[i];
        KG_TRY(kg_str_printf(out, err, " %+d=%d", p->change[i], total));
    }
    return kg_str_printf(out, err, " #### %d", total);
}

static kg_status put_problem(struct kg_task_made *out, const struct problem *p,
                             struct kg_task_draw *draw, struct kg_err *err)
{
    const char *who = people[kg_task_draw_below(draw, sizeof people / sizeof *people)];
    const char *what = things[kg_task_draw_below(draw, sizeof things / sizeof *things)];

    KG_TRY(kg_str_printf(&out->problem, err, "%d", p->start));
    KG_TRY(kg_str_printf(&out->prompt, err, "Q: %s has %d %s", who, p->start, what));
    for (int i = 0; i < p->level->changes; i++) {
        int change = p->change[i];

        KG_TRY(kg_str_printf(&out->problem, err, "%+d", change));
        KG_TRY(kg_str_printf(&out->prompt, err, ", %s %d", change > 0 ? "finds" : "loses",
                             change > 0 ? change : -change));
    }
    KG_TRY(kg_str_puts(&out->prompt, ". How many?\nA:", err));
    return kg_str_printf(&out->ground_truth, err, "%d",
                         work(p, (struct fault){.step = -1}));
}

static kg_status make(struct kg_task_made *out, struct kg_task_draw *draw,
                      const void *level, bool faulty, struct kg_err *err)
{
    struct fault fault = {.step = -1};
    struct problem p = {.level = level};

    int total = between(draw, 1, p.level->largest_total);

    p.start = total;
    for (int i = 0; i < p.level->changes; i++) {
        p.change[i] = draw_change(draw, p.level, total);
        total += p.change[i];
    }
    KG_TRY(put_problem(out, &p, draw, err));
    if (faulty)
        fault = draw_fault(&p, draw);
    return put_solution(&out->solution, &p, fault, err);
}

static const struct kg_task_level levels[] = {
    {"easy", make, &easy},
    {"medium", make, &medium},
    {"hard", make, &hard},
    {"long-easy", make, &long_easy},
    {"long-medium", make, &long_medium},
    {"long-hard", make, &long_hard},
    {NULL, NULL, NULL},
};

/* ---- the row ---- */

kg_status kg_task_arithmetic_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                  const char *path, struct kg_err *err)
{
    if (path)
        return kg_task_read(d, path, opts, true, err);
    return kg_task_generate(d, "arithmetic", levels, opts, err);
}

kg_status kg_task_arithmetic_grade(struct kg_grade *g, const struct kg_record *r,
                                   const char *response, size_t n, struct kg_err *err)
{
    struct kg_task_number gold;
    struct kg_task_number found;
    size_t len = 0;
    const char *answer = kg_task_after_marker(response, n, &len);

    if (!kg_task_number_only(&gold, r->ground_truth, strlen(r->ground_truth)))
        return kg_fail(err, KG_EFORMAT,
                       "expected a number as ground truth, found '%.40s'",
                       r->ground_truth);
    g->graded = true;
    g->correct = answer && kg_task_number_only(&found, answer, len) &&
                 kg_task_number_same(&gold, &found);
    g->reward = g->correct;
    return KG_OK;
}

kg_status kg_task_arithmetic_extract(struct kg_str *out, const struct kg_task_opts *opts,
                                     const struct kg_grade_item *item, struct kg_err *err)
{
    struct kg_task_number found;
    size_t len = 0;
    const char *answer = kg_task_after_marker(item->response, item->n, &len);

    (void)opts;
    return answer && kg_task_number_only(&found, answer, len)
               ? kg_task_number_put(out, &found, err)
               : KG_OK;
}
