/* Countdown: reach a target with + - * / and brackets, using each of the given numbers
 * exactly once.
 *
 *     Q: Make 46 from 3, 7, 25.
 *     A: 7*3=21; 25+21=46 #### 25+7*3
 *
 * The grader reads the expression after the last #### (else the last line with text, up
 * to an '='). Its own parser uses exact fractions and limits length, depth and size. The
 * ground truth is the JSON object {"target": 46, "numbers": [3, 7, 25]}, as in the data
 * sets of this kind.
 */
#include "task/task_internal.h"

#include <ctype.h>
#include <string.h>

enum {
    MAX_NUMBERS = 8,
    MAX_EXPRESSION_BYTES = 256,
    MAX_DEPTH = 32,
    MAX_VALUE = 1000000000, /* of intermediate numerators and denominators */
};

/* ---- the expression ---- */

/* top / bottom in lowest terms, bottom > 0 */
struct fraction {
    int64_t top;
    int64_t bottom;
};

struct parser {
    const char *text;
    size_t n;
    size_t at;
    int depth;
    int64_t used[MAX_NUMBERS]; /* the numbers of the expression, in order */
    int n_used;
};

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a < 0 ? -a : a;
}

/* Both parts stay below MAX_VALUE, so their products fit.   returns false beyond that and
 * for a division by zero */
static bool reduce(struct fraction *f, int64_t top, int64_t bottom)
{
    int64_t divisor = common_divisor(top, bottom);

    if (bottom == 0)
        return false;
    divisor = bottom < 0 ? -divisor : divisor;
    f->top = top / divisor;
    f->bottom = bottom / divisor;
    return f->top >= -MAX_VALUE && f->top <= MAX_VALUE && f->bottom <= MAX_VALUE;
}

static bool apply(struct fraction *a, char op, struct fraction b)
{
    switch (op) {
    case '+':
        return reduce(a, a->top * b.bottom + b.top * a->bottom, a->bottom * b.bottom);
    case '-':
        return reduce(a, a->top * b.bottom - b.top * a->bottom, a->bottom * b.bottom);
    case '*':
        return reduce(a, a->top * b.top, a->bottom * b.bottom);
    default:
        return reduce(a, a->top * b.bottom, a->bottom * b.top);
    }
}

static char peek(struct parser *p)
{
    while (p->at < p->n && (p->text[p->at] == ' ' || p->text[p->at] == '\t'))
        p->at++;
    return p->at < p->n ? p->text[p->at] : 0;
}

static bool parse_sum(struct fraction *out, struct parser *p);

static bool parse_number(struct fraction *out, struct parser *p)
{
    int64_t value = 0;

    if (!isdigit((unsigned char)peek(p)) || p->n_used == MAX_NUMBERS)
        return false;
    for (; p->at < p->n && isdigit((unsigned char)p->text[p->at]); p->at++) {
        value = value * 10 + (p->text[p->at] - '0');
        if (value > MAX_VALUE)
            return false;
    }
    p->used[p->n_used++] = value;
    *out = (struct fraction){value, 1};
    return true;
}

static bool parse_factor(struct fraction *out, struct parser *p)
{
    if (peek(p) != '(')
        return parse_number(out, p);
    if (p->depth == MAX_DEPTH)
        return false;
    p->at++;
    p->depth++;
    if (!parse_sum(out, p))
        return false;
    p->depth--;
    bool closed = peek(p) == ')';
    p->at += closed;
    return closed;
}

static bool parse_product(struct fraction *out, struct parser *p)
{
    struct fraction right;

    if (!parse_factor(out, p))
        return false;
    while (peek(p) == '*' || peek(p) == '/') {
        char op = p->text[p->at++];

        if (!parse_factor(&right, p) || !apply(out, op, right))
            return false;
    }
    return true;
}

static bool parse_sum(struct fraction *out, struct parser *p)
{
    struct fraction right;

    if (!parse_product(out, p))
        return false;
    while (peek(p) == '+' || peek(p) == '-') {
        char op = p->text[p->at++];

        if (!parse_product(&right, p) || !apply(out, op, right))
            return false;
    }
    return true;
}

/* ---- grading ---- */

struct puzzle {
    int64_t target;
    int64_t numbers[MAX_NUMBERS];
    int n;
};

static kg_status read_puzzle(struct puzzle *puzzle, const char *truth, struct kg_err *err)
{
    const struct kg_json *numbers;
    struct kg_json_doc doc;
    kg_status status;

    KG_TRY(kg_json_parse(&doc, truth, strlen(truth), "ground truth", err));
    KG_TRY_GOTO(out, kg_json_need_int(&puzzle->target, &doc, doc.root, "target",
                                      -MAX_VALUE, MAX_VALUE, err));
    KG_TRY_GOTO(out,
                kg_json_need(&numbers, &doc, doc.root, "numbers", KG_JSON_ARRAY, err));
    puzzle->n = 0;
    for (size_t i = 0; i < kg_json_size(numbers); i++) {
        int64_t number = kg_json_int(kg_json_at(numbers, i), -1);

        if (i == MAX_NUMBERS || number < 0 || number > MAX_VALUE) {
            status = kg_fail(err, KG_EFORMAT,
                             "ground truth: expected at most %d numbers of 0..%d, found "
                             "number %zu to be %s",
                             MAX_NUMBERS, MAX_VALUE, i + 1,
                             kg_json_type_name(kg_json_at(numbers, i)));
            goto out;
        }
        puzzle->numbers[puzzle->n++] = number;
    }
out:
    kg_json_release(&doc);
    return status;
}

/* Whether the expression uses each given number exactly once. */
static bool same_numbers(const struct parser *p, const struct puzzle *puzzle)
{
    bool taken[MAX_NUMBERS] = {false};

    if (p->n_used != puzzle->n)
        return false;
    for (int i = 0; i < p->n_used; i++) {
        int j = 0;

        while (j < puzzle->n && (taken[j] || puzzle->numbers[j] != p->used[i]))
            j++;
        if (j == puzzle->n)
            return false;
        taken[j] = true;
    }
    return true;
}

/* The expression of a response: after the last ####, else the last line with text; up to
 * an '='. */
static const char *find_expression(const char *text, size_t n, size_t *len)
{
    const char *found = kg_task_after_marker(text, n, len);

    if (!found) {
        size_t end = n;
        size_t start;

        while (end > 0 && isspace((unsigned char)text[end - 1]))
            end--;
        for (start = end; start > 0 && text[start - 1] != '\n';)
            start--;
        found = text + start;
        *len = end - start;
    }
    const char *equals = *len ? memchr(found, '=', *len) : NULL;
    *len = equals ? (size_t)(equals - found) : *len;
    while (*len > 0 && isspace((unsigned char)found[*len - 1]))
        --*len;
    return found;
}

kg_status kg_task_countdown_grade(struct kg_grade *g, const struct kg_record *r,
                                  const char *response, size_t n, struct kg_err *err)
{
    struct parser p = {.at = 0};
    struct fraction value;
    struct puzzle puzzle;

    KG_TRY(read_puzzle(&puzzle, r->ground_truth, err));
    p.text = find_expression(response, n, &p.n);
    g->graded = true;
    g->correct = p.n <= MAX_EXPRESSION_BYTES && parse_sum(&value, &p) && p.at == p.n &&
                 value.bottom == 1 && value.top == puzzle.target &&
                 same_numbers(&p, &puzzle);
    g->reward = g->correct;
    return KG_OK;
}

/* ---- generating ---- */

struct level {
    int n;           /* numbers */
    int64_t largest; /* largest given number */
    const char *ops;
};
static const struct level small = {3, 9, "+-"};
static const struct level easy = {3, 20, "+-"};
static const struct level medium = {3, 50, "+-*/"};
static const struct level hard = {4, 99, "+-*/"};
enum { MAX_TARGET = 999 };

/* A way to combine: value becomes value op number, or number op value. */
struct step {
    char op;
    bool swapped;
};
struct chain {
    int64_t numbers[MAX_NUMBERS];
    struct step steps[MAX_NUMBERS]; /* steps[i] brings in numbers[i]; steps[0] unused */
    int n;
    int64_t target;
};

/* *value becomes a op b.   returns false unless it is a whole number of 1..MAX_TARGET */
static bool combine(int64_t *value, int64_t a, char op, int64_t b)
{
    if (op == '/' && (b == 0 || a % b != 0))
        return false;
    *value = op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b;
    return *value >= 1 && *value <= MAX_TARGET;
}

static bool take_step(int64_t *value, struct step step, int64_t number)
{
    return step.swapped ? combine(value, number, step.op, *value)
                        : combine(value, *value, step.op, number);
}

/* Finds a valid step, trying all from a random one on. One always exists: a sum or a
 * difference. */
static bool draw_step(struct step *step, int64_t *value, int64_t number,
                      const struct level *level, struct kg_task_draw *draw)
{
    uint64_t ways = 2 * strlen(level->ops);
    uint64_t first = kg_task_draw_below(draw, ways);

    for (uint64_t i = 0; i < ways; i++) {
        uint64_t way = (first + i) % ways;
        int64_t next = *value;

        *step = (struct step){level->ops[way / 2], way % 2 == 1};
        if (!take_step(&next, *step, number))
            continue;
        *value = next;
        return true;
    }
    return false;
}

static bool draw_chain(struct chain *chain, const struct level *level,
                       struct kg_task_draw *draw)
{
    bool holds = true;

    chain->n = level->n;
    for (int i = 0; i < level->n; i++) {
        int64_t number = 1 + (int64_t)kg_task_draw_below(draw, (uint64_t)level->largest);

        chain->numbers[i] = number;
        if (i == 0)
            chain->target = number;
        else
            holds = holds &&
                    draw_step(&chain->steps[i], &chain->target, number, level, draw);
    }
    return holds;
}

/* "25-7=18; 18*3=54 #### (25-7)*3", brackets around every part that is itself an
 * operation */
static kg_status put_solution(struct kg_str *out, const struct chain *chain,
                              struct kg_err *err)
{
    struct kg_str expression = {0};
    struct kg_str whole = {0};
    int64_t value = chain->numbers[0];
    kg_status status;

    KG_TRY_GOTO(out, kg_str_printf(&expression, err, "%lld", (long long)value));
    for (int i = 1; i < chain->n; i++) {
        struct step step = chain->steps[i];
        long long number = chain->numbers[i];
        long long before = value;
        const char *open = i > 1 ? "(" : "";
        const char *close = i > 1 ? ")" : "";

        (void)take_step(&value, step, number);
        KG_TRY_GOTO(out, kg_str_printf(out, err, "%s %lld%c%lld=%lld", i > 1 ? ";" : "",
                                       step.swapped ? number : before, step.op,
                                       step.swapped ? before : number, (long long)value));
        kg_str_clear(&whole);
        if (step.swapped)
            status = kg_str_printf(&whole, err, "%lld%c%s%s%s", number, step.op, open,
                                   expression.data, close);
        else
            status = kg_str_printf(&whole, err, "%s%s%s%c%lld", open, expression.data,
                                   close, step.op, number);
        KG_TRY_GOTO(out, status);
        kg_str_clear(&expression);
        KG_TRY_GOTO(out, kg_str_puts(&expression, whole.data, err));
    }
    KG_TRY_GOTO(out, kg_str_printf(out, err, " #### %s", expression.data));
out:
    kg_str_release(&expression);
    kg_str_release(&whole);
    return status;
}

static void sort(int64_t *numbers, int n)
{
    for (int i = 1; i < n; i++) {
        for (int j = i; j > 0 && numbers[j - 1] > numbers[j]; j--) {
            int64_t swap = numbers[j];

            numbers[j] = numbers[j - 1];
            numbers[j - 1] = swap;
        }
    }
}

/* Sorts the numbers, because the order in which they were drawn reveals the solution. */
static kg_status put_problem(struct kg_task_made *out, const struct chain *chain,
                             struct kg_err *err)
{
    int64_t sorted[MAX_NUMBERS];
    long long target = chain->target;

    memcpy(sorted, chain->numbers, sizeof sorted);
    sort(sorted, chain->n);
    KG_TRY(kg_str_printf(&out->prompt, err, "Q: Make %lld from", target));
    KG_TRY(
        kg_str_printf(&out->ground_truth, err, "{\"target\":%lld,\"numbers\":[", target));
    for (int i = 0; i < chain->n; i++) {
        KG_TRY(kg_str_printf(&out->prompt, err, "%s %lld", i ? "," : "",
                             (long long)sorted[i]));
        KG_TRY(kg_str_printf(&out->ground_truth, err, "%s%lld", i ? "," : "",
                             (long long)sorted[i]));
    }
    KG_TRY(kg_str_puts(&out->prompt, ".\nA:", err));
    KG_TRY(kg_str_puts(&out->ground_truth, "]}", err));
    return kg_str_puts(&out->problem, out->ground_truth.data, err);
}

/* Replaces the last operation, so that the solution misses the target. In rare cases no
 * other value is in range; then the solution stays right. */
static void break_chain(struct chain *chain, struct kg_task_draw *draw)
{
    static const char ops[] = "+-*/";
    struct step *last = &chain->steps[chain->n - 1];
    struct step right = *last;
    uint64_t first = kg_task_draw_below(draw, 8);
    int64_t before = chain->numbers[0];

    for (int i = 1; i + 1 < chain->n; i++)
        (void)take_step(&before, chain->steps[i], chain->numbers[i]);
    for (uint64_t i = 0; i < 8; i++) {
        uint64_t way = (first + i) % 8;
        int64_t value = before;

        *last = (struct step){ops[way / 2], way % 2 == 1};
        if (take_step(&value, *last, chain->numbers[chain->n - 1]) &&
            value != chain->target)
            return;
    }
    *last = right;
}

static kg_status make(struct kg_task_made *out, struct kg_task_draw *draw,
                      const void *level, bool faulty, struct kg_err *err)
{
    struct chain chain = {.n = 0};
    int attempts = 0;

    while (!draw_chain(&chain, level, draw) && attempts < 100)
        attempts++;
    if (attempts == 100)
        return kg_fail(err, KG_EINVAL, "expected a target within %d draws, found none",
                       attempts);
    KG_TRY(put_problem(out, &chain, err));
    if (faulty)
        break_chain(&chain, draw);
    return put_solution(&out->solution, &chain, err);
}

static const struct kg_task_level levels[] = {
    {"easy", make, &easy},   {"medium", make, &medium}, {"hard", make, &hard},
    {"small", make, &small}, {NULL, NULL, NULL},
};

kg_status kg_task_countdown_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                 const char *path, struct kg_err *err)
{
    struct puzzle puzzle;

    if (!path)
        return kg_task_generate(d, "countdown", levels, opts, err);
    KG_TRY(kg_task_read(d, path, opts, true, err));
    for (size_t i = 0; i < d->n; i++) {
        kg_status status = read_puzzle(&puzzle, d->records[i].ground_truth, err);

        if (status == KG_OK)
            continue;
        kg_err_prefix(err, "%s: %s %lld", d->name, d->unit,
                      (long long)d->records[i].line);
        kg_dataset_release(d);
        return status;
    }
    return KG_OK;
}
