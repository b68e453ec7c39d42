/* From texts to a verdict: the mode `default`, and what all modes share. `default`
 * compares letters of a choice or extracted formulas; unless they are equal, it tests
 * whether the words are identical. Among several gold answers, one that is right decides,
 * and an undecided one outweighs those that are wrong. One budget of time, work and
 * memory covers all of them. */
#include "math/math_internal.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const char *kg_math_verdict_name(enum kg_math_verdict v)
{
    static const char *const names[] = {"wrong", "right", "undecided"};

    return names[v];
}

kg_status kg_math_say(struct kg_math_job *job, enum kg_math_verdict v, const char *reason)
{
    job->result->verdict = v;
    snprintf(job->result->reason, sizeof job->result->reason, "%s", reason);
    return KG_OK;
}

void kg_math_result_release(struct kg_math_result *r) { kg_str_release(&r->extracted); }

/* ---- equal words ---- */

/* Bytes of "\text{" or a similar command at text; 0 if there is none. */
static size_t wrapper(const char *text, size_t n)
{
    static const char *const wrappers[] = {"\\text{",  "\\textbf{", "\\mathrm{",
                                           "\\mbox{",  "\\textit{", "\\mathbf{",
                                           "\\textrm{"};

    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++) {
        size_t len = strlen(wrappers[i]);

        if (len <= n && memcmp(text, wrappers[i], len) == 0)
            return len;
    }
    return 0;
}

/* Whether text[i] is a space that may be dropped: one that is not between digits. */
static bool is_idle_space(const char *text, size_t n, size_t i)
{
    size_t next = i;

    if (!isspace((unsigned char)text[i]))
        return false;
    while (next < n && isspace((unsigned char)text[next]))
        next++;
    return i == 0 || next == n || !isdigit((unsigned char)text[i - 1]) ||
           !isdigit((unsigned char)text[next]);
}

static void lower_words(struct kg_str *s)
{
    size_t letters = 0;

    for (size_t i = 0; i < s->len; i++) {
        if ((unsigned char)s->data[i] < 0x80 && !isalpha((unsigned char)s->data[i]) &&
            !kg_char_in(" -'", s->data[i]))
            return;
        letters++;
    }
    /* short words keep their case: Cx is not cx */
    if (letters < 3 && strcasecmp(kg_str_text(s), "no") != 0)
        return;
    for (size_t i = 0; i < s->len; i++)
        s->data[i] = (char)tolower((unsigned char)s->data[i]);
}

/* Appends the text without case, spacing, markup and final punctuation. */
static kg_status math_words(struct kg_str *out, const char *text, size_t n,
                            struct kg_err *err)
{
    int open = 0; /* wrappers whose closing brace is to be dropped */

    for (size_t i = 0; i < n; i++) {
        size_t len = wrapper(text + i, n - i);
        const char *close = len ? memchr(text + i + len, '}', n - i - len) : NULL;

        if (close && !memchr(text + i + len, '{', (size_t)(close - text) - i - len)) {
            open++;
            i += len - 1;
            continue;
        }
        if (open && text[i] == '}') {
            open--;
            continue;
        }
        if (text[i] != '$' && !is_idle_space(text, n, i))
            KG_TRY(kg_str_putc(out, text[i], err));
    }
    while (out->len > 0 && kg_char_in(".,;", out->data[out->len - 1]))
        out->data[--out->len] = 0;
    lower_words(out);
    return KG_OK;
}

static kg_status same_words(bool *same, struct kg_math_text a, struct kg_math_text b,
                            struct kg_err *err)
{
    struct kg_str x = {0};
    struct kg_str y = {0};
    kg_status status;

    KG_TRY_GOTO(out, math_words(&x, a.text, a.n, err));
    KG_TRY_GOTO(out, math_words(&y, b.text, b.n, err));
    *same = x.len > 0 && x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
out:
    kg_str_release(&x);
    kg_str_release(&y);
    return status;
}

kg_status kg_math_phrase(const char **formula, const char *text, size_t n,
                         struct kg_err *err)
{
    static const struct {
        const char *words; /* without spaces */
        const char *formula;
    } rows[] = {
        {"nosolution", "\\emptyset"},
        {"nosolutions", "\\emptyset"},
        {"norealsolution", "\\emptyset"},
        {"norealsolutions", "\\emptyset"},
        {"emptyset", "\\emptyset"},
        {"theemptyset", "\\emptyset"},
        {"none", "\\emptyset"},
        {"infinity", "\\infty"},
        {"infinite", "\\infty"},
        {"infinitelymany", "\\infty"},
        {"positiveinfinity", "\\infty"},
        {"negativeinfinity", "-\\infty"},
        {"minusinfinity", "-\\infty"},
        {"dne", "\\text{does not exist}"},
        {"doesnotexist", "\\text{does not exist}"},
        {"doesn'texist", "\\text{does not exist}"},
        {"thelimitdoesnotexist", "\\text{does not exist}"},
        {"limitdoesnotexist", "\\text{does not exist}"},
        {"allrealnumbers", "\\mathbb{R}"},
        {"allrealvalues", "\\mathbb{R}"},
        {"allreals", "\\mathbb{R}"},
        {"therealnumbers", "\\mathbb{R}"},
    };
    struct kg_str plain = {0};
    kg_status status = KG_OK;

    *formula = NULL;
    if (n == 0 || n > 64)
        return KG_OK;
    KG_TRY_GOTO(out, math_words(&plain, text, n, err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(kg_str_text(&plain), rows[i].words) == 0)
            *formula = rows[i].formula;
    }
out:
    kg_str_release(&plain);
    return status;
}

static struct kg_math_text text_of(const struct kg_str *s)
{
    return (struct kg_math_text){kg_str_text(s), s->len};
}

/* ---- default ---- */

#define SAME  "the texts are the same"
#define NUL   "the answer has a NUL"
#define LOWER "abcdefghijklmnopqrstuvwxyz"

/* The two texts of one comparison, as plain LaTeX. */
struct sides {
    struct kg_str gold;
    struct kg_str answer;
};

static kg_status compare_trees(struct kg_math_job *job, const struct sides *s, int flags,
                               struct kg_err *err)
{
    struct kg_math_compare c = {
        .tree = job->tree, .opts = job->opts, .decider.budget = &job->budget};
    const char *why;
    int gold;
    int answer;

    kg_math_tree_clear(job->tree);
    gold = kg_math_parse(job->tree, kg_str_text(&s->gold), s->gold.len, 0, &why);
    if (!gold) {
        snprintf(job->result->reason, sizeof job->result->reason,
                 "the gold answer cannot be read: %s", why);
        job->result->verdict = KG_MATH_UNDECIDED;
        return KG_OK;
    }
    answer = kg_math_parse(job->tree, kg_str_text(&s->answer), s->answer.len, flags,
                           &why);
    if (!answer) {
        snprintf(job->result->reason, sizeof job->result->reason,
                 "the answer cannot be read: %s", why);
        job->result->verdict = KG_MATH_UNDECIDED;
        return KG_OK;
    }
    enum kg_math_verdict v = kg_math_compare(&c, gold, answer);
    if (c.decider.no_memory)
        return kg_fail(err, KG_ENOMEM, "grading: out of memory");
    return kg_math_say(job, v, c.decider.reason);
}

/* Appends a number in words, in lower case, with "-" for "negative" or "minus". */
static kg_status put_number_words(struct kg_str *out, struct kg_math_text t,
                                  struct kg_err *err)
{
    size_t skipped = kg_math_sign_word(t);

    if (skipped)
        KG_TRY(kg_str_putc(out, '-', err));
    for (size_t i = skipped; i < t.n && t.text[i] != '.'; i++)
        KG_TRY(kg_str_putc(out, (char)tolower((unsigned char)t.text[i]), err));
    return KG_OK;
}

/* Appends the text as plain LaTeX; for a phrase such as "no solution", its formula. */
static kg_status make_plain(struct kg_str *out, const struct kg_str *text,
                            struct kg_err *err)
{
    const char *formula;

    KG_TRY(kg_math_phrase(&formula, kg_str_text(text), text->len, err));
    if (formula)
        return kg_str_puts(out, formula, err);
    if (kg_math_is_number_words(text_of(text)))
        return put_number_words(out, text_of(text), err);
    return kg_math_clean(out, kg_str_text(text), text->len, err);
}

/* Whether the text is words, not a product: over three bytes, or not all lower case. */
static bool is_word(const struct kg_str *s)
{
    bool letters = s->len > 3 || (s->len > 0 && strspn(s->data, LOWER) < s->len);

    for (size_t i = 0; i < s->len; i++) {
        if (!isalpha((unsigned char)s->data[i]) && !kg_char_in(" -'", s->data[i]))
            return false;
    }
    return letters;
}

/* Whether the text has one comma, between two digits. */
static bool has_decimal_comma(const struct kg_str *s)
{
    const char *comma = memchr(kg_str_text(s), ',', s->len);
    size_t at = comma ? (size_t)(comma - s->data) : 0;

    return at > 0 && at + 1 < s->len && isdigit((unsigned char)comma[-1]) &&
           isdigit((unsigned char)comma[1]) && !memchr(comma + 1, ',', s->len - at - 1);
}

/* Whether text[i] is the letter of a further option: a ) follows it, or it is joined to
 * the first ("or D"). */
static bool is_option(struct kg_math_text t, size_t i)
{
    static const char *const joins[] = {"or ", "and ", ", ", "/", "(", "or (", "and ("};

    if (t.text[i] < 'A' || t.text[i] > 'J' || isalnum((unsigned char)t.text[i - 1]) ||
        (i + 1 < t.n && isalnum((unsigned char)t.text[i + 1])))
        return false;
    if (i + 1 < t.n && t.text[i + 1] == ')')
        return true;
    for (size_t k = 0; k < sizeof joins / sizeof *joins; k++) {
        size_t len = strlen(joins[k]);

        if (len <= i && memcmp(t.text + i - len, joins[k], len) == 0)
            return true;
    }
    return false;
}

static bool names_another(struct kg_math_text t, size_t first)
{
    for (size_t i = first + 1; i < t.n; i++) {
        if (t.text[i] != t.text[first] && is_option(t, i))
            return true;
    }
    return false;
}

/* How a choice is written: "C"; "(C)", "C) 12"; "C. 12", "C: 12". */
enum choice_form { CHOICE_BARE, CHOICE_BRACKETED, CHOICE_DOTTED };

/* The letter of a choice: the whole text ("C"), or marked before the text of the option
 * ("\textbf{(C)}\ 12", "C) 12", "C. 12", "C. a worm"). 0 if there is none, or if a
 * further option is named. */
static char choice_letter(struct kg_math_text t, enum choice_form *form)
{
    size_t i = 0;

    while (i < t.n && (t.text[i] == ' ' || t.text[i] == '$'))
        i++;
    size_t len = wrapper(t.text + i, t.n - i);
    i += len;
    *form = CHOICE_BARE;
    if (t.n - i >= 3 && t.text[i] == '(' && t.text[i + 2] == ')') {
        *form = CHOICE_BRACKETED;
        i++;
    }
    if (i >= t.n || t.text[i] < 'A' || t.text[i] > 'J')
        return 0;
    if (t.n - i >= 3 && t.text[i + 1] == ')')
        *form = CHOICE_BRACKETED;
    else if (t.n - i >= 3 && kg_char_in(".:", t.text[i + 1]) && t.text[i + 2] == ' ')
        *form = CHOICE_DOTTED;
    if (*form == CHOICE_BARE)
        return i + 1 == t.n || (len && t.text[i + 1] == '}') ? t.text[i] : 0;
    return names_another(t, i) ? 0 : t.text[i];
}

/* The letters of several choices as bits, all joined ("AC") or all apart ("A, C", "(A)
 * and (C)"; sets *apart); 0 for anything else, such as the points (A,C). */
static unsigned choice_letters(struct kg_math_text t, bool *apart)
{
    unsigned found = 0;
    size_t i = wrapper(t.text, t.n);
    size_t joined = 0; /* letters directly after a letter */
    size_t n = 0;

    while (t.n > i && t.text[t.n - 1] == '.')
        t.n--;
    for (t.n -= i > 0; i < t.n; i++) {
        unsigned bit = 1u << ((unsigned)(t.text[i] - 'A') & 31u);

        if (t.n - i > 3 && memcmp(t.text + i, "and", 3) == 0) {
            i += 2;
        } else if (t.text[i] >= 'A' && t.text[i] <= 'J' && !(found & bit)) {
            joined += n++ > 0 && isupper((unsigned char)t.text[i - 1]);
            found |= bit;
        } else if (!kg_char_in(" ,;&()", t.text[i]) ||
                   (t.text[i] == '(' && !(t.n - i > 2 && t.text[i + 2] == ')'))) {
            return 0;
        }
    }
    *apart = *apart || joined == 0;
    return n > 1 && (joined == 0 || joined == n - 1) ? found : 0;
}

/* Whether both sides are choices: several letters each; or one letter each, marked on at
 * least one side, but not by a full stop on both.   *same <- whether they are equal */
static bool are_choices(bool *same, const struct kg_str *gold,
                        const struct kg_str *answer)
{
    enum choice_form gold_form;
    enum choice_form answer_form;
    char g = choice_letter(text_of(gold), &gold_form);
    char a = choice_letter(text_of(answer), &answer_form);
    bool apart = false;
    unsigned all_g = choice_letters(kg_math_trimmed(text_of(gold)), &apart);
    unsigned all_a = choice_letters(kg_math_trimmed(text_of(answer)), &apart);

    if (all_g && all_a && apart) {
        *same = all_g == all_a;
        return true;
    }
    *same = g == a;
    return g && a && (gold_form != CHOICE_BARE || answer_form != CHOICE_BARE) &&
           !(gold_form == CHOICE_DOTTED && answer_form == CHOICE_DOTTED);
}

static kg_status compare_texts(struct kg_math_job *job, const struct kg_math_found *gold,
                               const struct kg_math_found *answer, struct kg_err *err)
{
    struct sides s = {0};
    bool same;
    kg_status status;

    KG_TRY(same_words(&same, job->gold, text_of(&answer->text), err));
    if (!same)
        KG_TRY(same_words(&same, text_of(&gold->text), text_of(&answer->text), err));
    if (same)
        return kg_math_say(job, KG_MATH_RIGHT, SAME);
    if (are_choices(&same, &gold->text, &answer->text))
        return kg_math_say(job, same ? KG_MATH_RIGHT : KG_MATH_WRONG,
                           same ? "the letters agree" : "the letters differ");
    KG_TRY_GOTO(out, make_plain(&s.gold, &gold->text, err));
    KG_TRY_GOTO(out, make_plain(&s.answer, &answer->text, err));
    KG_TRY_GOTO(out, same_words(&same, text_of(&s.gold), text_of(&s.answer), err));
    if (same) {
        kg_math_say(job, KG_MATH_RIGHT, SAME);
        goto out;
    }
    if (is_word(&s.gold) && is_word(&s.answer) &&
        !kg_math_is_number_words(text_of(&s.gold)) && s.gold.len > 1 &&
        s.answer.len > 1) {
        /* as trees they would be products of letters, equal in any order */
        kg_math_say(job, KG_MATH_WRONG, "the words are different");
        goto out;
    }
    KG_TRY_GOTO(out, compare_trees(job, &s, 0, err));
    if (job->result->verdict != KG_MATH_RIGHT && answer->plain &&
        has_decimal_comma(&s.answer)) {
        struct kg_math_result first = *job->result;

        KG_TRY_GOTO(out, compare_trees(job, &s, KG_MATH_DECIMAL_COMMA, err));
        if (job->result->verdict != KG_MATH_RIGHT)
            kg_math_say(job, first.verdict, first.reason);
    }
out:
    kg_str_release(&s.gold);
    kg_str_release(&s.answer);
    return status;
}

static kg_status grade_choice(struct kg_math_job *job, struct kg_err *err)
{
    char answer = kg_math_choice(job->answer.text, job->answer.n);
    char gold = kg_math_choice(job->gold.text, job->gold.n);

    if (!gold)
        return kg_math_say(job, KG_MATH_UNDECIDED,
                           "no letter of a choice in the gold answer");
    if (!answer)
        return kg_math_say(job, KG_MATH_WRONG, "no letter of a choice was found");
    KG_TRY(kg_str_putc(&job->result->extracted, answer, err));
    return kg_math_say(job, answer == gold ? KG_MATH_RIGHT : KG_MATH_WRONG,
                       answer == gold ? "the letters agree" : "the letters differ");
}

static struct kg_math_text trimmed(struct kg_math_text t)
{
    while (t.n > 0 && kg_char_in(" \n($", t.text[0])) {
        t.text++;
        t.n--;
    }
    while (t.n > 0 && kg_char_in(" \n)$.", t.text[t.n - 1]))
        t.n--;
    return t;
}

/* Whether to compare choices: the gold answer is a letter and the answer running text; or
 * the answer is a letter and the gold answer a letter with its text ("C Cecile"). */
static bool asks_choice(const struct kg_math_job *job)
{
    struct kg_math_text gold = trimmed(job->gold);
    struct kg_math_text answer = trimmed(job->answer);
    size_t n;

    if (gold.n == 1 && gold.text[0] >= 'A' && gold.text[0] <= 'J')
        return kg_math_is_prose(answer) && !kg_math_last_boxed(answer.text, answer.n, &n);
    return answer.n == 1 && answer.text[0] >= 'A' && answer.text[0] <= 'J' &&
           gold.n > 3 && kg_char_in(" ).:\n", gold.text[1]) && kg_math_is_prose(gold) &&
           kg_math_choice(gold.text, gold.n) != 0;
}

/* Grades by the letter or formula that is extracted from the answer. */
static kg_status grade_found(struct kg_math_job *job, struct kg_err *err)
{
    struct kg_math_found gold = {0};
    struct kg_math_found answer = {0};
    enum kg_math_form form = job->opts->form;
    kg_status status;

    if (form == KG_MATH_FORM_CHOICE ||
        ((form == KG_MATH_FORM_AUTO || form == KG_MATH_FORM_RESPONSE) &&
         asks_choice(job)))
        return grade_choice(job, err);
    KG_TRY_GOTO(out, kg_math_extract(&gold, job->gold, KG_MATH_FORM_TEXT, err));
    if (!gold.any)
        KG_TRY_GOTO(out, kg_math_extract(&gold, job->gold, KG_MATH_FORM_ANSWER, err));
    KG_TRY_GOTO(out, kg_math_extract(&answer, job->answer, form, err));
    if (!answer.any) {
        kg_math_say(job, KG_MATH_WRONG, "no answer was found");
        goto out;
    }
    KG_TRY_GOTO(out, kg_str_append(&job->result->extracted, kg_str_text(&answer.text),
                                   answer.text.len, err));
    if (gold.text.len > KG_MATH_MAX_STRING || answer.text.len > KG_MATH_MAX_STRING)
        kg_math_say(job, KG_MATH_UNDECIDED, "the text is too long");
    else if (gold.text.len == 0)
        kg_math_say(job, KG_MATH_UNDECIDED, "the gold answer is empty");
    else
        status = compare_texts(job, &gold, &answer, err);
out:
    kg_str_release(&gold.text);
    kg_str_release(&answer.text);
    return status;
}

/* Right if the whole answer, or the text after its last "the answer is", has the words of
 * the gold answer, even if no formula was found or understood. */
static kg_status compare_words(struct kg_math_job *job, struct kg_err *err)
{
    struct kg_math_text words = kg_math_trimmed(kg_math_tail(job->answer));
    bool same;

    if (words.n > KG_MATH_MAX_STRING || job->gold.n > KG_MATH_MAX_STRING)
        return KG_OK;
    KG_TRY(same_words(&same, job->gold, words, err));
    if (!same && kg_math_behind_anchor(&words, words))
        KG_TRY(same_words(&same, job->gold, words, err));
    if (!same)
        return KG_OK;
    kg_str_clear(&job->result->extracted);
    KG_TRY(kg_str_append(&job->result->extracted, words.text, words.n, err));
    return kg_math_say(job, KG_MATH_RIGHT, SAME);
}

kg_status kg_math_grade_default(struct kg_math_job *job, struct kg_err *err)
{
    enum kg_math_form form = job->opts->form;

    if ((form == KG_MATH_FORM_RESPONSE || form == KG_MATH_FORM_AUTO ||
         form == KG_MATH_FORM_CHOICE) &&
        !job->opts->keep_thinking && !kg_math_after_thinking(&job->answer))
        return kg_math_say(job, KG_MATH_UNDECIDED, "the thinking does not end");
    job->answer = kg_math_before_end_token(job->answer);
    if (job->answer.n > 0 && memchr(job->answer.text, 0, job->answer.n))
        return kg_math_say(job, KG_MATH_WRONG, NUL);
    KG_TRY(grade_found(job, err));
    return job->result->verdict == KG_MATH_RIGHT ? KG_OK : compare_words(job, err);
}

/* ---- all modes ---- */

/* A NUL would end the text for the parser. */
static bool has_nul(const struct kg_str *s)
{
    return s->len > 0 && memchr(s->data, 0, s->len);
}

static kg_status grade_golds(struct kg_math_job *job, const struct kg_math_text *golds,
                             size_t n, struct kg_err *err)
{
    const struct kg_math_mode *mode = job->opts->mode ? job->opts->mode : kg_math_modes();
    enum kg_math_verdict worst = KG_MATH_WRONG;
    char reason[sizeof job->result->reason] = "there is no gold answer";

    for (size_t i = 0; i < n; i++) {
        kg_str_clear(&job->result->extracted);
        job->gold = golds[i];
        KG_TRY(mode->grade(job, err));
        if (has_nul(&job->result->extracted))
            kg_math_say(job, KG_MATH_WRONG, NUL);
        if (job->result->verdict == KG_MATH_RIGHT)
            return KG_OK;
        if (i > 0 && (job->result->verdict == KG_MATH_WRONG || worst != KG_MATH_WRONG))
            continue;
        worst = job->result->verdict;
        memcpy(reason, job->result->reason, sizeof reason);
    }
    return kg_math_say(job, worst, reason);
}

kg_status kg_math_grade(struct kg_math_result *r, const struct kg_math_opts *opts,
                        struct kg_math_text answer, const struct kg_math_text *golds,
                        size_t n_golds, struct kg_err *err)
{
    struct kg_math_job job = {.opts = opts, .answer = answer, .result = r};

    kg_str_clear(&r->extracted);
    KG_TRY(kg_mem_new(&job.tree, 1, sizeof *job.tree, "grading", err));
    kg_math_budget_start(&job.budget);
    kg_status status = grade_golds(&job, golds, n_golds, err);
    kg_mem_free(job.tree);
    return status;
}

/* ---- the table of modes ---- */

/* A mode defines how an answer is found and when it is right. The first is kedge's own;
 * the others, in guests/lab, reproduce published graders, so two modes may disagree. */
static const struct kg_math_mode modes[] = {
    {"default", "exact arithmetic on the value of the answer", NULL,
     kg_math_grade_default},
    {"ema-pg", "mathd, or else algebra after string normalisation",
     "EMA-PG math/rllm/rewards/math_reward.py", kg_math_grade_ema_pg},
    {"mathd", "equal strings after the normalisation of the MATH data set",
     "EMA-PG math/rllm grade_answer_mathd", kg_math_grade_mathd},
    {"dapo", "last `Answer:` line, equal strings after Minerva's normalisation",
     "verl/utils/reward_score/math_dapo.py", kg_math_grade_dapo},
    {NULL, NULL, NULL, NULL},
};

static const char *const forms[] = {"auto",     "answer", "text",
                                    "response", "choice", "bracket"};

const struct kg_math_mode *kg_math_modes(void) { return modes; }

kg_status kg_math_mode_find(const struct kg_math_mode **mode, const char *name,
                            struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "mode", name, modes,
                       sizeof modes / sizeof *modes - 1, sizeof *modes, err));
    *mode = &modes[i];
    if (modes[i].grade)
        return KG_OK;
    kg_guest_missing(name, "lab", err);
    return kg_err_prefix(err, "mode");
}

kg_status kg_math_form_find(enum kg_math_form *form, const char *name, struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EINVAL, "form", name, forms, sizeof forms / sizeof *forms,
                       sizeof *forms, err));
    *form = (enum kg_math_form)i;
    return KG_OK;
}
