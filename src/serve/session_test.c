/* Tests of sessions: a continued prompt is exactly the ids that were sampled, then the
 * ids of the text that follows them. Every other prompt is tokenised whole, as without a
 * session.
 *
 * Most answers here are sampled letter by letter, as no tokeniser would write them, so
 * that tokenising the conversation again would give other ids. */
#include "rollout/rollout_testing.h"

#include "serve/api.h"
#include "serve/serve_testing.h"
#include "tensor/backend_testing.h"
#include "text/tokenizer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

enum { VOCAB = 270, END = 269, MOST_IDS = 2048 };

static struct kg_tokenizer *tok;
static struct kg_chat_template *qwen3, *chatml;
static struct kg_sessions *sessions;
static struct kg_model *model;

static int setup(void **state)
{
    static const char *const text[] = {"hello hello hello ll the there the user user"};
    static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    static const char form[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    const struct kg_bpe_train how = {
        .vocab_size = VOCAB, .specials = specials, .n_specials = 3};
    struct kg_str json = {0}, jinja = {0};
    (void)state;
    NEED(kg_bpe_train_json(&json, text, 1, &how, err));
    NEED(kg_tokenizer_parse(&tok, json.data, json.len, "test", err));
    NEED(kg_file_read(&jinja, "tests/data/chat_templates/Qwen-Qwen3-0.6B.jinja", 1 << 20,
                      err));
    NEED(kg_chat_template_parse(&qwen3, jinja.data, jinja.len, "qwen3", err));
    NEED(kg_chat_template_parse(&chatml, form, sizeof form - 1, "chatml", err));
    model = make_model(KG_F32, VOCAB);
    kg_str_release(&json);
    kg_str_release(&jinja);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kg_tokenizer_close(tok);
    kg_chat_template_close(qwen3);
    kg_chat_template_close(chatml);
    kg_model_free(model);
    return 0;
}

/* ---- turns without a server ---- */

static struct kg_session_stats stats(void)
{
    struct kg_session_stats s;
    kg_sessions_stats(&s, sessions);
    return s;
}

/* A request as the server prepares it. session: NULL for none */
static void prepare(struct kg_api_request *r, const char *session, int32_t adapter,
                    const char *fields)
{
    const struct kg_api_model m = {.name = "m",
                                   .tok = tok,
                                   .chat = qwen3,
                                   .vocab = VOCAB,
                                   .max_len = MOST_IDS,
                                   .knows_calls = true,
                                   .adapter = adapter,
                                   .sessions = sessions};
    struct kg_api_fault fault;
    char body[4096];
    int n = snprintf(body, sizeof body, "{%s%s%s%s}", session ? "\"session_id\":\"" : "",
                     session ? session : "", session ? "\"," : "", fields);
    NEED(kg_api_parse(r, &fault, KG_API_CHAT, body, (size_t)n, err));
    NEED(kg_api_encode(r, &fault, &m, err));
}

/* Ids of the text: one token per letter or, with `whole`, the tokeniser's own. */
static void sample(struct kg_ids *ids, const char *text, bool whole)
{
    const struct kg_encode_opts opts = {.parse_special = true, .continues = true};
    while (*text && !whole) {
        const bool special = strncmp(text, "<|im_", 5) == 0;
        const size_t n = special ? (size_t)(strstr(text, "|>") - text) + 2 : 1;
        NEED(kg_tokenizer_encode(ids, tok, text, n, opts, err));
        text += n;
    }
    NEED(kg_tokenizer_encode(ids, tok, text, strlen(text), opts, err));
}

/* Keeps the answer to a request. ids: those of prompt and answer */
static void keep(struct kg_ids *ids, const struct kg_api_request *r, const char *text,
                 bool whole)
{
    struct kg_str all = {0};
    NEED(kg_str_printf(&all, err, "%s%s", kg_str_text(&r->turn.text), text));
    for (size_t i = 0; i < r->prompts[0].ids.n; i++)
        NEED(kg_ids_push(ids, r->prompts[0].ids.ids[i], err));
    sample(ids, text, whole);
    const struct kg_session_answer a = {
        .ids = ids->ids,
        .n = ids->n,
        .text = all.data,
        .text_n = all.len,
        .answer_n = strlen(text),
        .end_n = ids->ids[ids->n - 1] >= END - 1 ? strlen(strrchr(text, '<')) : 0};
    NEED(kg_sessions_keep(sessions, &r->turn, &a, err));
    kg_str_release(&all);
}

/* The prompt is the kept ids, then the ids of the rest of its rendering. */
static void is_continued(const struct kg_api_request *r, const struct kg_ids *kept)
{
    const struct kg_encode_opts opts = {.parse_special = true, .continues = true};
    const struct kg_ids *got = &r->prompts[0].ids;
    const char *text = kg_str_text(&r->turn.text);
    struct kg_str known = {0};
    struct kg_ids rest = {0};
    NEED(kg_tokenizer_decode(&known, tok, kept->ids, kept->n, false, err));
    assert_memory_equal(text, known.data, known.len);
    NEED(kg_tokenizer_encode(&rest, tok, text + known.len, r->turn.text.len - known.len,
                             opts, err));
    assert_int_equal(got->n, kept->n + rest.n);
    assert_memory_equal(got->ids, kept->ids, kept->n * sizeof *kept->ids);
    assert_memory_equal(got->ids + kept->n, rest.ids, rest.n * sizeof *rest.ids);
    kg_str_release(&known);
    kg_ids_release(&rest);
}

/* The prompt is the one that the request has without a session. */
static void is_whole(const struct kg_api_request *r, const char *fields)
{
    struct kg_api_request plain;
    prepare(&plain, NULL, 0, fields);
    assert_int_equal(r->prompts[0].ids.n, plain.prompts[0].ids.n);
    assert_memory_equal(r->prompts[0].ids.ids, plain.prompts[0].ids.ids,
                        plain.prompts[0].ids.n * sizeof(int32_t));
    kg_api_release(&plain);
}

/* ---- two turns ---- */

#define SAYS(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define USER             SAYS("user", "hello there")
#define NEXT             SAYS("user", "the other")
#define TALK(list)       "\"messages\":[" list "]"
#define TOOLS(name)                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}],"
#define CALL(args)                                                                       \
    "\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":"        \
    "\"look\",\"arguments\":\"" args "\"}}]"
#define CALLS(more)                                                                      \
    "{\"role\":\"assistant\",\"content\":\"\"," more CALL("{\\\"a\\\": 1}") "}"
#define SEEN(text)  "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"" text "\"}"
#define WROTE(json) "<tool_call>\n" json "\n</tool_call>"
#define LOOK        WROTE("{\"name\": \"look\", \"arguments\": {\"a\": 1}}")
#define ENDED       "<|im_end|>"

static const struct pair {
    const char *name, *first, *answer, *second;
    bool continues;
} pairs[] = {
    {"a next question", TALK(USER), "hello" ENDED,
     TALK(USER "," SAYS("assistant", "hello") "," NEXT), true},
    {"two next messages", TALK(USER), "hello" ENDED,
     TALK(USER "," SAYS("assistant", "hello") "," NEXT "," NEXT), true},
    {"content in parts", TALK(USER), "hello" ENDED,
     TALK(USER ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":"
               "\"hello\"}]}," NEXT),
     true},
    {"a system prompt in both", TALK(SAYS("system", "the") "," USER), "hello" ENDED,
     TALK(SAYS("system", "the") "," USER "," SAYS("assistant", "hello") "," NEXT), true},
    {"a break of lines in the answer", TALK(USER), "hello\nll" ENDED,
     TALK(USER "," SAYS("assistant", "hello\\nll") "," NEXT), true},
    {"an answer that max_tokens cut", TALK(USER), "hello",
     TALK(USER "," SAYS("assistant", "hello") "," NEXT), true},
    {"a call and its result", TOOLS("look") TALK(USER), LOOK ENDED,
     TOOLS("look") TALK(USER "," CALLS("") "," SEEN("there")), true},
    {"a call and two results", TOOLS("look") TALK(USER), LOOK ENDED,
     TOOLS("look") TALK(USER "," CALLS("") "," SEEN("the") "," SEEN("there")), true},
    {"a thought that the template keeps", TOOLS("look") TALK(USER),
     "<think>\nhello\n</think>\n\n" LOOK ENDED,
     TOOLS("look")
         TALK(USER "," CALLS("\"reasoning_content\":\"hello\",") "," SEEN("there")),
     true},

    {"a thought that the template strips", TALK(USER),
     "<think>\nhello\n</think>\n\nthere" ENDED,
     TALK(USER "," SAYS("assistant", "<think>\\nhello\\n</think>\\n\\nthere") "," NEXT),
     false},
    {"a thought that the client strips", TOOLS("look") TALK(USER),
     "<think>\nhello\n</think>\n\n" LOOK ENDED,
     TOOLS("look") TALK(USER "," CALLS("") "," SEEN("there")), false},
    {"a thought that the prompt began",
     "\"chat_template_kwargs\":{\"enable_thinking\":"
     "false}," TALK(USER),
     "hello" ENDED, TALK(USER "," SAYS("assistant", "hello") "," NEXT), false},
    {"an answer that was edited", TALK(USER), "hello" ENDED,
     TALK(USER "," SAYS("assistant", "hallo") "," NEXT), false},
    {"an answer made longer", TALK(USER), "hello" ENDED,
     TALK(USER "," SAYS("assistant", "hello there") "," NEXT), false},
    {"an answer made longer behind its end", TALK(USER), "hello" ENDED,
     TALK(USER "," SAYS("assistant", "hello" ENDED "\\nthe") "," NEXT), false},
    {"an end in the thought", TALK(USER), "<think>\nhello" ENDED,
     TALK(USER ",{\"role\":\"assistant\",\"content\":\"<think>\\nhello" ENDED
               "\"}," SEEN("the")),
     false},
    {"an answer made shorter", TALK(USER), "hello" ENDED,
     TALK(USER "," SAYS("assistant", "hell") "," NEXT), false},
    {"an answer that was cut, made longer", TALK(USER), "hello",
     TALK(USER "," SAYS("assistant", "hello there") "," NEXT), false},
    {"an answer that was stripped", TALK(USER), "hello\n" ENDED,
     TALK(USER "," SAYS("assistant", "hello") "," NEXT), false},
    {"a question that was edited", TALK(USER), "hello" ENDED,
     TALK(SAYS("user", "hello ther") "," SAYS("assistant", "hello") "," NEXT), false},
    {"a system prompt that was added", TALK(USER), "hello" ENDED,
     TALK(SAYS("system", "the") "," USER "," SAYS("assistant", "hello") "," NEXT), false},
    {"an answer of somebody else behind it", TALK(USER), "hello" ENDED,
     TALK(USER "," SAYS("assistant", "hello") "," NEXT
                                              "," SAYS("assistant", "the") "," NEXT),
     false},
    {"the question again", TALK(USER), "hello" ENDED, TALK(USER), false},
    {"another question", TALK(USER), "hello" ENDED, TALK(NEXT), false},
    {"special tokens that the content lacks", TALK(USER), "he<|im_start|>llo" ENDED,
     TALK(USER "," SAYS("assistant", "hello") "," NEXT), false},
    {"an end that the template does not write", TALK(USER), "hello<|im_start|>",
     TALK(USER "," SAYS("assistant", "hello") "," NEXT), false},
    {"a call that the template writes otherwise", TOOLS("look") TALK(USER),
     WROTE("{\"name\":\"look\",\"arguments\":{\"a\":1}}") ENDED,
     TOOLS("look") TALK(USER "," CALLS("") "," SEEN("there")), false},
    {"other tools", TOOLS("look") TALK(USER), LOOK ENDED,
     TOOLS("see") TALK(USER "," CALLS("") "," SEEN("there")), false},
};

static void what_is_sampled_is_continued_or_a_branch_begins(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const struct pair *p = &pairs[i];
        struct kg_api_request first, second;
        struct kg_ids ids = {0};
        NEED(kg_sessions_create(&sessions, 1 << 20, err));
        prepare(&first, "s", 0, p->first);
        is_whole(&first, p->first);
        keep(&ids, &first, p->answer, false);
        prepare(&second, "s", 0, p->second);
        if (stats().continued != p->continues || stats().branches != !p->continues)
            fail_msg("%s: expected it %s", p->name,
                     p->continues ? "continued" : "as a branch");
        if (p->continues)
            is_continued(&second, &ids);
        else
            is_whole(&second, p->second);
        kg_api_release(&first);
        kg_api_release(&second);
        kg_ids_release(&ids);
        kg_sessions_free(sessions);
    }
}

/* ---- sessions and their branches ---- */

#define ASKED(answer) TALK(USER "," SAYS("assistant", answer) "," NEXT)

/* A turn; its answer is kept unless NULL.   returns whether the turn was continued */
static bool turn(struct kg_ids *ids, const char *session, int32_t adapter,
                 const char *fields, const char *answer, bool whole)
{
    const int64_t before = stats().continued;
    struct kg_api_request r;
    prepare(&r, session, adapter, fields);
    ids->n = 0;
    if (answer)
        keep(ids, &r, answer, whole);
    kg_api_release(&r);
    return stats().continued > before;
}

static void answers_belong_to_one_session_of_one_model(void **state)
{
    static const struct {
        const char *session;
        int32_t adapter;
        bool continues;
    } rows[] = {{"s", 0, true},  {"s", 1, false}, {"t", 0, false},
                {"t", 1, false}, {"S", 0, false}, {"ss", 0, false}};
    struct kg_ids ids = {0};
    (void)state;
    NEED(kg_sessions_create(&sessions, 1 << 20, err));
    turn(&ids, "s", 0, TALK(USER), "hello" ENDED, false);
    turn(&ids, "t", 0, TALK(USER), "the" ENDED, false);
    turn(&ids, "s", 1, TALK(USER), "there" ENDED, false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(
            turn(&ids, rows[i].session, rows[i].adapter, ASKED("hello"), NULL, false),
            rows[i].continues);
    assert_true(turn(&ids, "t", 0, ASKED("the"), NULL, false));
    assert_true(turn(&ids, "s", 1, ASKED("there"), NULL, false));
    assert_int_equal(stats().kept, 3);
    kg_sessions_drop(sessions, "none");
    kg_sessions_drop(sessions, "s");
    assert_int_equal(stats().kept, 2);
    assert_false(turn(&ids, "s", 0, ASKED("hello"), NULL, false));
    assert_true(turn(&ids, "s", 1, ASKED("there"), NULL, false));
    kg_sessions_drop(sessions, "t");
    kg_sessions_drop(sessions, "t");
    assert_false(turn(&ids, "t", 0, ASKED("the"), NULL, false));
    assert_int_equal(stats().kept, 1);
    kg_ids_release(&ids);
    kg_sessions_free(sessions);
}

/* n answers to one turn, and a turn requested twice: the client's history tells which
 * answer it continues. */
static void branches_of_one_session_continue_where_they_were(void **state)
{
    static const char *const said[] = {"hello", "the", "there", "hell", "e", "lo"};
    enum { N = sizeof said / sizeof *said };
    struct kg_ids ids[N] = {0}, deep = {0};
    struct kg_api_request r;
    char fields[512];
    (void)state;
    NEED(kg_sessions_create(&sessions, 1 << 20, err));
    for (int i = 0; i < N; i++) {
        snprintf(fields, sizeof fields, "%s" ENDED, said[i]);
        turn(&ids[i], "s", 0, TALK(USER), fields, false);
    }
    for (int i = 0; i < 2 * N; i++) {
        snprintf(fields, sizeof fields, TALK(USER "," SAYS("assistant", "%s") "," NEXT),
                 said[i % N]);
        prepare(&r, "s", 0, fields);
        is_continued(&r, &ids[i % N]);
        deep.n = 0;
        keep(&deep, &r, i < N ? "hello" ENDED : "ll" ENDED, false);
        kg_api_release(&r);
        snprintf(fields, sizeof fields,
                 TALK(USER "," SAYS("assistant", "%s") "," NEXT "," SAYS("assistant",
                                                                         "%s") "," USER),
                 said[i % N], i < N ? "hello" : "ll");
        prepare(&r, "s", 0, fields);
        is_continued(&r, &deep);
        kg_api_release(&r);
    }
    assert_int_equal(stats().continued, 4 * N);
    for (int i = 0; i < N; i++)
        kg_ids_release(&ids[i]);
    kg_ids_release(&deep);
    kg_sessions_free(sessions);
}

/* The same text sampled twice. With the same ids it is one answer; with different ids
 * nothing says which of the two the client continues, so the turn is tokenised whole. */
static void one_text_of_two_tokenisations_is_not_guessed(void **state)
{
    struct kg_ids ids = {0};
    (void)state;
    NEED(kg_sessions_create(&sessions, 1 << 20, err));
    turn(&ids, "s", 0, TALK(USER), "hello" ENDED, false);
    const int64_t bytes = stats().bytes;
    turn(&ids, "s", 0, TALK(USER), "hello" ENDED, false);
    assert_int_equal(stats().bytes, bytes);
    assert_true(turn(&ids, "s", 0, ASKED("hello"), NULL, false));
    turn(&ids, "s", 0, TALK(USER), "hello" ENDED, true);
    assert_false(turn(&ids, "s", 0, ASKED("hello"), NULL, false));
    turn(&ids, "s", 0, TALK(USER), "there" ENDED, true);
    assert_true(turn(&ids, "s", 0, ASKED("there"), NULL, false));
    kg_ids_release(&ids);
    kg_sessions_free(sessions);
}

/* A conversation is held once: each turn adds only its own bytes. */
static void memory_is_that_of_the_last_turn(void **state)
{
    struct kg_str talk = {0};
    struct kg_ids ids = {0};
    int64_t grown[32];
    (void)state;
    NEED(kg_sessions_create(&sessions, 1 << 20, err));
    NEED(kg_str_puts(&talk, "\"messages\":[" USER "]", err));
    for (int i = 0; i < 32; i++) {
        const int64_t before = stats().bytes;
        assert_int_equal(turn(&ids, "s", 0, talk.data, "hello" ENDED, false), i > 0);
        grown[i] = stats().bytes - before;
        talk.len--;
        NEED(kg_str_puts(&talk, "," SAYS("assistant", "hello") "," NEXT "]", err));
    }
    assert_int_equal(grown[31], grown[1]);
    kg_str_release(&talk);
    kg_ids_release(&ids);
    kg_sessions_free(sessions);
}

/* The least recently used session is evicted whole, and counted. */
static void the_oldest_session_makes_room(void **state)
{
    struct kg_ids ids = {0};
    char name[8];
    (void)state;
    NEED(kg_sessions_create(&sessions, 1 << 20, err));
    turn(&ids, "0", 0, TALK(USER), "hello" ENDED, false);
    const size_t one = (size_t)stats().bytes;
    kg_sessions_free(sessions);
    NEED(kg_sessions_create(&sessions, 4 * one, err));
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "%c", 'a' + i);
        turn(&ids, name, 0, TALK(USER), "hello" ENDED, false);
        assert_true(turn(&ids, "a", 0, ASKED("hello"), NULL, false)); /* a stays in use */
        assert_int_equal(stats().kept, i < 4 ? i + 1 : 4);
        assert_int_equal(stats().evicted, i < 4 ? 0 : i - 3);
        assert_true(stats().bytes <= (int64_t)(4 * one));
    }
    assert_true(turn(&ids, "j", 0, ASKED("hello"), NULL, false));
    assert_false(turn(&ids, "b", 0, ASKED("hello"), NULL, false));
    kg_sessions_free(sessions);
    NEED(kg_sessions_create(&sessions, one - 1, err)); /* too small for one session */
    turn(&ids, "a", 0, TALK(USER), "hello" ENDED, false);
    assert_int_equal(stats().kept, 0);
    assert_int_equal(stats().bytes, 0);
    assert_int_equal(stats().evicted, 1);
    kg_ids_release(&ids);
    kg_sessions_free(sessions);
}

/* If the parent turn is evicted while its answer is being sampled, the answer is kept
 * whole. */
static void an_answer_outlives_the_session_of_its_prompt(void **state)
{
    struct kg_api_request r, next;
    struct kg_ids ids = {0}, other = {0};
    (void)state;
    NEED(kg_sessions_create(&sessions, 4096, err));
    turn(&ids, "s", 0, TALK(USER), "hello" ENDED, false);
    prepare(&r, "s", 0, ASKED("hello"));
    is_continued(&r, &ids);
    for (int i = 0; stats().evicted == 0; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        turn(&other, name, 0, TALK(USER), "the" ENDED, false);
    }
    ids.n = 0;
    keep(&ids, &r, "there" ENDED, false);
    prepare(&next, "s", 0,
            TALK(USER "," SAYS("assistant", "hello") "," NEXT "," SAYS(
                "assistant", "there") "," USER));
    is_continued(&next, &ids);
    kg_api_release(&r);
    kg_api_release(&next);
    kg_ids_release(&ids);
    kg_ids_release(&other);
    kg_sessions_free(sessions);
}

/* Whichever allocation fails, the call returns a status and the kept turns stay
 * intact. */
static void memory_that_runs_out_loses_no_more_than_the_turn(void **state)
{
    struct kg_api_request r;
    struct kg_ids ids = {0}, got = {0};
    struct kg_err why;
    size_t known;
    (void)state;
    NEED(kg_sessions_create(&sessions, 1 << 20, err));
    prepare(&r, "s", 0, TALK(USER));
    const struct kg_session_answer a = {.ids = r.prompts[0].ids.ids,
                                        .n = r.prompts[0].ids.n,
                                        .text = kg_str_text(&r.turn.text),
                                        .text_n = r.turn.text.len};
    kg_status status = KG_ENOMEM;
    for (uint64_t n = 1; status != KG_OK; n++) {
        kg_mem_fail_at(n);
        status = kg_sessions_keep(sessions, &r.turn, &a, &why);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
    }
    kg_api_release(&r);
    turn(&ids, "s", 0, TALK(USER), "hello" ENDED, false);
    prepare(&r, "s", 0, ASKED("hello"));
    known = 0;
    for (uint64_t n = 1; known == 0; n++) { /* until it is continued */
        got.n = 0;
        kg_mem_fail_at(n);
        status = kg_sessions_continue(sessions, &got, &known, &r.turn, &why);
        kg_mem_fail_at(0);
        assert_true(status == KG_ENOMEM ||
                    (status == KG_OK && (got.n > 0) == (known > 0)));
        known = status == KG_OK ? known : 0;
    }
    assert_int_equal(got.n, ids.n);
    assert_memory_equal(got.ids, ids.ids, ids.n * sizeof *ids.ids);
    kg_api_release(&r);
    kg_ids_release(&ids);
    kg_ids_release(&got);
    kg_sessions_free(sessions);
}

/* ---- over HTTP ---- */

static pthread_t thread;

static void start(size_t max_session_bytes)
{
    const struct kg_serve_opts opts = {.model = model,
                                       .tok = tok,
                                       .chat = chatml,
                                       .name = "m",
                                       .max_session_bytes = max_session_bytes};
    atomic_store(&stop, false);
    NEED(kg_serve_open(&server, &opts, err));
    assert_int_equal(pthread_create(&thread, NULL, serve_main, NULL), 0);
}

static void end(void)
{
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    kg_serve_close(server);
}

static int send_request(const char *what, const char *header, const char *body)
{
    struct kg_str text = {0};
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)kg_serve_port(server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    NEED(kg_str_printf(&text, err,
                       "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s"
                       "Content-Length: %zu\r\n\r\n%s",
                       what, header, strlen(body), body));
    assert_int_equal(send(fd, text.data, text.len, MSG_NOSIGNAL), text.len);
    kg_str_release(&text);
    return fd;
}

static void read_reply(struct kg_str *out, int fd)
{
    char bytes[4096];
    ssize_t n;
    kg_str_clear(out);
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        NEED(kg_str_append(out, bytes, (size_t)n, err));
    assert_int_equal(n, 0);
    close(fd);
}

/* Appends the numbers of every list of that name before `end`. */
static size_t numbers(int32_t *out, const char *body, const char *name, const char *end)
{
    size_t n = 0;
    while ((body = strstr(body, name)) != NULL && (end == NULL || body < end)) {
        body += strlen(name);
        while (*body != ']') {
            assert_true(n < MOST_IDS);
            out[n++] = (int32_t)strtol(body, NULL, 10);
            body += strcspn(body, ",]");
            body += *body == ',';
        }
    }
    return n;
}

/* Lets the model sample only these letters and the end. */
static void put_bias(struct kg_str *out)
{
    struct kg_ids ids = {0};
    const struct kg_encode_opts opts = {.parse_special = true, .continues = true};
    NEED(kg_str_puts(out, "\"logit_bias\":{", err));
    for (const char *c = "helo"; *c; c++)
        NEED(kg_tokenizer_encode(&ids, tok, c, 1, opts, err));
    for (size_t i = 0; i < ids.n; i++)
        NEED(kg_str_printf(out, err, "\"%d\":100,", ids.ids[i]));
    NEED(kg_str_printf(out, err, "\"%d\":98},\"stop_token_ids\":[%d],", END, END));
    kg_ids_release(&ids);
}

/* One client's conversation: its messages, and the ids of its last turn. */
struct talk {
    struct kg_str messages;
    int32_t prompt[MOST_IDS], said[MOST_IDS], before[MOST_IDS];
    size_t prompt_n, said_n, before_n; /* before: ids of the previous turn */
    int fd;
};

static void begin_turn(struct talk *t, int seed, const char *header, const char *fields)
{
    struct kg_str body = {0};
    NEED(kg_str_puts(&body, "{", err));
    put_bias(&body);
    NEED(kg_str_printf(&t->messages, err, "%s" USER, t->messages.len > 0 ? "," : ""));
    NEED(kg_str_printf(&body, err,
                       "%s\"return_token_ids\":true,\"seed\":%d,%s"
                       "\"messages\":[%s]}",
                       strstr(fields, "max_tokens") ? "" : "\"max_tokens\":24,", seed,
                       fields, t->messages.data));
    t->fd = send_request("POST /v1/chat/completions", header, body.data);
    kg_str_release(&body);
}

/* choice: the one that the client continues */
static void end_turn(struct talk *t, int choice)
{
    struct kg_str reply = {0};
    char index[32];
    memcpy(t->before, t->prompt, t->prompt_n * sizeof *t->prompt);
    memcpy(t->before + t->prompt_n, t->said, t->said_n * sizeof *t->said);
    t->before_n = t->prompt_n + t->said_n;
    read_reply(&reply, t->fd);
    assert_non_null(strstr(reply.data, " 200 OK"));
    t->prompt_n = numbers(t->prompt, reply.data, "\"prompt_token_ids\": [",
                          strstr(reply.data, "\"prompt_token_ids\": [") + 1);
    snprintf(index, sizeof index, "\"index\": %d", choice);
    const char *at = strstr(reply.data, index);
    snprintf(index, sizeof index, "\"index\": %d", choice + 1);
    assert_non_null(at);
    t->said_n = numbers(t->said, at, " \"token_ids\": [", strstr(at, index));
    NEED(kg_str_puts(&t->messages, ",{\"role\":\"assistant\",\"content\":\"", err));
    NEED(kg_tokenizer_decode(&t->messages, tok, t->said, t->said_n, true, err));
    NEED(kg_str_puts(&t->messages, "\"}", err));
    kg_str_release(&reply);
}

static bool goes_on(const struct talk *t)
{
    return t->prompt_n > t->before_n &&
           memcmp(t->prompt, t->before, t->before_n * sizeof *t->before) == 0;
}

static long metric(const char *name)
{
    struct kg_str page = {0};
    char line[64];
    read_reply(&page, send_request("GET /metrics", "", ""));
    snprintf(line, sizeof line, "\nkedge_%s ", name);
    const char *at = strstr(page.data, line);
    assert_non_null(at);
    const long value = strtol(at + strlen(line), NULL, 10);
    kg_str_release(&page);
    return value;
}

/* The same prompt sent as ids gets the same answer. */
static void is_answered_as_ids(const struct talk *t, int seed)
{
    struct kg_str body = {0}, reply = {0};
    int32_t said[MOST_IDS];
    NEED(kg_str_puts(&body, "{", err));
    put_bias(&body);
    NEED(kg_str_printf(&body, err,
                       "\"max_tokens\":24,\"return_token_ids\":true,\"seed\":%d,"
                       "\"prompt\":",
                       seed));
    NEED(kg_json_put_ints(&body, t->prompt, t->prompt_n, err));
    NEED(kg_str_putc(&body, '}', err));
    read_reply(&reply, send_request("POST /v1/completions", "", body.data));
    assert_int_equal(numbers(said, reply.data, " \"token_ids\": [", NULL), t->said_n);
    assert_memory_equal(said, t->said, t->said_n * sizeof *said);
    kg_str_release(&body);
    kg_str_release(&reply);
}

enum { TURNS = 4 };

/* For every way to name the session and to return the answer. */
static void turns_over_http_go_on(void **state)
{
    static const struct {
        const char *header, *fields;
        int choice;
        bool continues;
    } rows[] = {
        {"", "\"session_id\":\"a\",", 0, true},
        {"X-Session-ID: b\r\n", "", 0, true},
        {"x-session-id: c\r\n", "\"stream\":true,", 0, true},
        {"X-Session-ID: a\r\n", "\"session_id\":\"d\",", 0, true},
        {"", "\"session_id\":\"e\",\"n\":3,", 2, true},
        {"", "\"session_id\":\"f\",\"n\":2,", 0, true},
        {"", "\"session_id\":\"g\",\"temperature\":0,", 0, true},
        {"", "\"session_id\":\"h\",\"max_tokens\":2,", 0, true}, /* cut off */
        {"", "", 0, false},
        {"", "\"session_id\":null,\"stream\":true,", 0, false},
        {"", "\"session_id\":\"\",", 0, false},
    };
    enum { N = sizeof rows / sizeof *rows };
    static struct talk talks[N];
    int again = 0;
    (void)state;
    start(0);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < N; i++)
            begin_turn(&talks[i], 10 * i + turn, rows[i].header, rows[i].fields);
        for (int i = 0; i < N; i++)
            end_turn(&talks[i], rows[i].choice);
        for (int i = 0; i < N && turn > 0; i++) {
            again += !rows[i].continues && !goes_on(&talks[i]);
            if (rows[i].continues && !goes_on(&talks[i]))
                fail_msg("row %d, turn %d: expected it continued", i, turn);
        }
    }
    assert_true(again > 0); /* without a session the same text gives other ids */
    is_answered_as_ids(&talks[0], TURNS - 1);
    is_answered_as_ids(&talks[1], 10 + TURNS - 1);
    assert_int_equal(metric("session_turns_continued_total"), (N - 3) * (TURNS - 1));
    assert_int_equal(metric("session_branches_total"), 0);
    assert_int_equal(metric("sessions_kept"), N - 3);
    assert_int_equal(metric("sessions_evicted_total"), 0);
    end();
    for (int i = 0; i < N; i++) {
        kg_str_release(&talks[i].messages);
        talks[i] = (struct talk){0};
    }
}

/* A session keeps ids, not the cache. After a change of weights the same ids are computed
 * again with the new weights. */
static void changed_weights_go_on_from_the_ids(void **state)
{
    const float w = 3;
    struct talk *t = calloc(1, sizeof *t);
    (void)state;
    start(0);
    for (int turn = 0; turn < TURNS; turn++) {
        begin_turn(t, turn, "", "\"session_id\":\"s\",");
        end_turn(t, 0);
        assert_true(turn == 0 || goes_on(t));
        is_answered_as_ids(t, turn);
        for (int64_t i = 0; i < 64; i++)
            NEED(kg_slab_write(&model->master, model->params[0].offset + 64 * turn + i,
                               &w, 1, err));
        NEED(kg_model_refresh(model, err));
    }
    end();
    start(0); /* a new server knows no session */
    begin_turn(t, 0, "", "\"session_id\":\"s\",");
    end_turn(t, 0);
    assert_int_equal(metric("session_branches_total"), 1);
    assert_int_equal(metric("session_turns_continued_total"), 0);
    end();
    kg_str_release(&t->messages);
    free(t);
}

static void a_small_limit_drops_sessions_over_http(void **state)
{
    static struct talk talks[12];
    char field[32];
    (void)state;
    start(1500);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 12; i++) {
            snprintf(field, sizeof field, "\"session_id\":\"%d\",", i);
            begin_turn(&talks[i], i, "", field);
            end_turn(&talks[i], 0);
            assert_true(metric("session_bytes") <= 1500);
        }
    assert_int_equal(metric("session_branches_total"), 12);
    assert_int_equal(metric("sessions_evicted_total") + metric("sessions_kept"), 24);
    end();
    for (int i = 0; i < 12; i++)
        kg_str_release(&talks[i].messages);
}

static void a_session_id_is_a_short_text(void **state)
{
    static const char *const bads[] = {"\"session_id\":7,", "\"session_id\":[\"a\"],",
                                       "\"session_id\":{},", "\"session_id\":true,",
                                       "\"session_id\":\"a\\u0000b\","};
    struct kg_str reply = {0};
    char body[1024], header[512];
    (void)state;
    start(0);
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        snprintf(body, sizeof body, "{%s" TALK(USER) "}", bads[i]);
        read_reply(&reply, send_request("POST /v1/chat/completions", "", body));
        assert_non_null(strstr(reply.data, " 400 "));
        assert_non_null(strstr(reply.data, "\"param\": \"session_id\""));
    }
    for (int n = 255; n < 258; n++) {
        snprintf(header, sizeof header, "X-Session-ID: %0*d\r\n", n, 0);
        read_reply(&reply, send_request("POST /v1/chat/completions", header,
                                        "{\"max_tokens\":1," TALK(USER) "}"));
        assert_int_equal(strstr(reply.data, " 200 ") != NULL, n <= KG_SESSION_ID_BYTES);
    }
    assert_non_null(strstr(reply.data, "expected an id of at most 256 bytes, found 257"));
    end();
    kg_str_release(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sampled_is_continued_or_a_branch_begins),
        cmocka_unit_test(answers_belong_to_one_session_of_one_model),
        cmocka_unit_test(branches_of_one_session_continue_where_they_were),
        cmocka_unit_test(one_text_of_two_tokenisations_is_not_guessed),
        cmocka_unit_test(memory_is_that_of_the_last_turn),
        cmocka_unit_test(the_oldest_session_makes_room),
        cmocka_unit_test(an_answer_outlives_the_session_of_its_prompt),
        cmocka_unit_test(memory_that_runs_out_loses_no_more_than_the_turn),
        cmocka_unit_test(turns_over_http_go_on),
        cmocka_unit_test(changed_weights_go_on_from_the_ids),
        cmocka_unit_test(a_small_limit_drops_sessions_over_http),
        cmocka_unit_test(a_session_id_is_a_short_text),
    };
    return RUN_SHOWN(tests, setup, teardown);
}
