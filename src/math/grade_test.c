/* Grading: notations, kinds of answers, extraction, limits, and cases collected from
 * other projects. */
#include "math/grade_testing.h"

static void expect(enum kg_math_verdict want, const char *gold, const char *answer)
{
    struct kg_math_opts opts = {0};
    char reason[128];
    enum kg_math_verdict v = grade(&opts, gold, answer, reason);

    if (v != want)
        fail_msg("gold '%s', answer '%s': expected %s, found %s: %s", gold, answer,
                 kg_math_verdict_name(want), kg_math_verdict_name(v), reason);
}

static void right(const char *gold, const char *answer)
{
    expect(KG_MATH_RIGHT, gold, answer);
}

static void wrong(const char *gold, const char *answer)
{
    expect(KG_MATH_WRONG, gold, answer);
}

static void undecided(const char *gold, const char *answer)
{
    expect(KG_MATH_UNDECIDED, gold, answer);
}

static void not_right(const char *gold, const char *answer)
{
    struct kg_math_opts opts = {0};
    char reason[128];

    if (grade(&opts, gold, answer, reason) == KG_MATH_RIGHT)
        fail_msg("gold '%s', answer '%s': found right: %s", gold, answer, reason);
}

/* ---- notations of numbers ---- */

static void numbers_are_read_in_every_notation(void **state)
{
    (void)state;
    right("1/2", "0.5");
    right("\\frac{1}{2}", "\\dfrac12");
    right("\\frac{1}{2}", "50\\%");
    right("918\\frac{1}{2}", "918.5");
    right("3/2", "1 1/2");
    right("-\\frac{3}{2}", "-1\\frac{1}{2}");
    right("1000", "1,000");
    right("11111111100", "11,\\! 111,\\! 111,\\! 100");
    right("10000", "10{,}000");
    right("1234567", "1 234 567");
    right("4.5e33", "4.5 \\times 10^{33}");
    right("0.0015", "1.5 \\cdot 10^{-3}");
    right("\\frac13", "0.\\overline{3}");
    right("\\frac{1}{6}", "0.1\\overline{6}");
    right("90", "90^\\circ");
    right("90^{\\circ}", "90 degrees");
    right("\\frac{\\pi}{4}", "45^\\circ");
    wrong("\\frac{\\pi}{4}", "90^\\circ");
    right("\\$28.00", "28");
    right("15", "15\\mbox{ cm}^2");
    right("5 \\mathrm{~m} / \\mathrm{s}", "5");
    right("10^{\\circ} \\mathrm{C}", "10");
    right("\\approx 3.14", "3.14");
    right("2 \\text{ pieces}", "2");
    right("28\\%", "28 percent");
    right("025", "25");
    right(".4", "0.4");
    right("\\frac13", "0.333...");
    right("\\frac16", "0.1666\\ldots");
    right("\\frac17", "0.142857142857\xe2\x80\xa6");
    right("5", "5...");
    right("\\frac13", "0.(3)");
    right("\\frac{4}{33}", "The sum is 0.(12).");
    wrong("\\frac13", "0.(4)");
    wrong("\\frac13", "(0.3)(3)");
    right("10", "2.5(4)");
    wrong("\\frac13", "0.33...");
    wrong("\\sqrt2", "1.414...");
    wrong("10", "11");
    wrong("32349", "32, 349");
    wrong("0.5", "0.51");
    wrong("2677_9", "2678_9");
}

static void numbers_are_read_in_print(void **state)
{
    (void)state;
    right("12", "\xef\xbc\x91\xef\xbc\x92 = 12");
    right("6.02e23", "6.02\xc3\x97"
                     "10\xc2\xb2\xc2\xb3");
    right("6.02e23", "6.02 x 10^23");
    right("\\frac{7}{2}", "3\xc2\xbd");
    right("\\frac{1}{3}", "\xe2\x85\x93");
    right("1/2", "{1 \\over 2}");
    right("\\binom{5}{2}", "{5 \\choose 2}");
    right("\\frac{841}{144}", "5 121/144");
    right("\\frac{1}{12,\\!345}", "(1)/(12,\\!345)");
    right("90^\\circ", "90^o");
    right("\\frac e2", "\\frac{e}{2}");
    right("\\log_e 2", "\\ln 2");
    undecided("5", "1 5");
    right("16", "8(2)");
}

static void words_beside_a_number_are_units_or_count(void **state)
{
    (void)state;
    right("5", "5 apples");
    right("5", "\\boxed{5 meters per second}");
    right("5", "\\$5 per hour");
    right("5", "5 USD");
    right("2 \\text{ million}", "2,000,000");
    right("0.75", "75 \\text{ percent of them}");
    right("3.14", "approximately 3.14");
    right("3.14", "about 3.14");
    right("-3", "roughly -3");
    right("5", "about 5 apples");
    right("42", "42 in total");
    right("42", "Answer: 42 in all.");
    right("5", "Answer: 5 (five)");
    right("5", "5 (apples)");
    wrong("3.14", "approximately 3.15");
    wrong("42", "43 in total");
    wrong("5", "5 (six)");
    wrong("5", "5 (xyz)");
    wrong("5", "5 (million)");
    undecided("5", "5 (squared)");
    right("5x+5", "5 (x+1)");
    wrong("2", "2 \\text{ million}");
    wrong("60", "6abcd");
    undecided("2", "\\text{not } 2");
    undecided("2", "2 \\text{ squared}");
    undecided("2", "\\boxed{2 more than x}");
}

static void no_word_that_changes_a_value_is_dropped(void **state)
{
    static const char *const rows[][2] = {
        {"5", "5 dozen"},       {"2", "2 millions"},  {"5", "5 billions"},
        {"5", "5 thousands"},   {"2", "2 hundreds"},  {"12", "12 lakh"},
        {"1", "1 quarter"},     {"1", "1 third"},     {"5", "5 thousandths"},
        {"3", "3 fifteenths"},  {"4", "4 elevenths"}, {"12", "12 hundreths"},
        {"3", "3 halves"},      {"3", "3 Quarters"},  {"101", "101 base two"},
        {"5", "5 permille"},    {"2", "2 inverse"},   {"2", "2 exponent three"},
        {"180", "180 radians"}, {"3", "3 wrong"},     {"3", "3 isnt"},
        {"3", "3 cannot be"},   {"3", "3 minus one"}, {"3", "3 times two"},
        {"3", "3 less than"},   {"3", "3 more"},      {"5", "5 apples x"},
        {"5", "5 (dozen)"},
    };
    char text[64];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        not_right(rows[i][0], rows[i][1]);
        snprintf(text, sizeof text, "\\boxed{%s}", rows[i][1]);
        not_right(rows[i][0], text);
    }
    undecided("3", "3 \\text{ fifteenths}");
    undecided("5", "\\boxed{5 fiddles faddles}");
    undecided("5", "\\boxed{5 apples wrong}");
    right("60", "5 dozen");
    right("2000000", "2 millions");
    right("1200000", "12 \\text{ lakh}");
    right("500000", "5 hundred thousand");
    right("\\frac{\\pi}{4}", "\\frac{\\pi}{4} \\text{ radians}");
    right("5", "\\boxed{5 liters of water}");
    right("5", "\\boxed{5 apples per day}");
    right("5", "5 dollars a day");
    right("5", "5 months");
}

static void quotients_of_units_are_units(void **state)
{
    (void)state;
    right("5", "5 m/s");
    right("5", "5\\,\\mathrm{m/s}");
    right("9.8", "9.8 m/s^2");
    right("9.8", "9.8\\,\\mathrm{m/s^2}");
    right("9.8", "9.8\\,\\mathrm{m}/\\mathrm{s}^{2}");
    right("40", "40 km/h");
    right("\\frac52", "\\frac{5}{2} g/mol");
    right("3", "3 cm^2");
    right("5m/s", "5 m/s");
    wrong("5", "6 m/s");
    wrong("5", "5m");
    wrong("5", "5 m");
    wrong("5", "5m/s");
    wrong("5", "5 m/n");
    wrong("5", "5 s/m");
    wrong("x", "x m/s");
    wrong("1", "x/s");
}

static void decimals_count_to_the_sixth(void **state)
{
    (void)state;
    right("\\frac{1}{3}", "0.333333");
    wrong("\\frac{1}{3}", "0.33333");
    right("\\sqrt{17}", "4.123106");
    /* small numbers have a tolerance relative to their own size */
    wrong("2.88 \\times 10^{-19}", "5.0 \\times 10^{-10}");
    right("2.88 \\times 10^{-19}", "2.88e-19");
    wrong("0", "0.0000001");
    wrong("\\frac{1}{2004!}", "1.0e-10");
    wrong("1.3", "(1,3)");
    wrong("(-1,1)", "-1,0,1");
    right("1.3", "1,3");
}

static void expressions_are_decided_exactly(void **state)
{
    (void)state;
    right("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt3}");
    right("2\\sqrt{2}", "\\sqrt8");
    right("\\sqrt{5+2\\sqrt6}", "\\sqrt2+\\sqrt3");
    right("\\frac{1+\\sqrt5}{2}", "2\\cos 36^\\circ");
    right("-1", "e^{i\\pi}");
    right("3", "\\log_2(8)");
    right("(\\ln 2)^2", "\\ln{\\left(2\\right)}^{2}");
    right("\\ln 6", "\\ln 2 + \\ln 3");
    right("10", "\\binom{5}{2}");
    right("120", "5!");
    right("-2", "\\sqrt[3]{-8}");
    wrong("\\frac{1+\\sqrt5}{2}", "\\frac{1-\\sqrt5}{2}");
    wrong("\\pi", "\\frac{355}{113}");
    wrong("\\sqrt{2}+\\sqrt{3}", "\\pi");
    wrong("10^{10^{10^{10}}}", "10^{10}");
    right("2", "17 \\bmod 5");
    right("2", "17 \\mod 5");
    right("2", "2^{10} \\bmod 7");
    right("3", "-7 \\bmod 5");
    wrong("17", "17 \\bmod 5");
    /* it is not known which terms the operator covers; in a congruence it is no
     * operator */
    undecided("20", "17+3 \\bmod 5");
    undecided("5", "17 \\bmod 5 + 3");
    wrong("2", "x \\equiv 2 \\mod 5");
    wrong("2", "x = 7 \\mod 5");
}

static void functions_are_decided_exactly(void **state)
{
    (void)state;
    right("x^2+2x+1", "(x+1)^2");
    right("\\frac{x+2}{7}", "\\frac{x}{7}+\\frac{2}{7}");
    right("\\tan^2(y)+1", "\\sec^2(y)");
    right("2 \\sin b \\cos a", "2\\cos(a)\\sin(b)");
    right("\\frac{n!}{k!(n-k)!}", "\\frac{(n-1)!}{k!}\\frac{n}{(n-k)!}");
    right("2^{n+1}", "2 \\cdot 2^n");
    right("e^{-t/2}", "\\frac{1}{\\sqrt{e^t}}");
    right("y = x^2+2x+1", "2x + 1 + x^2");
    right("11z^{17}(5+11z^{17})", "11z^17(11z^17+5)");
    wrong("x^2+2x+1", "x^3+2x+1");
    wrong("x+1", "x+2");
    wrong("2N", "2n");
    wrong("0.64N", "0.64");
}

/* Expressions that agree at a few points by chance, or because a factor is zero there. */
static void chance_is_no_proof(void **state)
{
    (void)state;
    wrong("I(0)e^{-t/2}", "I(0)e^{t/2}");
    wrong("\\binom{n}{m-1}", "\\binom{n}{m-11}");
    wrong("(-1)^{\\lceil n/2 \\rceil}", "(-1)^{\\lceil q/2 \\rceil}");
    wrong("\\max(a,b)", "b");
    wrong("f(x) = 2x", "f(q) = 2x");
    right("(-1)^n", "(-1)^{n+2}");
    right("\\binom{n}{2}", "\\frac{n^2-n}{2}");
    right("x - x", "0");
    undecided("0.5", "\\cos(10^{1000})");
    undecided("0.5", "3^{126000}-3^{126000}+1");
}

/* ---- other kinds ---- */

static void lists_and_sets_have_no_order(void **state)
{
    (void)state;
    right("1, -2", "-2, 1");
    right("6 \\text{ and } 8", "6,8");
    right("\\{1,2,3\\}", "\\{3,1,2\\}");
    right("\\sqrt[3]{5}, -\\sqrt[3]{5}", "\\pm\\sqrt[3]{5}");
    right("x=1, y=2", "\\begin{cases} x=1 \\\\ y=2 \\end{cases}");
    right("x = -5,\\ p = \\frac{14}{3}", "-5, \\frac{14}{3}");
    right("(2,1),(3,1)", "(3,1),(2,1)");
    right("p=5,q=2;p=7,q=2", "(5,2),(7,2)");
    right("\\emptyset", "\\{\\}");
    wrong("1,2", "1,2,3");
    wrong("1,2,3", "1,2");
    wrong("\\pm 2021", "2021");
}

static void tuples_and_intervals_have_order_and_ends(void **state)
{
    (void)state;
    right("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)");
    right("(p,q,r)=(3,2,7)", "(3,2,7)");
    right("(-\\infty, 2] \\cup [3, \\infty)", "[3,\\infty)\\cup(-\\infty,2]");
    right("-793 < a < 10", "(-793, 10)");
    right("[-2,7]", "x \\in [-2,7]");
    wrong("(1,2)", "(2,1)");
    wrong("[0,1)", "(0,1)");
    wrong("(1,2)", "(1,2,3)");
    wrong("(-\\infty, 2]", "(-\\infty, 2)");
    right("\\{1,2,3\\}", "\\{1\\}\\cup\\{2,3\\}");
    right("(-\\infty,3)\\cup(3,\\infty)", "\\mathbb{R}\\setminus\\{3\\}");
    right("(-\\infty,1)\\cup(1,2)\\cup(2,\\infty)", "\\R \\setminus \\{2, 1\\}");
    right("x \\ne 3", "(-\\infty,3)\\cup(3,\\infty)");
    right("(-\\infty,-1)\\cup(2,\\infty)", "(2,\\infty)\\cup(-\\infty,-1)");
    right("\\mathbb{R}", "(-\\infty,\\infty)");
    right("[2,5)", "[2,5[");
    right("(-\\infty,1)\\cup(2,3)", "]-\\infty,1[ \\cup ]2,3[");
    wrong("[-2,2]", "-2, 2");
    wrong("\\mathbb{R}", "(0,\\infty)");
    wrong("\\emptyset", "\\{\\emptyset\\}");
}

static void sets_of_reals_are_compared_point_by_point(void **state)
{
    static const char outside[] = "(-\\infty,-1)\\cup(2,\\infty)";

    (void)state;
    right(outside, "\\mathbb{R}\\setminus[-1,2]");
    right(outside, "(-\\infty,-1)\\cup(2,5]\\cup(4,\\infty)");
    right(outside, "x\\in(-\\infty,-1) \\text{ or } x\\in(2,\\infty)");
    wrong(outside, "\\mathbb{R}\\setminus(-1,2)");
    wrong(outside, "(-\\infty,-1)\\cap(2,\\infty)");
    wrong(outside, "x^2+1=0");
    right("(0,2]", "(0,3)\\cap(-1,2]");
    wrong("(0,2]", "(0,1)\\cup(1,2]");
    right("[-1,0)\\cup(0,1]", "[-1,1]\\setminus\\{0\\}");
    right("\\emptyset", "(0,1)\\cap[1,2]");
    right("[0,\\sqrt2]", "[0,1]\\cup(1,\\frac{2}{\\sqrt2}]");
    right("[0.333333,1)\\cup(2,3)", "[1/3,1)\\cup(2,3)");
    right("(a,b)\\cup(c,d)", "(c,d)\\cup(a,b)");
    wrong("(a,b)\\cup(c,d)", "(a,b)\\cup(c,e)");
    right("\\emptyset", "\\text{no solution}");
    right("\\mathbb{R}", "The answer is all real numbers.");
    wrong("\\mathbb{R}", "\\mathbb{Z}");
}

static void a_relation_answers_a_set_unless_that_is_refused(void **state)
{
    struct kg_math_opts opts = {.strict_sets = true};
    char reason[128];

    (void)state;
    right("x \\in [-2,7]", "$-2 \\le x \\le 7$");
    assert_int_equal(grade(&opts, "x \\in [-2,7]", "$-2 \\le x \\le 7$", reason),
                     KG_MATH_WRONG);
}

static void relations_are_compared_as_relations(void **state)
{
    (void)state;
    right("2x+4y-3=0", "y=-\\frac{1}{2}x+\\frac{3}{4}");
    right("x^2+y^2=1", "x^2 = 1 - y^2");
    right("x \\le 5", "5 \\ge x");
    right("x < 1", "-x > -1");
    right("x \\ne 3", "x != 3");
    right("W(n) = 1", "W(x) = 1");
    right("f(x) = 2x", "f(y) = 2y");
    right("f^{-1}(x) = \\frac{x}{2}", "\\frac{x}{2}");
    right("x > \\sqrt 2", "\\sqrt{2} < x");
    right("\\sqrt{2}x - y = 0", "y = \\sqrt2 x");
    /* the factorials can be computed at two points only, which are enough */
    right("0=y-(((x!)!)!)!", "2y=2(((x!)!)!)!");
    wrong("x^2+y^2=1", "x^2+y^2=2");
    wrong("x > 5", "x < 5");
    wrong("x \\ge 5", "x > 5");
    right("5", "m + n = 2 + 3 = 5");
    right("5", "|x - y| = 5");
    right("5", "5 = x");
    right("(x-1)(x+1)", "x^2-1 = (x-1)(x+1)");
    wrong("5", "2x + y = 5");
    wrong("5", "x + 5 = 5");
    wrong("x = 1", "y = 1");
    wrong("a+3z=0", "0");
}

static void matrices_are_compared_by_cells(void **state)
{
    (void)state;
    right("\\begin{pmatrix}0&1\\\\1&0\\end{pmatrix}",
          "\\begin{bmatrix} 0 & 1 \\\\ 1 & 0 \\end{bmatrix}");
    right("\\begin{pmatrix}6&8\\\\10&12\\end{pmatrix}",
          "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}+\\begin{pmatrix}5&6\\\\7&8\\end{"
          "pmatrix}");
    right("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "(1,2)");
    right("\\begin{pmatrix}1&2\\end{pmatrix}", "(1,2)");
    right("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "[[1,2],[3,4]]");
    wrong("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "(1,2,3,4)");
    wrong("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
          "\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}");
}

static void words_are_compared_as_words(void **state)
{
    (void)state;
    right("\\text{Even}", "even");
    right("\\text{Saturday}", "Saturday");
    right("\\text{(C)}", "C");
    wrong("\\text{odd}", "\\text{even}");
    wrong("\\text{oddd}", "odd");
    wrong("\\text{E}", "D");
    wrong("listen", "silent");
    right("xy", "yx");
    right("ellipse", "\\text{an ellipse}");
}

static void ratios_are_compared_as_ratios(void **state)
{
    (void)state;
    right("V_{1}:V_{2}=11:21", "11:21");
    right("1:2", "2:4");
    right("1:2:3", "2:4:6");
    right("3:4", "3 to 4");
    right("\\frac12", "1:2");
    wrong("05:00", "5");
    wrong("3:5:7", "3");
    wrong("1:2:3", "1:3:2");
    wrong("1:2:3", "1:2");
    wrong("12:00", "1:00");
    wrong("4:30", "5:30");
    wrong("2:30", "1:15");
    wrong("3:45", "1:15");
    wrong("7 pm", "7 am");
    wrong("5:30 pm", "5:30 am");
    wrong("2:30 pm", "\\boxed{1:15 \\text{ am}}");
    wrong("7 \\text{ p.m.}", "7 \\text{ A.M.}");
    right("7 pm", "7");
    right("7 pm", "7 PM");
    right("5:30 pm", "5:30");
    right("10:20", "1:2");
}

/* ---- extraction of the answer ---- */

static void the_answer_is_found_in_text(void **state)
{
    (void)state;
    right("9", "We try $\\boxed{8}$ first. So $x = \\boxed{9}$.");
    right("10455", "so \\boxed{255} first. Final Answer: The final answer is $10,455$. I "
                   "hope it is correct.");
    right("3", "Hence $\\boxed{x = 3}$");
    right("\\frac{1}{2}", "Answer: \\frac12");
    right("42", "Step 1: 6 x 7\nFinal answer: 42");
    right("34", "Final Answer: The largest $n$ is 34.");
    right("105", "The sum is 35 + 70 = 105.");
    right("2,3", "either \\boxed{2} or \\boxed{3}");
    right("12", "The final answer is **12**.");
    right("1,2,3", "The solutions are $x=1$, $x=2$, and $x=3$.");
    right("3", "When $n=2$, $x=3$.");
    right("5", "3 + 2 = 5\n#### 5");
    right("5", "A: 5");
    right("5", "We get 5");
    right("5", "The answer is $\\$5$.");
    wrong("5", "The answer is 5 or 6.");
    right("(3,4)", "P(3,4)");
    right("B", "**B**");
    right("(1,2)", "So we have\n$\\left(1,\n2\\right)$");
    right("5", "It costs $5\nand not $6, so 5.");
    right("7/4", "The total is \\frac{7}{4} apples.");
    right("-7/4", "So it must be -\\frac{7}{4}.");
    right("2\\sqrt3", "We see that x = 2\\sqrt{3}");
    right("2\\pi r^2", "It has an area of 2\\pi r^2.");
    right("1/2,1/3", "The solutions here are \\frac12 and \\frac{1}{3}.");
    right("1/2", "The answer is \\frac{1}{2} because the coin is fair.");
    wrong("4", "We take \\frac{7}{4} and then we look at the other side");
    right("6", "\\boxed{6} (not \\boxed{5})");
    right("6", "The answer is not 5 but 6");
    right("6", "The value is 6, not 5.");
    right("5", "Whether it is even or not, 5.");
    wrong("5", "\\boxed{6}, not \\boxed{5}");
    wrong("5", "We know that it is not 5.");
    wrong("1,2", "\\boxed{1} is one try, but we prefer \\boxed{2}");
    wrong("5", "I do not know.");
    undecided("3", "The answer is 3 minus one.");
    undecided("3", "So we get $3$ minus one.");
    undecided("3", "So it is 3 less than that.");
    undecided("3", "So we would get negative 3.");
    right("2000000", "There are 2 million of them in the city.");
    wrong("5", "");
}

static void thinking_is_not_read(void **state)
{
    struct kg_math_opts opts = {.form = KG_MATH_FORM_RESPONSE};
    char reason[128];
    const char *text = "<think>\\boxed{42}</think> So: \\boxed{43}";

    (void)state;
    assert_int_equal(grade(&opts, "42", text, reason), KG_MATH_WRONG);
    assert_int_equal(grade(&opts, "43", text, reason), KG_MATH_RIGHT);
    assert_int_equal(grade(&opts, "42", "<think>\\boxed{42}</think> Done.", reason),
                     KG_MATH_WRONG);
    assert_int_equal(grade(&opts, "\\frac{1}{2}", "\\frac{1}{2}", reason), KG_MATH_RIGHT);
    assert_int_equal(grade(&opts, "2", "1\n2", reason), KG_MATH_RIGHT);
    opts.keep_thinking = true;
    assert_int_equal(grade(&opts, "42", "<think>\\boxed{42}</think> Done.", reason),
                     KG_MATH_RIGHT);
}

static void a_choice_is_a_letter(void **state)
{
    struct kg_math_opts opts = {.form = KG_MATH_FORM_CHOICE};
    char reason[128];

    (void)state;
    assert_int_equal(grade(&opts, "D", "D. it can't be A or B", reason), KG_MATH_RIGHT);
    assert_int_equal(grade(&opts, "B", "It's not A, therefore I think it's B", reason),
                     KG_MATH_RIGHT);
    assert_int_equal(grade(&opts, "(A) Cecile", "C", reason), KG_MATH_WRONG);
    right("\\textbf{(B)}\\ 12", "B");
    right("A", "\\boxed{(A) 5}");
    right("A", "\\boxed{A) 5}");
    right("A", "A. 5");
    not_right("A", "\\boxed{A) 5 or B) 6}");
    not_right("A", "A) 5 or B) 6");
    not_right("C", "\\boxed{(C) or (D)}");
    not_right("C", "\\boxed{(C) or D}");
    not_right("C", "(C) or (D)");
    right("B", "\\boxed{B. photosynthesis}");
    not_right("A. 5", "\\boxed{A. 7}");
    wrong("\\textbf{(B)}\\ 12", "\\boxed{\\text{C}}");
}

static void alternatives_count_each(void **state)
{
    struct kg_math_opts opts = {0};
    struct kg_math_result r = {0};
    struct kg_math_text golds[] = {{"\\frac{t}{m}", 11}, {"7", 1}};

    (void)state;
    ok(kg_math_grade(&r, &opts, (struct kg_math_text){"7.0", 3}, golds, 2, &err));
    assert_int_equal(r.verdict, KG_MATH_RIGHT);
    ok(kg_math_grade(&r, &opts, (struct kg_math_text){"8", 1}, golds, 2, &err));
    assert_int_equal(r.verdict, KG_MATH_WRONG);
    kg_math_result_release(&r);
}

static void precision_widens(void **state)
{
    struct kg_math_opts opts = {.decimals = 2};
    char reason[128];

    (void)state;
    assert_int_equal(grade(&opts, "\\frac13", "0.33", reason), KG_MATH_RIGHT);
    opts = (struct kg_math_opts){.tolerance = {1e34, 0.001}, .n_tolerance = 2};
    assert_int_equal(
        grade(&opts, "7 \\times 10^{35}, 0.002", "0.001, 7.1\\cdot10^{35}", reason),
        KG_MATH_RIGHT);
    opts.tolerance[0] = 1e33;
    assert_int_equal(
        grade(&opts, "7 \\times 10^{35}, 0.002", "0.001, 7.1\\cdot10^{35}", reason),
        KG_MATH_WRONG);
}

/* ---- limits ---- */

/* All alternatives share one work limit; each is slow because of a long chain of
 * factorials. */
static void many_alternatives_end_in_time(void)
{
    enum { N = 64 };
    struct kg_math_opts opts = {0};
    struct kg_math_result r = {0};
    struct kg_math_text golds[N];
    char gold[N][700];
    char answer[1300];
    double start = kg_clock_thread_seconds();

    repeat(answer, sizeof answer, "!", 600);
    for (size_t i = 0; i < N; i++) {
        golds[i].n = (size_t)snprintf(gold[i], sizeof gold[i], "y=3%s+%zu", answer, i);
        golds[i].text = gold[i];
    }
    memmove(answer + 6, answer, 601);
    memcpy(answer, "2y=2*3", 6);
    ok(kg_math_grade(&r, &opts, (struct kg_math_text){answer, strlen(answer)}, golds, N,
                     &err));
    assert_int_equal(r.verdict, KG_MATH_UNDECIDED);
    if (!strstr(r.reason, "work limit"))
        fail_msg("expected that the work limit is named, found '%s'", r.reason);
    kg_math_result_release(&r);
    assert_true(kg_clock_thread_seconds() - start < 1.5);
}

/* A choice is searched for at the start of every line. */
static void many_lines_end_in_time(void)
{
    struct kg_math_opts opts = {.form = KG_MATH_FORM_CHOICE};
    static char text[1 << 17];
    char reason[128];
    double start = kg_clock_thread_seconds();

    repeat(text, sizeof text, "\n", sizeof text - 1);
    text[0] = '-';
    text[sizeof text - 4] = '-';
    assert_int_equal(grade(&opts, "B", text, reason), KG_MATH_WRONG);
    assert_true(kg_clock_thread_seconds() - start < 1.5);
}

static void hostile_answers_end_in_time_and_memory(void **state)
{
    static const char *const hostile[] = {
        "9^{9^{9^{9^{9^{9}}}}}",
        "10^{999999999}",
        "2^{100000000} - 2^{99999999}",
        "99999999!",
        "((1+\\sqrt2)^{300}+(1+\\sqrt3)^{300})^{300}",
        "\\sin(10^{10^{10}})",
        "\\sqrt{1+\\sqrt{2+\\sqrt{3+\\sqrt{5+\\sqrt{7+\\sqrt{11+\\sqrt{13}}}}}}}",
        "1e999999999",
        "x^{x^{x^{x^{x^{x^{x}}}}}}",
        "\\binom{1000000000}{500000000}",
        "e^{e^{e^{e^{e^{e}}}}}",
        "\\sqrt[59]{2}+\\sqrt[53]{3}+\\sqrt[47]{5}+\\sqrt[43]{7}",
    };
    static char deep[20000];
    static const char *const pieces[] = {"(", "{", "\\sqrt{",  "-",  "2^", "\\frac{",
                                         "|", "[", "\\boxed{", "1,", "x_", "$"};

    (void)state;
    kg_mem_reset_peak();
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        for (size_t k = 0; k < 2; k++) {
            struct kg_math_opts opts = {0};
            char reason[128];
            double start = kg_clock_thread_seconds();
            const char *gold = k ? "\\sqrt{2}+\\sqrt{3}" : hostile[i];
            char spaced[256];

            snprintf(spaced, sizeof spaced, "(%s)+0", hostile[i]);
            grade(&opts, gold, spaced, reason);
            assert_true(kg_clock_thread_seconds() - start < 1.5);
        }
    }
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct kg_math_opts opts = {0};
        char reason[128];

        repeat(deep, sizeof deep, pieces[i], 4000);
        assert_int_not_equal(grade(&opts, "5", deep, reason), KG_MATH_RIGHT);
    }
    assert_true(kg_mem_peak_bytes() < (uint64_t)64 << 20);
    long_texts_end_in_time("default");
    many_alternatives_end_in_time();
    many_lines_end_in_time();
    assert_int_equal(kg_mem_current_bytes(), 0);
}

static void failed_allocations_are_reported(void **state)
{
    struct kg_math_opts opts = {0};
    struct kg_math_text gold = {"\\sqrt{2}+\\sqrt{3}", 17};
    struct kg_math_text answer = {"$\\sqrt{5+2\\sqrt{6}}$", 20};
    bool done = false;

    (void)state;
    for (uint64_t n = 1; !done && n < 100000; n += 1 + n / 50) {
        struct kg_math_result r = {0};
        kg_status status;

        kg_mem_fail_at(n);
        status = kg_math_grade(&r, &opts, answer, &gold, 1, &err);
        kg_mem_fail_at(0);
        done = status == KG_OK;
        if (done)
            assert_int_equal(r.verdict, KG_MATH_RIGHT);
        else
            assert_int_equal(status, KG_ENOMEM);
        kg_math_result_release(&r);
        assert_int_equal(kg_mem_current_bytes(), 0);
    }
    assert_true(done);
}

/* ---- collected cases ---- */

static void the_small_collection_agrees(void **state)
{
    static const char path[] = "tests/data/grader/cases.jsonl";

    (void)state;
    agrees(path, "default", NULL, 96);
}

static void the_large_collection_agrees(void **state)
{
    static const char cases[] = "../shared/data/grader_cases.jsonl";
    static const char solutions[] = "../shared/data/gsm8k_model_solutions.jsonl";

    (void)state;
    if (absent(cases) || absent(solutions))
        skip();
    agrees(cases, "default", NULL, 95);
    agrees(solutions, "default", NULL, 99);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_in_every_notation),
        cmocka_unit_test(numbers_are_read_in_print),
        cmocka_unit_test(words_beside_a_number_are_units_or_count),
        cmocka_unit_test(no_word_that_changes_a_value_is_dropped),
        cmocka_unit_test(quotients_of_units_are_units),
        cmocka_unit_test(decimals_count_to_the_sixth),
        cmocka_unit_test(chance_is_no_proof),
        cmocka_unit_test(expressions_are_decided_exactly),
        cmocka_unit_test(functions_are_decided_exactly),
        cmocka_unit_test(lists_and_sets_have_no_order),
        cmocka_unit_test(tuples_and_intervals_have_order_and_ends),
        cmocka_unit_test(sets_of_reals_are_compared_point_by_point),
        cmocka_unit_test(a_relation_answers_a_set_unless_that_is_refused),
        cmocka_unit_test(relations_are_compared_as_relations),
        cmocka_unit_test(matrices_are_compared_by_cells),
        cmocka_unit_test(words_are_compared_as_words),
        cmocka_unit_test(ratios_are_compared_as_ratios),
        cmocka_unit_test(the_answer_is_found_in_text),
        cmocka_unit_test(thinking_is_not_read),
        cmocka_unit_test(a_choice_is_a_letter),
        cmocka_unit_test(alternatives_count_each),
        cmocka_unit_test(precision_widens),
        cmocka_unit_test(hostile_answers_end_in_time_and_memory),
        cmocka_unit_test(failed_allocations_are_reported),
        cmocka_unit_test(the_small_collection_agrees),
        cmocka_unit_test(the_large_collection_agrees),
    };

    return cmocka_run_group_tests_name("grading", tests, NULL, NULL);
}
