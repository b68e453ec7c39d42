/* The letter of a multiple-choice answer in texts as models write them. */
#include "math/math.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct kg_err err;

static const struct {
    const char *answer;
    char letter; /* 0: none */
} rows[] = {
    {"A man went. The answer is (D).", 'D'},
    {"I think it's A. No, B.", 'B'},
    {"(b)", 'B'},
    {"b)", 'B'},
    {"**C**", 'C'},
    {"Option C", 'C'},
    {"The correct option is C.", 'C'},
    {"The answer is C.", 'C'},
    {"answer: **(B)**", 'B'},
    {"The answer is option D", 'D'},
    {"A triangle has three sides.", 0},
    {"I think so.", 0},
    {"The answer is A man.", 0},
    {"The answer is A because it fits.", 'A'},
    {"Option A is wrong. The best is (B).", 'B'},
    {"The answer is C. Option D is too large.", 'C'},
    {"Options:\nA. one\nB. two\nSo it must be C", 'C'},
    {"A. one\nB. two", 0},
    {"The answer is A or B", 0},
    {"Answer: A, B", 0},
    {"The answer is A, B is too small", 'A'},
    {"\\boxed{D}", 'D'},
    {"\\boxed{\\text{(E)}}", 'E'},
    {"The answer is not A. It is B", 'B'},
    {"D. it can't be A or B.", 'D'},
    {"f(a) = 3", 0},
    {"we get (a, b)", 0},
    {"x = A + B", 0},
    {"The answer is (a) or (b)", 0},
    {"Final answer: B", 'B'},
    {"C", 'C'},
    {"$C$", 'C'},
    {"(C) 12", 'C'},
    {"Choice (d) is right", 'D'},
    {"The answer is\nC Cecile", 'C'},
    {"I", 'I'},
    {"I went home", 0},
    {"The answer is A. Wait, the answer is B.", 'B'},
    {"The correct answer is therefore **B) Paris**", 'B'},
    {"Answer: C - Paris", 'C'},
    {"So A is right", 'A'},
    {"Eliminate option A. Then B", 'B'},
    {"\\boxed{5}", 0},
    {"The answer is $\\boxed{\\textbf{(A)}\\ 5}$", 'A'},
    {"A) 5", 'A'},
    {"The answer is 'B'.", 'B'},
    {"Neither A nor B, so C", 'C'},
    {"Answer: \\text{B}", 'B'},
    {"The best choice would be B", 'B'},
    {"the answer is e.", 0},
    {"It's B, not C.", 'B'},
    {"A bat and a ball cost 1", 0},
    {"It is a ball (see A).", 'A'},
    {"The answer is \\(B\\)", 'B'},
    {"**Answer: C**", 'C'},
    {"C is the answer.", 'C'},
    {"The answer is K", 0},
    {"So the right one: [B]", 'B'},
    {"Thus, B is correct, and A is incorrect.", 'B'},
    {"The answer to question A is B", 'B'},
    {"A: B", 'B'},
    {"答案是 B", 'B'},
};

static char chosen(enum kg_math_form form, const char *answer)
{
    struct kg_math_opts opts = {.form = form};
    struct kg_math_result r = {0};
    struct kg_math_text gold = {"A", 1};
    char letter;

    if (kg_math_grade(&r, &opts, (struct kg_math_text){answer, strlen(answer)}, &gold, 1,
                      &err) != KG_OK)
        fail_msg("%s", err.message);
    letter = r.extracted.len == 1 ? r.extracted.data[0] : 0;
    assert_int_equal(r.verdict, letter == 'A' ? KG_MATH_RIGHT : KG_MATH_WRONG);
    kg_math_result_release(&r);
    return letter;
}

static void the_letter_that_is_meant_is_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char found = chosen(KG_MATH_FORM_CHOICE, rows[i].answer);

        if (found != rows[i].letter)
            fail_msg("'%s': expected letter '%c', found '%c'", rows[i].answer,
                     rows[i].letter ? rows[i].letter : '-', found ? found : '-');
    }
}

static void a_response_may_choose(void **state)
{
    (void)state;
    assert_int_equal(chosen(KG_MATH_FORM_RESPONSE, "The correct option is C."), 'C');
    assert_int_equal(
        chosen(KG_MATH_FORM_RESPONSE, "Of 3 options\nA fits: the answer is (A)."), 'A');
    assert_int_equal(
        chosen(KG_MATH_FORM_CHOICE, "<think>The answer is (B).</think> It is D."), 'D');
    assert_int_equal(chosen(KG_MATH_FORM_RESPONSE, "The derivative is $B + A$."), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_letter_that_is_meant_is_found),
        cmocka_unit_test(a_response_may_choose),
    };

    return cmocka_run_group_tests_name("choices", tests, NULL, NULL);
}
