/* Conditions of keys: whether they hold, their words in messages, and the keys that they
 * name. */
#include "data/needs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct values {
    int64_t n;
    const char *word, *other;
    struct kg_opt_list rewards;
    bool on;
};
#define AT(field) KG_OPT_AT(struct values, field)
static const struct kg_opt_row rows[] = {
    {"a.n", AT(n), "0", 0, 0, NULL, "", false},
    {"a.word", AT(word), "one", 0, 0, NULL, "", false},
    {"a.other", AT(other), "", 0, 0, NULL, "", false},
    {"a.rewards", AT(rewards), "", 0, 0, NULL, "", false},
    {"a.on", AT(on), "false", 0, 0, NULL, "", false},
    {0},
};
static const struct kg_opt_row *const tables[] = {rows};

static struct kg_err err;

static bool is_so(const void *user, const char *text)
{
    return strncmp(text, user, strlen(user)) == 0;
}

/* Lists the clauses that do not hold, each followed by a semicolon. */
static void list_failing(char *out, size_t bytes, const char *needs, const char *given)
{
    struct kg_config *c;
    const struct kg_needs_in in = {.before = "a.", .is_so = is_so, .user = "code"};
    struct kg_needs_in with = in;
    char text[100];

    assert_int_equal(kg_config_create(&c, tables, 1, &err), KG_OK);
    with.config = c;
    if (*given && kg_config_override(c, given, "test", &err) != KG_OK)
        fail_msg("%s", err.message);
    *out = '\0';
    for (const char *from = needs, *clause; (clause = kg_needs_next(&from, &with));) {
        kg_needs_say(text, sizeof text, clause);
        snprintf(out + strlen(out), bytes - strlen(out), "%s;", text);
    }
    kg_config_free(c);
}

static void a_text_says_what_a_key_needs(void **state)
{
    static const struct {
        const char *needs, *given, *failing;
    } cases[] = {
        {NULL, "", ""},
        {"n>0", "", "with n above 0;"},
        {"n>0", "a.n=1", ""},
        {"n>2", "a.n=2", "with n above 2;"},
        {"word=one", "", ""},
        {"word=two,three,four", "", "with word two, three or four;"},
        {"word=two,three", "a.word=three", ""},
        {"word=two,three", "a.word=thre", "with word two or three;"},
        {"word!one", "", "with word other than one;"},
        {"word!one", "a.word=on", ""},
        {"word!one,two", "a.word=two", "with word other than one or two;"},
        {"other", "", "with other;"},
        {"other", "a.other=x", ""},
        {"other=", "", ""},
        {"other=", "a.other=x", "without other;"},
        {"on=true", "", "with on true;"},
        {"on=true", "a.on=true", ""},
        {"rewards~math", "", "with rewards with math;"},
        {"rewards~math", "a.rewards=[\"x=other\", \"y=math\"]", ""},
        {"rewards~math", "a.rewards=[\"math=other\"]", "with rewards with math;"},
        {"rewards~external", "a.rewards=[\"x=external cat -n\"]", ""},
        {"n>0|word=two", "", "with n above 0 or word two;"},
        {"n>0|word=one", "", ""},
        {"n>0|other&word=two&word=one", "", "with n above 0 or other;with word two;"},
        {"n>0&word=two", "a.n=1", "with word two;"},
        {"other=|n>0", "a.other=x", "without other or with n above 0;"},
        {"word!t*,on*", "", "with word other than t* or on*;"},
        {"word=t*,on*", "", ""},
        {"word=t*", "a.word=t", ""},
        {"word=one*", "a.word=on", "with word one*;"},
        {"word=*", "a.word=", ""},
        {"@code decides:n", "", ""},
        {"@another thing, or so:n,word", "", "with another thing, or so;"},
        {"@another thing:n|word=one", "", ""},
    };
    char failing[200];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        list_failing(failing, sizeof failing, cases[i].needs, cases[i].given);
        if (strcmp(failing, cases[i].failing) != 0)
            fail_msg("%s beside '%s': expected '%s', found '%s'", cases[i].needs,
                     cases[i].given, cases[i].failing, failing);
    }
}

static const char *wanted;
static bool is_wanted(const struct kg_config *c, const char *key)
{
    (void)c;
    return strcmp(key, wanted) == 0;
}

static void the_keys_of_a_clause_are_those_that_switch_it(void **state)
{
    static const struct {
        const char *clause, *key;
        bool has;
    } cases[] = {
        {"n>0|word=n", "a.n", true},     {"n>0|word=n", "a.word", true},
        {"n>0&word=n", "a.word", false}, {"n>0", "n", false},
        {"@text:n,word", "a.n", true},   {"@text:n,word", "a.word", true},
        {"@n:word", "a.n", false},       {"rewards~n", "a.rewards", true},
        {"rewards~n", "a.n", false},     {"other=", "a.other", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct kg_needs_in in = {.before = "a."};

        wanted = cases[i].key;
        if (kg_needs_any(cases[i].clause, &in, is_wanted) != cases[i].has)
            fail_msg("%s and %s", cases[i].clause, cases[i].key);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_says_what_a_key_needs),
        cmocka_unit_test(the_keys_of_a_clause_are_those_that_switch_it),
    };

    return cmocka_run_group_tests_name("needs", tests, NULL, NULL);
}
