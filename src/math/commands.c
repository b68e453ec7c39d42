/* The LaTeX commands and words that the parser knows. A row lists names that mean the
 * same. Its group tells how parsing continues (a function takes an argument, an accent a
 * name), and its number which member of the group it is. Symbols (Greek letters and the
 * like) are one list. Any other command is an error: if it counted as a name, it would be
 * multiplied with its neighbours, and an answer would be wrong instead of undecided. */
#include "math/math_internal.h"

#include <assert.h>
#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 256 }; /* names in one table */

struct names {
    const char *names; /* "one two" */
    uint8_t group, op; /* for each name, as in struct kg_math_command */
};

static const struct names commands[] = {
    {"pi", KG_MATH_G_CONST, KG_MATH_PI},
    {"infty infinity", KG_MATH_G_CONST, KG_MATH_INF},
    {"emptyset varnothing empty", KG_MATH_G_CONST, KG_MATH_EMPTY},
    {"R Reals", KG_MATH_G_CONST, KG_MATH_REALS},
    {"mathbb mathds", KG_MATH_G_BLACKBOARD, 0},
    {"sin", KG_MATH_G_FUNC, KG_MATH_SIN},
    {"cos", KG_MATH_G_FUNC, KG_MATH_COS},
    {"tan tg", KG_MATH_G_FUNC, KG_MATH_TAN},
    {"cot ctg", KG_MATH_G_FUNC, KG_MATH_COT},
    {"sec", KG_MATH_G_FUNC, KG_MATH_SEC},
    {"csc", KG_MATH_G_FUNC, KG_MATH_CSC},
    {"arcsin", KG_MATH_G_FUNC, KG_MATH_ASIN},
    {"arccos", KG_MATH_G_FUNC, KG_MATH_ACOS},
    {"arctan arctg", KG_MATH_G_FUNC, KG_MATH_ATAN},
    {"sinh", KG_MATH_G_FUNC, KG_MATH_SINH},
    {"cosh", KG_MATH_G_FUNC, KG_MATH_COSH},
    {"tanh", KG_MATH_G_FUNC, KG_MATH_TANH},
    {"ln", KG_MATH_G_FUNC, KG_MATH_LN},
    {"log", KG_MATH_G_FUNC, KG_MATH_LOG},
    {"lg", KG_MATH_G_FUNC, KG_MATH_LG},
    {"exp", KG_MATH_G_FUNC, KG_MATH_EXP},
    {"gcd", KG_MATH_G_FUNC, KG_MATH_GCD},
    {"lcm", KG_MATH_G_FUNC, KG_MATH_LCM},
    {"max", KG_MATH_G_FUNC, KG_MATH_MAX},
    {"min", KG_MATH_G_FUNC, KG_MATH_MIN},
    {"over", KG_MATH_G_INFIX, 0},
    {"choose", KG_MATH_G_INFIX, 1},
    {"bmod mod", KG_MATH_G_MOD, 0},
    {"pmod", KG_MATH_G_MOD, 1},
    {"frac sfrac nicefrac flatfrac dfrac tfrac cfrac", KG_MATH_G_FRAC, 0},
    {"binom dbinom tbinom", KG_MATH_G_BINOM, 0},
    {"sqrt", KG_MATH_G_SQRT, 0},
    {"cdot times ast bullet", KG_MATH_G_TIMES, 0},
    {"div slash", KG_MATH_G_OVER, 0},
    {"pm", KG_MATH_G_PM, 0},
    {"mp", KG_MATH_G_PM, 1},
    {"le leq leqslant", KG_MATH_G_REL, KG_MATH_LE},
    {"lt", KG_MATH_G_REL, KG_MATH_LT},
    {"ge geq geqslant", KG_MATH_G_REL, KG_MATH_GE},
    {"gt", KG_MATH_G_REL, KG_MATH_GT},
    {"ne neq", KG_MATH_G_REL, KG_MATH_NE},
    {"in", KG_MATH_G_REL, KG_MATH_IN},
    {"approx approxeq simeq", KG_MATH_G_REL, KG_MATH_APPROX},
    {"equiv", KG_MATH_G_REL, KG_MATH_EQUIV},
    {"cong", KG_MATH_G_REL, KG_MATH_OTHER + 1},
    {"sim", KG_MATH_G_REL, KG_MATH_OTHER + 2},
    {"propto", KG_MATH_G_REL, KG_MATH_OTHER + 3},
    {"to rightarrow longrightarrow", KG_MATH_G_REL, KG_MATH_TO},
    {"Rightarrow implies", KG_MATH_G_REL, KG_MATH_OTHER + 4},
    {"mapsto", KG_MATH_G_REL, KG_MATH_OTHER + 5},
    {"mid", KG_MATH_G_REL, KG_MATH_OTHER + 6},
    {"parallel", KG_MATH_G_REL, KG_MATH_OTHER + 7},
    {"perp", KG_MATH_G_REL, KG_MATH_OTHER + 8},
    {"subset", KG_MATH_G_REL, KG_MATH_OTHER + 9},
    {"subseteq", KG_MATH_G_REL, KG_MATH_OTHER + 10},
    {"notin", KG_MATH_G_REL, KG_MATH_OTHER + 11},
    {"supset", KG_MATH_G_REL, KG_MATH_OTHER + 12},
    {"supseteq", KG_MATH_G_REL, KG_MATH_OTHER + 13},
    {"ni", KG_MATH_G_REL, KG_MATH_OTHER + 14},
    {"ll", KG_MATH_G_REL, KG_MATH_OTHER + 15},
    {"gg", KG_MATH_G_REL, KG_MATH_OTHER + 16},
    {"leftrightarrow", KG_MATH_G_REL, KG_MATH_OTHER + 17},
    {"Leftrightarrow", KG_MATH_G_REL, KG_MATH_OTHER + 18},
    {"nmid", KG_MATH_G_REL, KG_MATH_OTHER + 19},
    {"nparallel", KG_MATH_G_REL, KG_MATH_OTHER + 20},
    {"models", KG_MATH_G_REL, KG_MATH_OTHER + 21},
    {"prec", KG_MATH_G_REL, KG_MATH_OTHER + 22},
    {"succ", KG_MATH_G_REL, KG_MATH_OTHER + 23},
    {"asymp", KG_MATH_G_REL, KG_MATH_OTHER + 24},
    {"cup bigcup", KG_MATH_G_SETOP, '|'},
    {"cap", KG_MATH_G_SETOP, '&'},
    {"setminus backslash", KG_MATH_G_SETOP, '\\'},
    {"text textbf textit textrm textnormal textsf texttt emph mbox textup textsl textsc "
     "textmd hbox",
     KG_MATH_G_TEXT, 0},
    {"mathrm mathbf mathit mathcal mathfrak mathsf mathscr boldsymbol bm mathtt "
     "mathnormal pmb bold underline boxed fbox",
     KG_MATH_G_STYLE, 0},
    {"rm bf it sf tt cal", KG_MATH_G_STYLE, 1},
    {"operatorname", KG_MATH_G_OPERATOR, 0},
    {"vec overrightarrow", KG_MATH_G_ACCENT, 2},
    {"hat widehat", KG_MATH_G_ACCENT, 0},
    {"bar overline", KG_MATH_G_ACCENT, 1},
    {"tilde widetilde", KG_MATH_G_ACCENT, 3},
    {"overleftrightarrow", KG_MATH_G_ACCENT, 6},
    {"angle measuredangle", KG_MATH_G_ANGLE, 0},
    {"dot", KG_MATH_G_ACCENT, 4},
    {"ddot", KG_MATH_G_ACCENT, 5},
    {"sum", KG_MATH_G_BIG, KG_MATH_SUM},
    {"prod", KG_MATH_G_BIG, KG_MATH_PROD},
    {"int", KG_MATH_G_BIG, KG_MATH_INT},
    {"oint", KG_MATH_G_BIG, 0},
    {"lim", KG_MATH_G_BIG, KG_MATH_LIM},
    {"lfloor", KG_MATH_G_OPEN, KG_MATH_FLOOR},
    {"lceil", KG_MATH_G_OPEN, KG_MATH_CEIL},
    {"lvert", KG_MATH_G_OPEN, KG_MATH_ABS},
    {"rfloor", KG_MATH_G_CLOSE, KG_MATH_FLOOR},
    {"rceil", KG_MATH_G_CLOSE, KG_MATH_CEIL},
    {"rvert", KG_MATH_G_CLOSE, KG_MATH_ABS},
    {"circ degree", KG_MATH_G_DEGREE, 0},
    {"prime", KG_MATH_G_PRIME, 0},
    {"land wedge", KG_MATH_G_AND, KG_MATH_ALL},
    {"lor vee", KG_MATH_G_AND, KG_MATH_ANY},
    {"ldots cdots dots dotsc", KG_MATH_G_DOTS, 0},
};

/* Words of answers written without LaTeX. */
static const struct names words[] = {
    {"pi", KG_MATH_G_CONST, KG_MATH_PI},
    {"inf infty oo infinity", KG_MATH_G_CONST, KG_MATH_INF},
    {"sqrt", KG_MATH_G_SQRT, 0},
    {"frac", KG_MATH_G_FRAC, 0},
    {"sin", KG_MATH_G_FUNC, KG_MATH_SIN},
    {"cos", KG_MATH_G_FUNC, KG_MATH_COS},
    {"tan", KG_MATH_G_FUNC, KG_MATH_TAN},
    {"cot", KG_MATH_G_FUNC, KG_MATH_COT},
    {"sec", KG_MATH_G_FUNC, KG_MATH_SEC},
    {"csc", KG_MATH_G_FUNC, KG_MATH_CSC},
    {"arcsin asin", KG_MATH_G_FUNC, KG_MATH_ASIN},
    {"arccos acos", KG_MATH_G_FUNC, KG_MATH_ACOS},
    {"arctan atan", KG_MATH_G_FUNC, KG_MATH_ATAN},
    {"sinh", KG_MATH_G_FUNC, KG_MATH_SINH},
    {"cosh", KG_MATH_G_FUNC, KG_MATH_COSH},
    {"tanh", KG_MATH_G_FUNC, KG_MATH_TANH},
    {"ln", KG_MATH_G_FUNC, KG_MATH_LN},
    {"log", KG_MATH_G_FUNC, KG_MATH_LOG},
    {"exp", KG_MATH_G_FUNC, KG_MATH_EXP},
    {"abs", KG_MATH_G_FUNC, KG_MATH_ABS},
    {"gcd", KG_MATH_G_FUNC, KG_MATH_GCD},
    {"lcm", KG_MATH_G_FUNC, KG_MATH_LCM},
    {"max", KG_MATH_G_FUNC, KG_MATH_MAX},
    {"min", KG_MATH_G_FUNC, KG_MATH_MIN},
    {"and AND", KG_MATH_G_AND, KG_MATH_ALL},
    {"or OR", KG_MATH_G_AND, KG_MATH_ANY},
    {"percent percentage", KG_MATH_G_PERCENT, 0},
    {"degree degrees deg", KG_MATH_G_DEGREE, 0},
    {"in", KG_MATH_G_REL, KG_MATH_IN},
    {"to", KG_MATH_G_TO, 0},
    {"dollars dollar cents cent units unit cm mm km kg meter meters metres centimeters "
     "miles mile mph feet foot inches inch yards hours hour minutes minute seconds "
     "second days day weeks months years year square cubic sq people students points "
     "ways yuan grams pounds ounces liters gallons USD am pm AM PM ft mL per men",
     KG_MATH_G_UNIT, 0},
    {"approximately approx about roughly around exactly", KG_MATH_G_ABOUT, 0},
    {"zero", KG_MATH_G_NUMBER, 0},
    {"one", KG_MATH_G_NUMBER, 1},
    {"two", KG_MATH_G_NUMBER, 2},
    {"three", KG_MATH_G_NUMBER, 3},
    {"four", KG_MATH_G_NUMBER, 4},
    {"five", KG_MATH_G_NUMBER, 5},
    {"six", KG_MATH_G_NUMBER, 6},
    {"seven", KG_MATH_G_NUMBER, 7},
    {"eight", KG_MATH_G_NUMBER, 8},
    {"nine", KG_MATH_G_NUMBER, 9},
    {"ten", KG_MATH_G_NUMBER, 10},
    {"eleven", KG_MATH_G_NUMBER, 11},
    {"twelve", KG_MATH_G_NUMBER, 12},
    {"thirteen", KG_MATH_G_NUMBER, 13},
    {"fourteen", KG_MATH_G_NUMBER, 14},
    {"fifteen", KG_MATH_G_NUMBER, 15},
    {"sixteen", KG_MATH_G_NUMBER, 16},
    {"seventeen", KG_MATH_G_NUMBER, 17},
    {"eighteen", KG_MATH_G_NUMBER, 18},
    {"nineteen", KG_MATH_G_NUMBER, 19},
    {"twenty", KG_MATH_G_NUMBER, 20},
    {"thirty", KG_MATH_G_NUMBER, 30},
    {"forty", KG_MATH_G_NUMBER, 40},
    {"fifty", KG_MATH_G_NUMBER, 50},
    {"sixty", KG_MATH_G_NUMBER, 60},
    {"seventy", KG_MATH_G_NUMBER, 70},
    {"eighty", KG_MATH_G_NUMBER, 80},
    {"ninety", KG_MATH_G_NUMBER, 90},
    {"hundred", KG_MATH_G_SCALE, 2},
    {"thousand", KG_MATH_G_SCALE, 3},
    {"million", KG_MATH_G_SCALE, 6},
    {"billion", KG_MATH_G_SCALE, 9},
    {"trillion", KG_MATH_G_SCALE, 12},
    {"half twice double triple minus negative point", KG_MATH_G_QUALIFIER, 1},
    {"halves thirds fourths fifths sixths eighths tenths hundredths squared cubed "
     "factorial plus divided multiplied over than not mod",
     KG_MATH_G_QUALIFIER, 0},
};

/* Words that have a meaning only next to a value; lower case here, any case in the text.
 * Alone, they are ordinary words. Those without effect on the value (UNIT) are listed
 * because unknown words are treated differently. */
static const struct names beside[] = {
    {"hundreds", KG_MATH_G_SCALE, 2},
    {"thousands", KG_MATH_G_SCALE, 3},
    {"lakh lakhs lac lacs", KG_MATH_G_SCALE, 5},
    {"millions mln mn", KG_MATH_G_SCALE, 6},
    {"crore crores", KG_MATH_G_SCALE, 7},
    {"billions bn milliard milliards", KG_MATH_G_SCALE, 9},
    {"trillions tn", KG_MATH_G_SCALE, 12},
    {"quadrillion quadrillions", KG_MATH_G_SCALE, 15},
    {"quintillion quintillions", KG_MATH_G_SCALE, 18},
    {"dozen dozens", KG_MATH_G_DOZEN, 12},
    {"score", KG_MATH_G_DOZEN, 20},
    {"gross", KG_MATH_G_DOZEN, 144},
    {"radian radians rad rads", KG_MATH_G_RADIAN, 0},
    {"of a an the each every", KG_MATH_G_LINK, 0},
    {"month months left remaining total altogether old tall long wide high deep away "
     "length lengths width depth path paths",
     KG_MATH_G_UNIT, 0},
    {"quarter quarters third thirds halves halved fold twofold threefold tenfold thrice "
     "doubled doubles tripled triples quadruple quadrupled base binary ternary octal "
     "hexadecimal hex inverse inverses inverted reciprocal opposite negated negation "
     "conjugate complement exponent exponents power powers raised root squares cubes log "
     "logarithm modulo modulus remainder less more fewer greater smaller larger bigger "
     "higher lower least most under above below exceeding beyond added subtracted "
     "increased decreased reduced wrong incorrect false untrue invalid impossible isnt "
     "isn arent aren wasnt wasn doesnt doesn dont didnt wont wouldnt cannot cant couldnt "
     "no nor never neither without except excluding excluded instead rather unless "
     "almost nearly maybe perhaps possibly probably unlikely unsure guess guessed "
     "unknown undefined nobody nothing permille permil promille permyriad ppm ppb bps "
     "percentile",
     KG_MATH_G_QUALIFIER, 0},
    {"half twice times", KG_MATH_G_QUALIFIER, 1},
};

/* The sorted names of a table, for binary search. */
static struct table {
    const struct names *rows;
    size_t n_rows, n;
    struct kg_math_command commands[MOST_NAMES]; /* (n) */
} known = {.rows = commands, .n_rows = sizeof commands / sizeof *commands},
  spelled = {.rows = words, .n_rows = sizeof words / sizeof *words},
  further = {.rows = beside, .n_rows = sizeof beside / sizeof *beside};

static int by_name(const void *a, const void *b)
{
    const struct kg_math_command *x = a, *y = b;
    int order = memcmp(x->name, y->name, x->n < y->n ? x->n : y->n);

    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static void list(struct table *t)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct names *r = &t->rows[i];

        for (const char *at = r->names; *at; at += strspn(at, " ")) {
            const size_t n = strcspn(at, " ");

            assert(t->n < MOST_NAMES);
            t->commands[t->n++] = (struct kg_math_command){at, n, r->group, r->op};
            at += n;
        }
    }
    qsort(t->commands, t->n, sizeof *t->commands, by_name);
}

static void list_all(void)
{
    list(&known);
    list(&spelled);
    list(&further);
}

static const struct kg_math_command *find(const struct table *t, const char *name,
                                          size_t n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const struct kg_math_command key = {name, n, 0, 0};

    pthread_once(&once, list_all);
    return bsearch(&key, t->commands, t->n, sizeof *t->commands, by_name);
}

const struct kg_math_command *kg_math_command_find(const char *name, size_t n)
{
    return find(&known, name, n);
}

/* Names of symbols. The operators among them are functions that are not evaluated. */
bool kg_math_is_symbol(const char *name, size_t n)
{
    static const char symbols[] =
        " alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa "
        "lambda mu nu xi omicron varpi rho varrho sigma varsigma tau upsilon phi varphi "
        "chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell "
        "hbar jmath partial nabla aleph Re Im wp odot oplus otimes star dagger top bot "
        "forall exists neg triangle square Box diamond mho Vert lVert rVert arg deg det "
        "dim hom inf ker limsup liminf sup Pr downarrow uparrow leftarrow checkmark AA ";

    return kg_str_listed(symbols, name, n);
}

const struct kg_math_command *kg_math_word_find(const char *name, size_t n)
{
    return find(&spelled, name, n);
}

/* Whether the word is a fraction: fifteenths, hundredth. */
static bool is_ordinal(const char *name, size_t n)
{
    n -= n > 1 && name[n - 1] == 's';
    return n > 3 && name[n - 2] == 't' && name[n - 1] == 'h';
}

const struct kg_math_command *kg_math_beside_find(const char *name, size_t n)
{
    static const struct kg_math_command fraction = {"-th", 3, KG_MATH_G_QUALIFIER, 0};
    const struct kg_math_command *row = kg_math_word_find(name, n);
    char small[24];

    if (row || n >= sizeof small)
        return row;
    for (size_t i = 0; i < n; i++)
        small[i] = (char)tolower((unsigned char)name[i]);
    row = kg_math_word_find(small, n);
    if (!row)
        row = find(&further, small, n);
    return row || !is_ordinal(small, n) ? row : &fraction;
}
