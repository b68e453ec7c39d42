/* Ranks with different settings end with an error that names the difference, before the
 * run exchanges anything. Ranks that get other messages than they expect also end with an
 * error, in whichever exchange. None ends by a signal or writes out of bounds, which the
 * sanitizers check.
 */
#define ROOT "build/test-runs/ranks-unlike"
#include "ranks_run_testing.h"

#include "ranks/same.h"
#include "text/chat_template.h"

#include <fcntl.h>
#include <time.h>

#define SAID ROOT "/said"

enum { SANITIZER = 99 }; /* exit status after a sanitizer's report */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "exitcode=99"; }
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) { return "exitcode=99:halt_on_error=1"; }

static const char *const small[] = {"train.lanes=8",
                                    "train.steps=1",
                                    "kl.estimator=k3",
                                    "kl.beta=0.05",
                                    "anchor.kind=ema",
                                    "anchor.period=1",
                                    "eval.problems=2",
                                    "train.updates_per_step=1",
                                    NULL};

/* ---- keys ---- */

/* text <- a value that the row allows, other than its current one */
static void another_value(char text[64], const struct kg_config *config,
                          const struct kg_opt_row *row)
{
    static const char *const tried[] = {"1",  "2",    "0",     "0.5", "1e-3",
                                        "16", "true", "false", "x",   NULL};
    const char *now = kg_config_text(config, row->key);
    const char *choice = row->choices;
    struct kg_err why;

    while (choice) { /* the row lists its choices */
        const size_t n = strcspn(choice, "|");

        snprintf(text, 64, "%.*s", (int)n, choice);
        if (strcmp(text, now) != 0)
            return;
        choice = choice[n] ? choice + n + 1 : NULL;
    }
    for (int i = 0; tried[i]; i++) {
        snprintf(text, 64, "%s", tried[i]);
        if (kg_opt_check(row, text, NULL, &why) == KG_OK && !kg_opt_same(row, text, now))
            return;
    }
    snprintf(text, 64, "%.15g", row->max);
}

static const struct kg_opt_row *differing; /* key whose value one rank has changed */
static int told_otherwise;

/* Compares a rank's facts with those of the others. All ranks, the differing one too,
 * must report the same difference. */
static int compare_keys(struct kg_ranks *r, void *user)
{
    struct kg_config *config = user;
    const char *key = differing->key;
    char value[64], expected[128];
    struct kg_str facts = {0};
    struct kg_err why = {0};
    bool may = differing->free & KG_FREE_BY_RANK;
    kg_status status;

    another_value(value, config, differing);
    if (r->me == told_otherwise)
        NEED_IN_CHILD(kg_config_set(config, key, value, false, "test", err));
    NEED_IN_CHILD(kg_config_put_facts(&facts, config, err));
    status = kg_ranks_check_same(r, KG_OK, &facts, "keys", &why);
    snprintf(expected, sizeof expected, "): %s is ", key);
    if (may)
        return status == KG_OK && !r->unlike ? 0 : 3;
    if (status != KG_ECONFLICT || !r->unlike || r->lost)
        return 4;
    return strstr(why.message, expected) && strstr(why.message, ", rank 0 has ") &&
                   why.message[5] == (char)('0' + (told_otherwise ? told_otherwise : 1))
               ? 0
               : 5;
}

static void every_key_that_may_not_differ_is_named(void **state)
{
    struct kg_config *config = config_of(ROOT "/n", small);
    int n = 0, may = 0;

    (void)state;
    for (size_t i = 0; i < kg_config_rows(config); i++) {
        differing = kg_config_row(config, i);
        told_otherwise = (int)(i % 3);
        ranks_end_well(3, compare_keys, config, differing->key);
        may += (differing->free & KG_FREE_BY_RANK) != 0;
        n++;
    }
    print_message("  %d keys, of which %d may differ\n", n, may);
    assert_true(n > 150);
    assert_int_equal(may, 3); /* threads, and two folders of libraries */
    kg_config_free(config);
}

/* ---- runs ---- */

static struct {
    const char *key, *value;
} otherwise; /* the setting of rank 1 */

static void tell_rank_1(struct kg_ranks *r, struct kg_config *config)
{
    if (r->me == 1)
        NEED_IN_CHILD(
            kg_config_set(config, otherwise.key, otherwise.value, false, "test", err));
}

static void said_of_run(struct kg_str *text)
{
    kg_str_clear(text);
    NEED(kg_file_read(text, SAID, 1 << 20, err));
}

/* Both ranks must end at once, with KG_RANKS_EXIT_UNLIKE and one sentence, and write
 * nothing. */
static void assert_refused(const char *expected)
{
    static const struct upset told = {.given = tell_rank_1, .wait_s = 60, .said = SAID};
    struct kg_str text = {0};
    pid_t child[RANKS_MOST];
    int ended[RANKS_MOST];

    fresh(ROOT "/n");
    start_ranks(child, 2, ROOT "/n", false, small, &told);
    all_end(ended, child, 2, -1);
    said_of_run(&text);
    for (int p = 0; p < 2; p++)
        if (!WIFEXITED(ended[p]) || WEXITSTATUS(ended[p]) != KG_RANKS_EXIT_UNLIKE)
            fail_msg("%s=%s: rank %d ended by %#x: %s", otherwise.key, otherwise.value, p,
                     (unsigned)ended[p], kg_str_text(&text));
    if (!strstr(kg_str_text(&text), expected))
        fail_msg("expected \"%s\", found: %s", expected, kg_str_text(&text));
    assert_false(kg_file_exists(ROOT "/n/manifest.json"));
    assert_int_equal(unlink(SAID), 0);
    kg_str_release(&text);
}

static void a_run_of_ranks_that_were_told_otherwise_is_refused(void **state)
{
    static const char *const rows[][3] = {
        {"rollout.samples", "5", "rollout.samples is 5, rank 0 has 4"},
        {"rollout.prompts", "5", "rollout.prompts is 5, rank 0 has 4"},
        {"eval.problems", "6", "eval.problems is 6, rank 0 has 2"},
        {"model.dtype", "fp32", "model.dtype is fp32, rank 0 has auto"},
        {"run.seed", "7", "run.seed is 7, rank 0 has 1"},
        {"train.lanes", "5", "train.lanes is 5, rank 0 has 8"},
        {"train.steps", "3", "train.steps is 3, rank 0 has 1"},
        {"train.updates_per_step", "2", "train.updates_per_step is 2, rank 0 has 1"},
        {"rollout.max_tokens", "9", "rollout.max_tokens is 9, rank 0 has 12"},
        {"anchor.kind", "copy", "anchor.kind is copy, rank 0 has ema"},
        {"kl.estimator", "k1", "kl.estimator is \"k1\", rank 0 has \"k3\""},
        {"ranks.shard", "none", "ranks.shard is none, rank 0 has optimizer"},
        {"ranks.rollout", "1", "ranks.rollout is 1, rank 0 has 0"},
        {"rollout.stop", "x", "rollout.stop is [\"x\"], rank 0 has []"},
        {"data.system", "be brief", "data.system is \"be brief\", rank 0 has \"\""},
        {"run.dir", ROOT "/m", "run.dir is \"" ROOT "/m\", rank 0 has \"" ROOT "/n\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        otherwise.key = rows[i][0];
        otherwise.value = rows[i][1];
        assert_refused(rows[i][2]);
    }
}

/* Rank 1 works in another folder, where relative paths lead to other files. */
static void stand_elsewhere(struct kg_ranks *r, struct kg_config *config)
{
    (void)config;
    if (r->me == 1 && chdir("../there") != 0)
        _exit(127);
}

static const char *const files[] = {"config.json", "tokenizer_config.json",
                                    "model.safetensors", "train.jsonl", "test.jsonl"};
enum { FILES = sizeof files / sizeof *files };

/* Copies all files to `folder`, file number `changed` with one bit flipped; -1: none. */
static void lay_out(const char *folder, int changed)
{
    struct kg_str text = {0};
    char from[128], to[128];

    snprintf(to, sizeof to, ROOT "/%s/m", folder);
    NEED(kg_file_make_dirs(to, err));
    for (int i = 0; i < FILES; i++) {
        kg_str_clear(&text);
        snprintf(from, sizeof from, DIGITS "/%s", files[i]);
        snprintf(to, sizeof to, ROOT "/%s/m/%s", folder, files[i]);
        NEED(kg_file_read(&text, from, 1 << 26, err));
        if (i == changed)
            text.data[text.len / 2] ^= 1;
        NEED(kg_file_write_atomic(to, text.data, text.len, err));
    }
    kg_str_release(&text);
}

static void a_file_that_is_another_on_one_rank_is_named(void **state)
{
    static const char *const labels[FILES] = {
        "model.path/config.json", "model.path/tokenizer_config.json",
        "model.path/model.safetensors", "data.train", "data.val"};
    static const char *const there[] = {"model.path=m", "data.train=m/train.jsonl",
                                        "data.val=m/test.jsonl", "train.lanes=8", NULL};
    static const struct upset apart = {
        .given = stand_elsewhere, .wait_s = 60, .said = "../said"};
    char expected[96];
    int here = open(".", O_RDONLY);

    (void)state;
    assert_true(here >= 0);
    lay_out("here", -1);
    for (int i = 0; i < FILES; i++) {
        struct kg_str text = {0};
        pid_t child[RANKS_MOST];
        int ended[RANKS_MOST];

        lay_out("there", i);
        assert_int_equal(chdir(ROOT "/here"), 0);
        start_ranks(child, 2, "../n", false, there, &apart);
        all_end(ended, child, 2, -1);
        assert_int_equal(fchdir(here), 0);
        said_of_run(&text);
        snprintf(expected, sizeof expected, "): file %s is ", labels[i]);
        if (!strstr(kg_str_text(&text), expected))
            fail_msg("expected \"%s\", found: %s", expected, kg_str_text(&text));
        for (int p = 0; p < 2; p++)
            assert_int_equal(WEXITSTATUS(ended[p]), KG_RANKS_EXIT_UNLIKE);
        assert_int_equal(unlink(SAID), 0);
        kg_str_release(&text);
    }
    close(here);
}

/* ---- the day of a run ---- */

/* Rank 1 is in a time zone 24 hours behind, so always in the day before. */
static void live_in_another_zone(int me)
{
    if (setenv("TZ", me == 1 ? "West24" : "UTC0", 1) != 0)
        _exit(127);
    tzset();
}

static void the_day_of_rank_0_is_the_day_of_all(void **state)
{
    static const struct upset apart = {.before = live_in_another_zone, .wait_s = 60};
    static const char *const dated[] = {"train.lanes=2", "train.steps=1",
                                        "data.user_turn=true",
                                        "data.chat_template=" ROOT "/dated.jinja", NULL};
    static const char template[] = /* not rendered: the model lacks letters */
        "{% if 0 %}{{ strftime_now('%d %b %Y') }}{% endif %}{{ messages[0].content }}";
    struct kg_chat_day days[2];
    struct kg_str text = {0};

    (void)state;
    fresh(ROOT "/n");
    NEED(kg_file_write_atomic(ROOT "/dated.jinja", template, strlen(template), err));
    live_in_another_zone(0);
    days[0] = kg_chat_today();
    train_with(2, ROOT "/n", false, dated, &apart);
    days[1] = kg_chat_today(); /* midnight may have passed */
    NEED(kg_file_read(&text, ROOT "/n/config.yaml", 1 << 20, err));
    assert_true(strstr(kg_str_text(&text), days[0].text) ||
                strstr(kg_str_text(&text), days[1].text));
    kg_str_release(&text);
}

/* ---- a transport that lies ---- */

enum lie { KIND, NOTHING, HALF, ONE_MORE, MUCH_MORE, NUMBER, LIES };
static const char *const lie_names[LIES] = {
    "another kind", "nothing", "half", "a byte more", "a MB more", "another number"};

static struct {
    const struct kg_ranks_transport *honest;
    struct kg_ranks_transport lying;
    int at; /* which exchange of rank 1 is a lie; < 0: none */
    enum lie lie;
    int count;
    int *exchanges; /* in shared memory: exchanges of rank 1 in a run */
} liar;

static size_t lie_about(size_t n)
{
    switch (liar.lie) {
    case NOTHING:
        return 0;
    case HALF:
        return n / 2;
    case ONE_MORE:
        return n + 1;
    case MUCH_MORE:
        return n + (1 << 20);
    default:
        return n;
    }
}

/* Replaces what is sent by another length or, if it is one number, by another number.
 * Some numbers are lengths of the next message. */
static void spoil(struct kg_ranks_part *out, int n, int me)
{
    static const uint64_t numbers[] = {
        0, 1, UINT64_MAX, 1ull << 63, 1ull << 40, 1ull << 20, 0x7ff8000000000000};

    for (int p = 0; p < n; p++) {
        const size_t was = out[p].n, is = lie_about(was);
        char *bytes = calloc(1, is + sizeof(uint64_t));

        if (p == me || !bytes)
            continue;
        if (was > 0)
            memcpy(bytes, out[p].data, was < is ? was : is);
        if (liar.lie == NUMBER && was == sizeof(uint64_t))
            memcpy(bytes, &numbers[(size_t)liar.at % 7], sizeof(uint64_t));
        out[p] = (struct kg_ranks_part){bytes, is};
    }
}

static kg_status lie(const struct kg_ranks *r, const struct kg_ranks_part *out,
                     const struct kg_ranks_part *in, const struct kg_ranks_user *user,
                     const char *what, struct kg_err *err)
{
    struct kg_ranks_part false_out[RANKS_MOST];
    struct kg_ranks said = *r;

    memcpy(false_out, out, (size_t)r->n * sizeof *out);
    *liar.exchanges = liar.count + 1;
    if (liar.count++ == liar.at) {
        spoil(false_out, r->n, r->me);
        if (liar.lie == KIND)
            said.kind = "a kind of its own";
    }
    return user ? liar.honest->lend(&said, false_out, in, user, what, err)
                : liar.honest->exchange(&said, false_out, in, what, err);
}

static kg_status lie_in_exchange(const struct kg_ranks *r,
                                 const struct kg_ranks_part *out,
                                 const struct kg_ranks_part *in, const char *what,
                                 struct kg_err *err)
{
    return lie(r, out, in, NULL, what, err);
}

static void become_a_liar(struct kg_ranks *r, struct kg_config *config)
{
    (void)config;
    if (r->me != 1)
        return;
    liar.honest = r->transport;
    liar.lying = *r->transport;
    liar.lying.exchange = lie_in_exchange;
    liar.lying.lend = lie;
    liar.count = 0;
    r->transport = &liar.lying;
}

/* returns whether a rank reported a message that it did not expect */
static bool run_with_a_liar(const char *const *extra)
{
    const bool waits = liar.at >= 0 && (liar.lie == NOTHING || liar.lie == HALF);
    const struct upset lies = {
        .given = become_a_liar, .wait_s = waits ? 0.5 : 60, .said = SAID};
    pid_t child[RANKS_MOST];
    int ended[RANKS_MOST];
    bool heard = false;

    fresh(ROOT "/n");
    start_ranks(child, 2, ROOT "/n", false, extra, &lies);
    all_end(ended, child, 2, -1);
    for (int p = 0; p < 2; p++) {
        const int status = WEXITSTATUS(ended[p]);

        if (!WIFEXITED(ended[p]) || status == SANITIZER || status == 127)
            fail_msg("exchange %d, %s: rank %d ended by %#x", liar.at,
                     lie_names[liar.lie], p, (unsigned)ended[p]);
        heard |= status == KG_RANKS_EXIT_UNLIKE;
    }
    return heard;
}

/* Makes a run for every `stride`-th exchange, in which that exchange is a lie. */
static void lie_everywhere(const char *const *extra, int stride)
{
    int n, unheard = 0, kinds = 0;

    liar.at = -1;
    assert_false(run_with_a_liar(extra));
    n = *liar.exchanges;
    assert_true(n > 60);
    for (liar.at = 0; liar.at < n; liar.at += stride) {
        liar.lie = (enum lie)(liar.at / stride % LIES);
        kinds += liar.lie == KIND;
        if (!run_with_a_liar(extra) && liar.lie == KIND)
            unheard++;
    }
    print_message("  %d exchanges, %d of another kind\n", n, kinds);
    assert_true(unheard <= 1); /* the last exchange, which nobody checks */
}

static void a_rank_that_sends_something_else_ends_all_in_words(void **state)
{
    static const char *const short_run[] = {"train.lanes=2",
                                            "train.steps=1",
                                            "train.updates_per_step=1",
                                            "kl.estimator=k3",
                                            "kl.beta=0.05",
                                            "anchor.kind=ema",
                                            "anchor.period=1",
                                            "eval.problems=1",
                                            "rollout.prompts=2",
                                            "rollout.samples=2",
                                            "rollout.max_tokens=4",
                                            "log.report=false",
                                            NULL};

    (void)state;
    lie_everywhere(short_run, 1);
}

static void and_so_does_one_of_divided_gradients(void **state)
{
    static const char *const divided[] = {"train.lanes=2",
                                          "train.steps=1",
                                          "ranks.shard=gradients",
                                          "eval.at_start=false",
                                          "rollout.prompts=2",
                                          "train.micro_tokens=64",
                                          NULL};

    (void)state;
    lie_everywhere(divided, 7);
}

static int begin(void **state)
{
    (void)state;
    fresh(ROOT);
    liar.exchanges = mmap(NULL, sizeof *liar.exchanges, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return liar.exchanges == MAP_FAILED;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_that_may_not_differ_is_named),
        cmocka_unit_test(a_run_of_ranks_that_were_told_otherwise_is_refused),
        cmocka_unit_test(a_file_that_is_another_on_one_rank_is_named),
        cmocka_unit_test(the_day_of_rank_0_is_the_day_of_all),
        cmocka_unit_test(a_rank_that_sends_something_else_ends_all_in_words),
        cmocka_unit_test(and_so_does_one_of_divided_gradients),
    };
    static const char *const also[] = {"run.threads=1", NULL};

    run_also = also;
    return cmocka_run_group_tests(tests, begin, NULL);
}
