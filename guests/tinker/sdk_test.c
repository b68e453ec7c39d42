/* Repeats the requests that tinker's SDK 0.38.0 sent to this server: every reply equals
 * the recorded one byte for byte, except for session ids and times. record.py, which made
 * tests/data/tinker/sdk.jsonl, checks the losses against their published formulas. */
#include "tinker/tinker_testing.h"

#include "data/jsonl.h"

enum { ID = 16, SESSIONS = 8 };

static char recorded[SESSIONS][ID + 1], ours[SESSIONS][ID + 1];
static int n_sessions;

/* A text as it is, or decoded from base64. */
static void bytes_of(struct kg_str *out, const struct kg_json *v)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                 "0123456789+/";
    size_t n;
    const char *text = kg_json_text(v, &n);
    kg_str_clear(out);
    if (text) {
        NEED(kg_str_append(out, text, n, err));
        return;
    }
    text = kg_json_text(kg_json_get(v, "base64"), &n);
    assert_non_null(text);
    unsigned bits = 0;
    int held = 0;
    for (; *text && *text != '='; text++) {
        const char *digit = kg_char_find(digits, *text);
        assert_non_null(digit);
        bits = bits << 6 | (unsigned)(digit - digits);
        held += 6;
        if (held >= 8) {
            held -= 8;
            NEED(kg_str_putc(out, (char)(bits >> held), err));
        }
    }
}

static void rename_sessions(struct kg_str *s, char from[][ID + 1], char to[][ID + 1])
{
    for (int i = 0; i < n_sessions; i++)
        for (size_t at = 0; at + ID <= s->len; at++)
            if (memcmp(s->data + at, from[i], ID) == 0)
                memcpy(s->data + at, to[i], ID);
}

/* Makes the model's folder relative again, as it was when the replies were recorded. */
static void forget_folder(struct kg_str *s)
{
    char here[4096];
    assert_non_null(getcwd(here, sizeof here - 1));
    strcat(here, "/");
    char *at = strstr(kg_str_text(s), here);
    if (!at)
        return;
    s->len -= strlen(here);
    memmove(at, at + strlen(here), s->len - (size_t)(at - s->data) + 1);
}

/* Overwrites times such as "2026-11-29T16:00:00Z". */
static void forget_times(struct kg_str *s)
{
    for (size_t at = 0; at + 20 <= s->len; at++)
        if (s->data[at] == '2' && s->data[at + 4] == '-' && s->data[at + 10] == 'T' &&
            s->data[at + 19] == 'Z')
            memset(s->data + at, '0', 19);
}

static void note_session(const struct answer *a, const struct kg_str *want)
{
    struct answer as = {.body = *want};
    assert_true(n_sessions < SESSIONS);
    text_of(recorded[n_sessions], ID + 1, &as, "session_id");
    text_of(ours[n_sessions], ID + 1, a, "session_id");
    n_sessions++;
}

static void answers_as_recorded(const struct kg_json *r, int line)
{
    const char *path = kg_json_text(kg_json_get(r, "path"), NULL);
    const char *method = kg_json_text(kg_json_get(r, "method"), NULL);
    struct kg_str body = {0}, want = {0}, at = {0};
    struct answer a = {0};
    bytes_of(&body, kg_json_get(r, "request"));
    bytes_of(&want, kg_json_get(r, "response"));
    rename_sessions(&body, recorded, ours);
    NEED(kg_str_puts(&at, path, err));
    rename_sessions(&at, recorded, ours);
    do
        ask(&a, method, at.data, kg_str_text(&body), body.len);
    while (a.status == 408);
    if (strstr(path, "create_session"))
        note_session(&a, &want);
    rename_sessions(&a.body, ours, recorded);
    forget_times(&a.body);
    forget_folder(&a.body);
    forget_times(&want);
    if (a.status != kg_json_int(kg_json_get(r, "status"), 0) || a.body.len != want.len ||
        memcmp(a.body.data, want.data, want.len) != 0)
        fail_msg("line %d, %s: expected %s, found %d %s", line, path, want.data, a.status,
                 a.body.data);
    kg_str_release(&at);
    kg_str_release(&body);
    kg_str_release(&want);
    kg_str_release(&a.body);
}

static void the_sdk_gets_the_recorded_answers(void **state)
{
    struct kg_str text = {0};
    int line = 1;
    (void)state;
    start("build/test-tinker-sdk", NULL);
    NEED(kg_file_read(&text, "tests/data/tinker/sdk.jsonl", 1 << 24, err));
    for (char *at = text.data, *end; (end = strchr(at, '\n')); at = end + 1, line++) {
        struct kg_json_doc doc;
        NEED(kg_json_parse(&doc, at, (size_t)(end - at), "sdk.jsonl", err));
        answers_as_recorded(doc.root, line);
        kg_json_release(&doc);
    }
    assert_true(line > 100);
    kg_str_release(&text);
    kg_tinker_close(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sdk_gets_the_recorded_answers),
    };
    return cmocka_run_group_tests(tests, load_digits, free_digits);
}
