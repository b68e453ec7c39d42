/* What the flag parser accepts, with kedge's own tables. */
#include "cli/cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ARGS = 16 };

static struct kg_err err;

/* Parses `kedge LINE`, whose words are separated by spaces. */
static kg_status parse(const char *line, bool *help)
{
    static char text[256];
    char *argv[MAX_ARGS], *rest = NULL;
    int argc = 0;

    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    assert_in_range(argc, 1, MAX_ARGS);
    argc--;
    return kg_flags_parse(kg_command_find(argv[0]), &argc, argv + 1, help, &err);
}

static void refused(const char *line, const char *says)
{
    bool help;

    err.message[0] = 0;
    if (parse(line, &help) != KG_EINVAL || strcmp(err.message, says) != 0)
        fail_msg("%s: expected '%s', found '%s'", line, says, err.message);
}

static void taken(const char *line)
{
    bool help;

    if (parse(line, &help) != KG_OK)
        fail_msg("%s: %s", line, err.message);
}

/* A key of a recipe may be given as KEY=VALUE if a table has it; after -- it is an
 * argument. */
static void a_key_is_a_flag_too(void **state)
{
    (void)state;
    taken("score --model m model.adapter=a");
    taken("merge --model m model.adapter=a out");
    refused("score model.adapter=a", "--adapter: has an effect only with --model");
    refused("score --model m model.adapters=a",
            "unexpected argument 'model.adapters=a': this command reads no recipe");
    refused("generate --model m rollout.max_tokens=5",
            "unexpected argument 'rollout.max_tokens=5': this command reads no recipe; "
            "did you mean --max-tokens 5?");
    refused("generate model.path=a/b",
            "unexpected argument 'model.path=a/b': this command reads no recipe; did you "
            "mean --model a/b?");
    refused("generate --model m kl.beta=1 hi",
            "unexpected argument 'kl.beta=1': this command reads no recipe");
    taken("generate --model m -- kl.beta=1");
    taken("generate --model m kl.beta");
    taken("generate --model m x=1");
    refused("score --model m -- model.adapter=a",
            "unexpected argument 'model.adapter=a'");
    refused("eval --base-url u --model m model.adapter=a",
            "--adapter: has an effect only without --base-url");
}

static void a_flag_that_does_not_act_is_refused(void **state)
{
    (void)state;
    refused("search query x.db --port 1 hi",
            "--port: has an effect only with serve, found query");
    refused("search check x.db --k1 1",
            "--k1: has an effect only with index, query, serve or bench, found check");
    refused("search --no-stemming",
            "--no-stemming: has an effect only with index, found none of them");
    refused("data head --json x", "--json: has an effect only with check, found head");
    refused("grade --structure 1 --kind qa-em",
            "--structure: has an effect only with qa-format, found qa-em");
    refused("wiki corpus --topk 1 x",
            "--topk: has an effect only with episodes, found corpus");
    refused("bench --streams 2",
            "--streams: has an effect only with serve, found none of them");
    refused("bench ops --ranks 2",
            "--ranks: has an effect only with ranks or async, found ops");
    refused("bench ranks --dtype bf16", "--dtype: has an effect only without ranks");
    refused("bench ranks --device cuda --products own",
            "--products: has an effect only with serve, ceilings, ops, decode, prefill "
            "or train, "
            "found "
            "ranks");
    refused("bench ranks --device cuda --libraries d",
            "--libraries: has an effect only with serve, ceilings, ops, decode, prefill "
            "or train, "
            "found "
            "ranks");
    /* the action counts even if it comes after the flag, and only its whole name */
    refused("search --port 1 query x.db serve",
            "--port: has an effect only with serve, found query");
    refused("search --port 1 serv x.db",
            "--port: has an effect only with serve, found serv");
    refused("search --port 1 server x.db",
            "--port: has an effect only with serve, found server");
    /* compare accepts only --json, not the other flags of eval, its keys or its groups */
    refused("eval compare a b --out c", "--out: has an effect only without compare");
    refused("eval --task math compare a b", "--task: has an effect only without compare");
    refused("eval compare a b --threads 4",
            "--threads: has an effect only without compare");
}

static void a_flag_without_effect_beside_others_is_refused(void **state)
{
    (void)state;
    refused("task --level easy", "--level: has an effect only with TASK");
    refused("task -n 3", "--count: has an effect only with TASK");
    refused("task --text", "--text: has an effect only with TASK");
    refused("presets grpo --all", "--all: has an effect only without NAME");
    refused("tokenize -d --add-special",
            "--add-special: has an effect only without --decode");
    refused("tokenize --no-parse-special --decode",
            "--no-parse-special: has an effect only without --decode");
    refused("serve --train a --drain 1", "--drain: has an effect only without --train");
    refused("serve --chat-template b --train a",
            "--chat-template: has an effect only without --train");
    refused("chat-template --list --now 1", "--now: has an effect only without --list");
    refused("chat-template --name a --list", "--name: has an effect only without --list");
    refused("chat-template --list --chat-template f",
            "--list: has an effect only without --chat-template");
    refused("new d --no-tie --tie", "--tie: has an effect only without --no-tie");
    refused("report --metrics --out x", "--out: has an effect only without --metrics");
    refused("report --metrics run", "--metrics: has an effect only without RUN");
    refused("train --keys --resume", "--resume: has an effect only without --keys");
    refused("train --keys recipe.yaml", "--keys: has an effect only without RECIPE");
    refused("inspect d --json --tensors", "--tensors: has an effect only without --json");
    refused("inspect d --verify --dtype fp32",
            "--dtype: has an effect only without --verify");
    refused("generate --jsonl --json", "--json: has an effect only without --jsonl");
    refused("data check x --add-special true",
            "--add-special: has an effect only with --model");
    refused("eval --api chat", "--api: has an effect only with --base-url");
    refused("eval --sets a", "--sets: has an effect only with SUITE");
    refused("serve --api-key-file f --allow-host h",
            "--allow-host: has an effect only without --api-key-file");
    refused("serve --api-keys f", "--api-keys: has an effect only with --train");
    refused("serve --train d --api-keys f --api-key-file g",
            "--api-keys: has an effect only without --api-key-file");
    refused("serve --train d --api-keys f --allow-host h",
            "--allow-host: has an effect only without --api-keys");
    refused("serve --max-models 2", "--max-models: has an effect only with --train");
    refused("table r -m x --svg --over kl --against c",
            "--svg: has an effect only without --against");
    refused("table r -m x --svg --over kl --start c",
            "--svg: has an effect only without --start");
    refused("table r -m x --profile --start t/c",
            "--profile: has an effect only without --start");
    refused("bench ranks --nccl d", "--nccl: has an effect only with --device");
    /* depends on the value of another flag, or on the action */
    refused(
        "search query x.db --dense m hi",
        "--dense: has an effect only with index or --kind dense or hybrid, found query");
    refused(
        "search query x.db --dense m --kind bm25 hi",
        "--dense: has an effect only with index or --kind dense or hybrid, found query");
    refused("search serve x.db --kind dense --dense m --weight 0.3",
            "--weight: has an effect only with --kind hybrid");
    refused("search query x.db --fusion rank hi",
            "--fusion: has an effect only with --kind hybrid");
    refused("search query x.db --vectors int8 hi",
            "--vectors: has an effect only with --kind dense or hybrid");
    refused("search query x.db --kind dense --dense m --pooling mean",
            "--pooling: has an effect only with index, found query");
    refused("search index --device cuda c x.db",
            "--device: has an effect only with --dense");
    /* flags of a group: the condition of the group's row */
    refused("show x --threads 2", "--threads: has an effect only with --reference");
    refused("show x --device cpu", "--device: has an effect only with --reference");
    refused("eval --base-url u --threads 2",
            "--threads: has an effect only without --base-url");
}

static void a_flag_beside_what_it_needs_is_taken(void **state)
{
    (void)state;
    taken("task --level easy arithmetic -n 3");
    taken("search index --dense m --pooling mean --device cuda c x.db");
    taken("search query --kind hybrid --dense m --fusion score --weight 0 x.db hi");
    taken("search bench --vectors int8 --kind dense --dense m x.db questions");
    taken("presets --all --json");
    taken("presets grpo --json");
    taken("tokenize --no-parse-special --add-special");
    taken("chat-template --model d --name a --now 1");
    taken("show x --threads 2 --reference r --no-color");
    taken("new d --tie");
    taken("report a b --out c");
    taken("train recipe.yaml --resume --dry-run");
    taken("eval --api chat --base-url u s.yaml --sets a");
    taken("data check x --add-special true --model d");
}

static void a_key_that_is_given_as_a_flag_is_told_so(void **state)
{
    (void)state;
    refused("train --model x",
            "unknown flag --model; a recipe's keys have no dashes: model.path=DIR");
    refused("train --resum", "unknown flag --resum, did you mean --resume?");
    refused("doctor --model.path x", "unknown flag --model.path");
}

/* Products whose bits depend on the shapes of other operations are only for
 * benchmarks. */
static void bench_alone_has_products_that_are_not_pinned(void **state)
{
    static const char unknown[] = "unknown flag --unpinned";
    char line[80];
    bool help;

    (void)state;
    taken("bench ops --device cuda --unpinned");
    refused("bench ops --unpinned", "--unpinned: has an effect only with --device");
    for (const struct kg_command *c = kg_commands; c->name; c++) {
        snprintf(line, sizeof line, "%s --unpinned", c->name);
        if (strcmp(c->name, "bench") == 0)
            continue;
        assert_int_equal(parse(line, &help), KG_EINVAL);
        assert_int_equal(strncmp(err.message, unknown, strlen(unknown)), 0);
    }
}

static void a_flag_that_acts_is_taken(void **state)
{
    bool help;

    (void)state;
    taken("search --port 1 serve x.db");
    taken("search serve x.db --k1 1 --b 0.5");
    taken("data check --json x");
    taken("grade --answer-tags 2 --kind qa-f1");
    refused("grade --kind math --answer-tags 2",
            "--answer-tags: has an effect only with qa-*, found math");
    taken("eval compare a b --json");
    taken("eval x.yaml --json --threads 1");
    taken("bench serve --streams 2");
    taken("bench --dtype fp32");
    taken("bench head --dtype fp32");
    taken("bench ranks --ranks 2 --threads 1 --device cuda --nccl d");
    assert_int_equal(parse("search query --port 1 --help", &help), KG_OK);
    assert_true(help);
}

static void help_names_the_actions_of_a_flag(void **state)
{
    const struct kg_flag some = {.name = "x", .needs = "=a,b-*&--y", .help = "text"},
                         all = {.name = "x", .help = "text"},
                         any = {.name = "x", .needs = "=*", .help = "text"},
                         most = {.name = "x", .needs = "!a", .help = "text"};
    struct kg_str text = {0};

    (void)state;
    assert_int_equal(kg_flag_help(&text, &some, &err), KG_OK);
    assert_string_equal(text.data, "a, b-*: text");
    kg_str_clear(&text);
    assert_int_equal(kg_flag_help(&text, &all, &err), KG_OK);
    assert_string_equal(text.data, "text");
    kg_str_clear(&text);
    assert_int_equal(kg_flag_help(&text, &any, &err), KG_OK);
    assert_string_equal(text.data, "text");
    kg_str_clear(&text);
    assert_int_equal(kg_flag_help(&text, &most, &err), KG_OK);
    assert_string_equal(text.data, "text");
    kg_str_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_a_flag_too),
        cmocka_unit_test(a_flag_that_does_not_act_is_refused),
        cmocka_unit_test(a_flag_without_effect_beside_others_is_refused),
        cmocka_unit_test(a_flag_beside_what_it_needs_is_taken),
        cmocka_unit_test(a_key_that_is_given_as_a_flag_is_told_so),
        cmocka_unit_test(bench_alone_has_products_that_are_not_pinned),
        cmocka_unit_test(a_flag_that_acts_is_taken),
        cmocka_unit_test(help_names_the_actions_of_a_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
