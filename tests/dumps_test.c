/* The lines that a run, an evaluation and a generation write are a table for other
 * programs: except for null, a key has one type in all lines of a file, and an integer
 * and a real are different types.
 *
 * tools/oracle/load_dumps.py loads the same files with pyarrow and datasets.
 */
#define ROOT "/tmp/kedge-dumps-test"
#include "run_testing.h"

#include "data/records.h"

static const char *type_name(const struct kg_json *v)
{
    return kg_json_type(v) == KG_JSON_INT    ? "integer"
           : kg_json_type(v) == KG_JSON_REAL ? "real"
                                             : kg_json_type_name(v);
}

/* Types by place in a line: "logp" array, "logp[]" real, "a.b" string. */
struct schema {
    struct {
        char path[160];
        char type[16];
    } places[400];
    size_t n;
};

static void note(struct schema *s, const char *path, const struct kg_json *v,
                 const char *where)
{
    char inside[160];
    size_t i = 0;

    if (kg_json_type(v) == KG_JSON_NULL)
        return;
    while (i < s->n && strcmp(s->places[i].path, path) != 0)
        i++;
    if (i == s->n) {
        assert_true(++s->n < sizeof s->places / sizeof *s->places);
        snprintf(s->places[i].path, sizeof s->places[i].path, "%s", path);
        snprintf(s->places[i].type, sizeof s->places[i].type, "%s", type_name(v));
    }
    if (strcmp(s->places[i].type, type_name(v)) != 0)
        fail_msg("%s: %s is %s, and %s in a line before", where, path, type_name(v),
                 s->places[i].type);
    for (size_t k = 0; k < kg_json_size(v); k++) {
        bool object = kg_json_type(v) == KG_JSON_OBJECT;

        snprintf(inside, sizeof inside, "%.100s%s%.50s", path, object ? "." : "[]",
                 object ? kg_json_key_at(v, k) : "");
        note(s, inside, object ? kg_json_value_at(v, k) : kg_json_at(v, k), where);
    }
}

static const char *type_of(const struct schema *s, const char *path)
{
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->places[i].path, path) == 0)
            return s->places[i].type;
    }
    return "absent";
}

/* Reads the schema of the lines of ROOT/name.   returns the number of lines */
static int read_schema(struct schema *s, const char *name)
{
    struct kg_records *r;
    struct kg_json_doc doc = {0};
    char path[512];
    bool more = true;
    int n = 0;

    memset(s, 0, sizeof *s);
    snprintf(path, sizeof path, ROOT "/%s", name);
    NEED(kg_records_open(&r, path, err));
    for (;; n++) {
        NEED(kg_records_next(r, &doc, &more, err));
        if (!more)
            break;
        note(s, "", doc.root, doc.where);
    }
    kg_json_release(&doc);
    kg_records_close(r);
    return n;
}

static void needs(const struct schema *s, const char *path, const char *type)
{
    if (strcmp(type_of(s, path), type) != 0)
        fail_msg("%s: expected %s, found %s", path, type, type_of(s, path));
}

/* The rewards are 0 and 1 here and the first log-probs of SFT are 0, so a writer without
 * fractions would make some of them integers. */
static void a_run_writes_tables(void **state)
{
    static const char *const extra[] = {"train.steps=3",
                                        "sft.steps=2",
                                        "sft.data=" DIGITS "/train.jsonl",
                                        "eval.every=1",
                                        "rollout.overlong_buffer=4",
                                        "kl.estimator=k3",
                                        "anchor.kind=fixed",
                                        "kl.beta=0.01",
                                        NULL};
    static struct schema s;

    (void)state;
    fresh(ROOT "/run");
    must_train(ROOT "/run", false, extra);
    assert_int_equal(read_schema(&s, "run/rollouts/step-000002.jsonl.zst"), 16);
    needs(&s, ".reward", "real");
    needs(&s, ".advantage", "real");
    needs(&s, ".shaping", "real");
    needs(&s, ".temperature", "real");
    needs(&s, ".prompt_index", "integer");
    needs(&s, ".tokens[]", "integer");
    needs(&s, ".logp[]", "real");
    needs(&s, ".anchor_logp[]", "real");
    assert_in_range(read_schema(&s, "run/metrics.jsonl"), 5, 20);
    needs(&s, ".step", "integer");
    for (size_t i = 0; i < s.n; i++) {
        if (strcmp(s.places[i].path, "") != 0 && strcmp(s.places[i].path, ".step") != 0 &&
            strcmp(s.places[i].path, ".phase") != 0)
            needs(&s, s.places[i].path, "real");
    }
}

static void shell_must(const char *line)
{
    if (system(line) != 0)
        fail_msg("%s: failed", line);
}

static void an_evaluation_writes_a_table(void **state)
{
    static struct schema s;

    (void)state;
    fresh(ROOT "/eval");
    shell_must("./kedge eval --model " DIGITS " --task digits --data " DIGITS
               "/test.jsonl -n 2 --out " ROOT "/eval > /dev/null 2>&1");
    assert_true(read_schema(&s, "eval/samples.jsonl.zst") > 5);
    needs(&s, ".reward", "real");
    needs(&s, ".problem", "integer");
    needs(&s, ".tokens", "integer");
    needs(&s, ".ground_truth", "string");
}

static void answers_and_scores_are_tables(void **state)
{
    static struct schema s;

    (void)state;
    fresh(ROOT "/lines");
    shell_must("mkdir -p " ROOT "/lines && echo '{\"ids\": [5]}' | ./kedge generate "
               "--jsonl --logprobs --n 3 --temperature 0 --max-tokens 9 --model " DIGITS
               " > " ROOT "/lines/generated.jsonl 2> /dev/null");
    assert_int_equal(read_schema(&s, "lines/generated.jsonl"), 3);
    needs(&s, ".ids[]", "integer");
    needs(&s, ".logprobs[]", "real");
    shell_must("./kedge score --model " DIGITS " < " ROOT "/lines/generated.jsonl > " ROOT
               "/lines/scored.jsonl 2> /dev/null");
    assert_int_equal(read_schema(&s, "lines/scored.jsonl"), 3);
    needs(&s, ".logprobs[]", "real");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_writes_tables),
        cmocka_unit_test(an_evaluation_writes_a_table),
        cmocka_unit_test(answers_and_scores_are_tables),
    };

    return cmocka_run_group_tests_name("dumps", tests, NULL, NULL);
}
