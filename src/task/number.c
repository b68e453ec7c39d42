/* Exact decimals found in running text, as models write them: "$1,234.50", "18.00", "-3",
 * "75%".
 *
 * A number is kept as canonical text, not as a double, so that equality is exact at any
 * length and 0.1 is 0.1. It is not a formula reader: "1/2" is two numbers, and "1e5" too.
 */
#include "base/mem.h"
#include "task/task_internal.h"

#include <ctype.h>
#include <string.h>

static bool digit_at(const char *text, size_t n, size_t i)
{
    return i < n && isdigit((unsigned char)text[i]);
}

/* A ',' that separates thousands: exactly three digits follow. */
static bool is_thousands(const char *text, size_t n, size_t i)
{
    return i < n && text[i] == ',' && digit_at(text, n, i + 1) &&
           digit_at(text, n, i + 2) && digit_at(text, n, i + 3) &&
           !digit_at(text, n, i + 4);
}

/* U+2212 or '-' that ends right before i.   returns its length or 0 */
static size_t minus_before(const char *text, size_t i)
{
    if (i >= 1 && text[i - 1] == '-')
        return 1;
    return i >= 3 && memcmp(text + i - 3, "\xe2\x88\x92", 3) == 0 ? 3 : 0;
}

/* Whether the digits at `start` carry a minus sign: "-3", "-$3", "$-3", but not "7-3" or
 * "x-3". */
static bool is_negative(const char *text, size_t start)
{
    size_t i = start;

    while (i > 0 && (text[i - 1] == '$' || text[i - 1] == '\\'))
        i--;
    size_t minus = minus_before(text, i);
    if (minus == 0)
        return false;
    i -= minus;
    while (i > 0 && (text[i - 1] == '$' || text[i - 1] == '\\'))
        i--;
    return i == 0 ||
           !(isalnum((unsigned char)text[i - 1]) || kg_char_in(")]%", text[i - 1]));
}

struct digits {
    struct kg_task_number *number;
    char *out;
    size_t used;
};

static void put(struct digits *d, char c)
{
    if (d->used + 1 >= KG_TASK_NUMBER_BYTES)
        d->number->overflow = true;
    else
        d->out[d->used++] = c;
}

/* Copies the digits from `i`, without separators and leading zeros.   returns their
 * end */
static size_t read_whole(struct digits *d, const char *text, size_t n, size_t i)
{
    size_t start = d->used;

    for (; digit_at(text, n, i) || is_thousands(text, n, i); i++) {
        if (text[i] != ',' && (d->used > start || text[i] != '0'))
            put(d, text[i]);
    }
    if (d->used == start)
        put(d, '0');
    return i;
}

static size_t read_fraction(struct digits *d, const char *text, size_t n, size_t i)
{
    size_t point = d->used;

    if (i >= n || text[i] != '.' || !digit_at(text, n, i + 1))
        return i;
    put(d, '.');
    for (i++; digit_at(text, n, i); i++)
        put(d, text[i]);
    while (d->used > point && d->out[d->used - 1] == '0')
        d->used--;
    if (d->used == point + 1)
        d->used = point;
    return i;
}

/* The first number at or after *at, which moves past it. Thousands separators, $ and a
 * leading + are dropped; a '-' is a sign only if no operand precedes it.
 * returns false if there is none */
static bool number_next(struct kg_task_number *out, const char *text, size_t n,
                        size_t *at)
{
    struct digits d = {.number = out, .out = out->text};
    size_t i = *at;

    out->overflow = false;
    while (i < n && !digit_at(text, n, i) &&
           !(text[i] == '.' && digit_at(text, n, i + 1)))
        i++;
    *at = i;
    if (i == n)
        return false;
    if (is_negative(text, i))
        put(&d, '-');
    *at = read_fraction(&d, text, n, read_whole(&d, text, n, i));
    out->text[d.used] = 0;
    if (strcmp(out->text, "-0") == 0)
        memcpy(out->text, "0", 2);
    return true;
}

bool kg_task_number_last(struct kg_task_number *out, const char *text, size_t n)
{
    struct kg_task_number found;
    bool any = false;
    size_t at = 0;

    while (number_next(&found, text, n, &at)) {
        *out = found;
        any = true;
    }
    return any;
}

bool kg_task_number_only(struct kg_task_number *out, const char *text, size_t n)
{
    struct kg_task_number second;
    size_t at = 0;

    return number_next(out, text, n, &at) && !number_next(&second, text, n, &at);
}

bool kg_task_number_same(const struct kg_task_number *a, const struct kg_task_number *b)
{
    /* a number too long to hold equals nothing */
    return !a->overflow && !b->overflow && strcmp(a->text, b->text) == 0;
}

kg_status kg_task_number_put(struct kg_str *out, const struct kg_task_number *number,
                             struct kg_err *err)
{
    return number->overflow ? KG_OK : kg_str_puts(out, number->text, err);
}

kg_status kg_task_number_same_text(bool *same, const struct kg_task_opts *opts,
                                   const char *a, const char *b, struct kg_err *err)
{
    (void)opts;
    (void)err;
    *same = strcmp(a, b) == 0;
    return KG_OK;
}

const char *kg_task_after_marker(const char *text, size_t n, size_t *len)
{
    static const char marker[] = "####";
    size_t size = sizeof marker - 1;

    for (size_t i = n; i >= size; i--) {
        if (memcmp(text + i - size, marker, size) != 0)
            continue;
        const char *end = memchr(text + i, '\n', n - i);
        *len = end ? (size_t)(end - (text + i)) : n - i;
        return text + i;
    }
    return NULL;
}

/* verl's digit completion: the prompt "a,b:m,k" asks for the next k numbers of the
 * sequence that starts a, b and goes on by b - a, modulo m; the answer separates them by
 * commas. In verl's vocabulary of characters S starts the answer and E ends it.
 *
 * The reward is dense: 1 / (characters of the truth + 1) for each character up to the
 * first wrong one. The end token earns nothing, so a perfect answer of n characters gets
 * n / (n + 1).
 */

enum {
    START = 'S',
    END = 'E',
};

static kg_status finish(struct kg_record *r, const struct kg_dataset *d,
                        struct kg_err *err)
{
    size_t valid = strspn(r->ground_truth, "0123456789,");

    if (r->ground_truth[valid] != 0)
        return kg_fail(err, KG_EFORMAT,
                       "%s: %s %lld: expected digits and commas as answer, found '%.60s'",
                       d->name, d->unit, (long long)r->line, r->ground_truth);
    if (!r->solution) {
        r->solution = kg_mem_strdup(r->ground_truth, err);
        if (!r->solution)
            return err->code;
    }
    size_t n = strlen(r->prompt);
    char *prompt;

    if (!kg_task_has_question(r) || (n > 0 && r->prompt[n - 1] == START))
        return KG_OK;
    KG_TRY(kg_mem_new(&prompt, n + 2, 1, "prompt", err));
    memcpy(prompt, r->prompt, n);
    prompt[n] = START;
    return kg_task_set_question(r, prompt, err);
}

kg_status kg_task_digits_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                              const char *path, struct kg_err *err)
{
    kg_status status;

    KG_TRY(kg_task_read(d, path, opts, true, err));
    for (size_t i = 0; i < d->n; i++)
        KG_TRY_GOTO(fail, finish(&d->records[i], d, err));
    return KG_OK;
fail:
    kg_dataset_release(d);
    return status;
}

kg_status kg_task_digits_grade(struct kg_grade *g, const struct kg_record *r,
                               const char *response, size_t n, struct kg_err *err)
{
    size_t truth_n = strlen(r->ground_truth);
    size_t right = 0;

    (void)err;
    /* whether the text shows the end depends on how special tokens are printed */
    if (n > 0 && response[n - 1] == END)
        n--;
    while (right < n && right < truth_n && response[right] == r->ground_truth[right])
        right++;
    g->graded = true;
    g->correct = right == truth_n && n == truth_n;
    g->reward = (double)right / (double)(truth_n + 1);
    return KG_OK;
}
