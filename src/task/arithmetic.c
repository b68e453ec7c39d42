/* Sums of small numbers with worked steps, made so that a tiny model can learn them.
 *
 *     Q: Anna counts shells: 47+38-5=?
 *     A: 7+8=15,4+3+1=8 so 85; 5-5=0,8-0=8 #### 80
 *
 * A step is one column, units first, with its carry or borrow written into it: each is a fact of one-digit arithmetic,
 * and every digit of the result stands right behind an '='. A response is right when the number behind its last ####
 * is. The words before the numbers mean nothing; they give a tokenizer that is trained on this text words to learn. The
 * canonical problem, by which train and held-out are told apart, is the sum without them.
 */
#include "task/task_internal.h"

#include <assert.h>
#include <string.h>

enum {
    MAX_OPERANDS = 4,
    NO_FAULT = -1,
};

static const char *const people[] = {
    "Anna",    "Boris",  "Clara",   "David",   "Elena",  "Felix",  "Greta",   "Hugo",
    "Irene",   "Jonas",  "Karin",   "Leonard", "Marta",  "Nils",   "Olivia",  "Pavel",
    "Quentin", "Rosa",   "Stefan",  "Theresa", "Ulrich", "Vera",   "William", "Xenia",
    "Yusuf",   "Zoe",    "Amina",   "Bruno",   "Chiara", "Dmitri", "Esther",  "Farid",
    "Gustav",  "Hannah", "Ibrahim", "Judith",  "Kofi",   "Lucia",  "Mehmet",  "Nadia",
};
static const char *const things[] = {
    "shells",  "buttons",  "coins",     "marbles", "apples",   "stamps",  "feathers",
    "candles", "pencils",  "bottles",   "stones",  "lanterns", "tickets", "pears",
    "ribbons", "carrots",  "postcards", "keys",    "walnuts",  "spoons",  "baskets",
    "books",   "cherries", "drums",     "eggs",    "flowers",  "gloves",  "hats",
    "kites",   "ladders",  "mugs",      "needles", "oranges",  "plates",  "radishes",
    "sheep",   "tulips",   "umbrellas", "violins", "wheels",
};

/* A problem is worked from left to right; a product stands first if there is one. */
struct problem {
    int64_t operand[MAX_OPERANDS];
    char op[MAX_OPERANDS]; /* op[i] stands before operand[i]; op[0] unused */
    int n;
    int64_t answer;
};

/* Where a solution goes wrong: in its `column`-th step, by a value that `shift` picks among the wrong ones. */
struct fault {
    int column;
    uint32_t shift;
};

/* ---- worked steps ---------------------------------------------------------------------------- */

/* The state of the column that is being worked. */
struct work {
    struct kg_str *out;
    struct fault fault;
    int columns; /* steps so far */
};

/* The value that a step states: the right one, or another of the `range` values from 0 if the fault falls here. */
static int stated(struct work *work, int right, int range)
{
    int wrong = (right + 1 + (int)(work->fault.shift % (uint32_t)(range - 1))) % range;

    return work->columns++ == work->fault.column ? wrong : right;
}

static kg_status put_comma(struct work *work, bool first, struct kg_err *err)
{
    return first ? KG_OK : kg_str_putc(work->out, ',', err);
}

/* a + b, column by column: "7+8=15,4+3+1=8" */
static kg_status work_sum(int64_t *result, struct work *work, int64_t a, int64_t b,
                          struct kg_err *err)
{
    int64_t place = 1;
    int carry = 0;

    *result = 0;
    for (; a > 0 || b > 0 || place == 1; a /= 10, b /= 10, place *= 10) {
        int x = (int)(a % 10);
        int y = (int)(b % 10);
        int sum;

        KG_TRY(put_comma(work, place == 1, err));
        KG_TRY(kg_str_printf(work->out, err, carry ? "%d+%d+%d" : "%d+%d", x, y, carry));
        sum = stated(work, x + y + carry, 20);
        KG_TRY(kg_str_printf(work->out, err, "=%d", sum));
        *result += sum % 10 * place;
        carry = sum / 10;
    }
    *result += carry * place;
    return KG_OK;
}

/* a - b for a >= b: "12-8=4,4-3=1", a borrow being written into the column that gives and the one that takes */
static kg_status work_difference(int64_t *result, struct work *work, int64_t a, int64_t b,
                                 struct kg_err *err)
{
    int64_t place = 1;
    int borrow = 0;

    assert(a >= b);
    *result = 0;
    for (; a > 0 || place == 1; a /= 10, b /= 10, place *= 10) {
        int x = (int)(a % 10) - borrow;
        int y = (int)(b % 10);
        int difference;

        borrow = x < y;
        x += 10 * borrow;
        KG_TRY(put_comma(work, place == 1, err));
        difference = stated(work, x - y, 10);
        KG_TRY(kg_str_printf(work->out, err, "%d-%d=%d", x, y, difference));
        *result += difference * place;
    }
    return KG_OK;
}

/* a * d for one digit d: "7*6=42,4*6+4=28" */
static kg_status work_product(int64_t *result, struct work *work, int64_t a, int64_t d,
                              struct kg_err *err)
{
    int64_t place = 1;
    int carry = 0;

    assert(d < 10);
    *result = 0;
    for (; a > 0 || place == 1; a /= 10, place *= 10) {
        int x = (int)(a % 10);
        int product;

        KG_TRY(put_comma(work, place == 1, err));
        KG_TRY(kg_str_printf(work->out, err, carry ? "%d*%d+%d" : "%d*%d", x, (int)d,
                             carry));
        product = stated(work, x * (int)d + carry, 90);
        KG_TRY(kg_str_printf(work->out, err, "=%d", product));
        *result += product % 10 * place;
        carry = product / 10;
    }
    *result += carry * place;
    return KG_OK;
}

static kg_status work_one(int64_t *result, struct work *work, int64_t a, char op,
                          int64_t b, struct kg_err *err)
{
    if (op == '+')
        return work_sum(result, work, a, b, err);
    return op == '-' ? work_difference(result, work, a, b, err)
                     : work_product(result, work, a, b, err);
}

/* The worked solution.  *valid is false when a fault made a difference negative; *columns counts the steps. */
static kg_status work_all(struct kg_str *out, bool *valid, int *columns,
                          const struct problem *p, struct fault fault, struct kg_err *err)
{
    struct work work = {.out = out, .fault = fault};
    int64_t value = p->operand[0];

    *valid = true;
    KG_TRY(kg_str_putc(out, ' ', err));
    for (int i = 1; i < p->n; i++) {
        *valid = *valid && !(p->op[i] == '-' && value < p->operand[i]);
        if (!*valid)
            return KG_OK;
        KG_TRY(work_one(&value, &work, value, p->op[i], p->operand[i], err));
        if (i + 1 < p->n)
            KG_TRY(kg_str_printf(out, err, " so %lld; ", (long long)value));
    }
    *columns = work.columns;
    return kg_str_printf(out, err, " #### %lld", (long long)value);
}

/* A solution with a wrong step. A fault that makes a later difference negative is moved to the next column; one in the
 * last operation always holds. */
static kg_status work_faulty(struct kg_str *out, const struct problem *p, int columns,
                             struct kg_task_draw *draw, struct kg_err *err)
{
    int first = (int)kg_task_draw_below(draw, (uint64_t)columns);
    uint32_t shift = (uint32_t)kg_task_draw_below(draw, 1u << 30);
    bool valid = false;

    for (int i = 0; i < columns && !valid; i++) {
        struct fault fault = {(first + i) % columns, shift};
        int ignored;

        kg_str_clear(out);
        KG_TRY(work_all(out, &valid, &ignored, p, fault, err));
    }
    assert(valid);
    return KG_OK;
}

/* ---- problems -------------------------------------------------------------------------------- */

static int64_t between(struct kg_task_draw *draw, int64_t low, int64_t high)
{
    return low + (int64_t)kg_task_draw_below(draw, (uint64_t)(high - low + 1));
}

/* Append op and operand. A difference that would be negative becomes a sum. */
static void extend(struct problem *p, char op, int64_t operand)
{
    if (op == '-' && p->answer < operand)
        op = '+';
    p->operand[p->n] = operand;
    p->op[p->n++] = op;
    p->answer = op == '+'   ? p->answer + operand
                : op == '-' ? p->answer - operand
                            : p->answer * operand;
}

static char sign(struct kg_task_draw *draw)
{
    return kg_task_draw_below(draw, 2) ? '-' : '+';
}

static void start(struct problem *p, int64_t operand)
{
    *p = (struct problem){.operand = {operand}, .n = 1, .answer = operand};
}

/* Two operands, three in four of them of two digits. */
static void draw_easy(struct problem *p, struct kg_task_draw *draw)
{
    int64_t a = kg_task_draw_below(draw, 4) ? between(draw, 10, 99) : between(draw, 1, 9);
    int64_t b = kg_task_draw_below(draw, 4) ? between(draw, 10, 99) : between(draw, 1, 9);
    char op = sign(draw);

    start(p, op == '-' && a < b ? b : a);
    extend(p, op, op == '-' && a < b ? a : b);
}

/* Three operands of two digits. */
static void draw_medium(struct problem *p, struct kg_task_draw *draw)
{
    start(p, between(draw, 10, 99));
    extend(p, sign(draw), between(draw, 10, 99));
    extend(p, sign(draw), between(draw, 10, 99));
}

/* Two digits times one, then a sum or difference; or three operands of up to three digits. */
static void draw_hard(struct problem *p, struct kg_task_draw *draw)
{
    bool product = kg_task_draw_below(draw, 2);

    start(p, product ? between(draw, 12, 99) : between(draw, 100, 999));
    if (product)
        extend(p, '*', between(draw, 2, 9));
    else
        extend(p, sign(draw), between(draw, 100, 999));
    extend(p, sign(draw), between(draw, 10, 99));
}

struct level {
    void (*draw)(struct problem *p, struct kg_task_draw *draw);
};
static const struct level easy = {draw_easy};
static const struct level medium = {draw_medium};
static const struct level hard = {draw_hard};

static kg_status put_problem(struct kg_task_made *out, const struct problem *p,
                             struct kg_task_draw *draw, struct kg_err *err)
{
    const char *who = people[kg_task_draw_below(draw, sizeof people / sizeof *people)];
    const char *what = things[kg_task_draw_below(draw, sizeof things / sizeof *things)];

    KG_TRY(kg_str_printf(&out->problem, err, "%lld", (long long)p->operand[0]));
    for (int i = 1; i < p->n; i++)
        KG_TRY(kg_str_printf(&out->problem, err, "%c%lld", p->op[i],
                             (long long)p->operand[i]));
    KG_TRY(kg_str_printf(&out->ground_truth, err, "%lld", (long long)p->answer));
    return kg_str_printf(&out->prompt, err, "Q: %s counts %s: %s=?\nA:", who, what,
                         out->problem.data);
}

static kg_status make(struct kg_task_made *out, struct kg_task_draw *draw,
                      const void *level, bool faulty, struct kg_err *err)
{
    struct fault none = {NO_FAULT, 0};
    struct problem p;
    int columns = 0;
    bool valid;

    ((const struct level *)level)->draw(&p, draw);
    KG_TRY(put_problem(out, &p, draw, err));
    KG_TRY(work_all(&out->solution, &valid, &columns, &p, none, err));
    assert(valid && columns > 0);
    return faulty ? work_faulty(&out->solution, &p, columns, draw, err) : KG_OK;
}

static const struct kg_task_level levels[] = {
    {"easy", make, &easy},
    {"medium", make, &medium},
    {"hard", make, &hard},
    {NULL, NULL, NULL},
};

/* ---- the row --------------------------------------------------------------------------------- */

kg_status kg_task_arithmetic_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                  const char *path, struct kg_err *err)
{
    if (path)
        return kg_dataset_read_jsonl(d, path, opts->prompt_key, opts->answer_key, true,
                                     err);
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
