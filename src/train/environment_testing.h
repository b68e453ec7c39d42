/* An environment as a program, for tests of external episodes. It is the test program
 * itself, started with the arguments "play MODE THREADS" by episode.command, or with
 * "serve MODE THREADS PORTFILE" as the server of episode.url.
 *
 * What it plays depends only on its input, except in modes that are faults.
 * Included by *_test.c only.
 */
#ifndef KG_TRAIN_ENVIRONMENT_TESTING_H
#define KG_TRAIN_ENVIRONMENT_TESTING_H

#include "base/str.h"
#include "data/json.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "task/child.h"
#include "train/agent_testing.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes ROOT/train.jsonl with twelve prompts. */
static inline void put_questions(const char *root)
{
    struct kg_str text = {0};

    for (int i = 0; i < 12; i++)
        NEED(kg_str_printf(&text, err, "{\"prompt\": \"sea %d\", \"answer\": \"%d\"}\n",
                           i, i));
    put_file(root, "train.jsonl", text.data);
    kg_str_release(&text);
}

static const char *play_mode;
static pthread_mutex_t play_lock = PTHREAD_MUTEX_INITIALIZER;
/* in a server: the request that this thread plays, NULL after its reply */
static _Thread_local struct kg_http_exchange *play_asked;
static bool play_serves;

/* Ends the program with a message on stderr, for a bug in the test itself. */
#define PLAY_NEED(expr)                                                                  \
    do {                                                                                 \
        struct kg_err play_err = {0};                                                    \
        struct kg_err *err = &play_err;                                                  \
        if ((expr) != KG_OK) {                                                           \
            fprintf(stderr, "%s: %s\n", #expr, play_err.message);                        \
            _exit(9);                                                                    \
        }                                                                                \
    } while (0)

struct play {
    struct kg_json_doc task;
    struct kg_json_doc answer;
    int status; /* of the last request */
    int sampled;
};

static inline const char *play_text(const struct kg_json *v, const char *key)
{
    const char *text = kg_json_text(kg_json_get(v, key), NULL);

    return text ? text : "";
}

/* Whether the mode has no fault; then a refused request is an error. */
static inline bool play_is_sound(void)
{
    return kg_char_in("toi", play_mode[0]) && play_mode[1] != '\0';
}

static kg_status play_answered(void *user, const struct kg_http_answer *a,
                               struct kg_err *unused)
{
    struct play *x = user;

    (void)unused;
    x->status = a->status == KG_OK ? a->http_status : 0;
    kg_json_release(&x->answer);
    if (x->status == 200 && a->body[0] == '{') /* else a stream */
        PLAY_NEED(kg_json_parse(&x->answer, a->body, a->body_n, "answer", err));
    if (x->status != 200 && play_is_sound())
        fprintf(stderr, "%d: %s\n", a->http_status, a->body), _exit(9);
    return KG_OK;
}

/* Sends POST, or GET without a body, to the episode's url and `path`. For a path of
 * clients that send ids, the url's final /v1 is removed first. */
static inline void play_ask(struct play *x, const char *path, const char *body,
                            const char *key)
{
    struct kg_http_client_opts opts = {
        .bearer_key = key, .tries = 1, .timeout_ms = 100000};
    struct kg_http_client *c = NULL;
    char url[256];

    const char *base = play_text(x->task.root, "url");
    const int cut = strncmp(path, "/inference", 10) == 0 ? 3 : 0;

    snprintf(url, sizeof url, "%.*s%s", (int)strlen(base) - cut, base, path);
    PLAY_NEED(kg_http_client_open(&c, &opts, err));
    PLAY_NEED(kg_http_client_submit(c, url, body, body ? strlen(body) : 0, 0, err));
    while (kg_http_client_waiting(c) > 0)
        PLAY_NEED(kg_http_client_poll(c, 1000, play_answered, x, err));
    kg_http_client_close(c);
    x->sampled += (int)kg_json_int(
        kg_json_get(kg_json_get(x->answer.root, "usage"), "completion_tokens"), 0);
}

static inline const struct kg_json *play_choice(const struct play *x)
{
    return kg_json_at(kg_json_get(x->answer.root, "choices"), 0);
}

/* Writes a line, or replies as a server; a second reply to a request is dropped. */
static inline void play_say(const char *text)
{
    if (play_asked)
        kg_http_reply(play_asked, 200, "application/json", text, strlen(text));
    play_asked = NULL;
    if (play_serves)
        return;
    pthread_mutex_lock(&play_lock);
    fputs(text, stdout);
    fflush(stdout);
    pthread_mutex_unlock(&play_lock);
}

static inline void play_report(const struct play *x, const char *episode, double reward,
                               const char *more)
{
    char text[512];

    snprintf(text, sizeof text,
             "{\"episode\": \"%s\", \"reward\": %.17g, \"rewards\": {\"first\": 1}, "
             "\"metrics\": {\"sampled\": %d%s}}\n",
             episode, reward, x->sampled, more);
    play_say(text);
}

static inline void play_message(struct kg_str *to, const char *role, const char *text)
{
    PLAY_NEED(kg_str_printf(
        to, err, "%s{\"role\": \"%s\", \"content\": ", to->len ? ", " : "", role));
    PLAY_NEED(kg_json_put_string(to, text, strlen(text), err));
    PLAY_NEED(kg_str_puts(to, "}", err));
}

/* Turns of a chat. After a completion of odd length the conversation starts again with
 * another question, which makes a branch. */
static inline double play_talk(struct play *x, int turns)
{
    struct kg_str messages = {0}, body = {0};
    char words[32];
    double reward = 0;

    play_message(&messages, "user", play_text(x->task.root, "prompt"));
    for (int i = 0; i < turns; i++) {
        kg_str_clear(&body);
        PLAY_NEED(kg_str_printf(&body, err, "{\"messages\": [%s]}", messages.data));
        play_ask(x, "/chat/completions", body.data, play_text(x->task.root, "key"));
        if (x->status != 200)
            break;
        const struct kg_json *message = kg_json_get(play_choice(x), "message");
        const char *said = play_text(message, "content");
        const size_t n = strlen(said);

        for (const char *c = said; *c; c++)
            reward += *c == 'e' ? 1 : *c == 'a' ? 0.5 : 0;
        if (n % 2)
            kg_str_clear(&messages);
        else
            play_message(&messages, "assistant", said);
        snprintf(words, sizeof words, "%zu is", n);
        play_message(&messages, "user", words);
    }
    kg_str_release(&messages);
    kg_str_release(&body);
    return reward;
}

/* One turn of text. */
static inline double play_once(struct play *x)
{
    struct kg_str body = {0};

    PLAY_NEED(kg_str_puts(&body, "{\"prompt\": ", err));
    PLAY_NEED(kg_json_put_string(&body, play_text(x->task.root, "prompt"),
                                 strlen(play_text(x->task.root, "prompt")), err));
    PLAY_NEED(kg_str_puts(&body, ", \"max_tokens\": 100}", err));
    play_ask(x, "/completions", body.data, play_text(x->task.root, "key"));
    kg_str_release(&body);
    return 1;
}

/* Turns of ids, as a trainer's client sends them: all sampled ids, then more. */
static inline double play_ids(struct play *x, int turns)
{
    struct kg_str ids = {0}, body = {0};
    double reward = 0;

    for (const char *c = play_text(x->task.root, "prompt"); *c; c++)
        PLAY_NEED(kg_str_printf(&ids, err, "%s%d", ids.len ? ", " : "", *c));
    for (int i = 0; i < turns; i++) {
        kg_str_clear(&body);
        PLAY_NEED(kg_str_printf(&body, err,
                                "{\"token_ids\": [%s], \"sampling_params\": "
                                "{\"max_tokens\": 5, \"logprobs\": 1}}",
                                ids.data));
        play_ask(x, "/inference/v1/generate", body.data, play_text(x->task.root, "key"));
        if (x->status != 200)
            break;
        const struct kg_json *said = kg_json_get(play_choice(x), "token_ids");

        for (size_t k = 0; k < kg_json_size(said); k++) {
            int id = (int)kg_json_int(kg_json_at(said, k), 0);

            reward += id % 3 == 0;
            PLAY_NEED(kg_str_printf(&ids, err, ", %d", id));
        }
        PLAY_NEED(kg_str_printf(&ids, err, ", %d", 60 + i));
    }
    kg_str_release(&ids);
    kg_str_release(&body);
    return reward;
}

/* ---- a trace ---- */

struct play_turn {
    int ids[64], prompt, n; /* prompt, then completion */
    double logp[8];
    int mask[64];
    const char *node;
};

static inline void play_turn_ask(struct play *x, struct play_turn *t)
{
    struct kg_str body = {0};
    const struct kg_json *ids, *content;

    PLAY_NEED(kg_str_puts(&body, "{\"token_ids\": [", err));
    for (int i = 0; i < t->prompt; i++)
        PLAY_NEED(kg_str_printf(&body, err, i ? ", %d" : "%d", t->ids[i]));
    PLAY_NEED(kg_str_puts(
        &body, "], \"sampling_params\": {\"max_tokens\": 5, \"logprobs\": 1}}", err));
    play_ask(x, "/inference/v1/generate", body.data, play_text(x->task.root, "key"));
    kg_str_release(&body);
    ids = kg_json_get(play_choice(x), "token_ids");
    content = kg_json_get(kg_json_get(play_choice(x), "logprobs"), "content");
    t->n = (int)kg_json_size(ids);
    for (int i = 0; i < t->n; i++) {
        t->ids[t->prompt + i] = (int)kg_json_int(kg_json_at(ids, (size_t)i), -1);
        t->mask[t->prompt + i] = 1;
        t->logp[i] = kg_json_real(kg_json_get(kg_json_at(content, (size_t)i), "logprob"),
                                  1);
    }
}

/* Three turns: the second continues the first, the third is a branch. */
static inline void play_turns(struct play *x, struct play_turn t[3])
{
    static const char *const nodes[] = {"n0", "n1", "n2"};

    for (int i = 0; i < 3; i++) {
        t[i] = (struct play_turn){
            .ids = {101 + i, 110, 120}, .prompt = 3, .node = nodes[i]};
        if (i == 1) {
            memcpy(t[1].ids, t[0].ids, sizeof t[0].ids);
            t[1].prompt = t[0].prompt + t[0].n + 1;
            t[1].ids[t[1].prompt - 1] = 33;
        }
        play_turn_ask(x, &t[i]);
    }
}

static inline void play_put_ints(struct kg_str *out, const char *key, const int *x, int n)
{
    PLAY_NEED(kg_str_printf(out, err, ", \"%s\": [", key));
    for (int i = 0; i < n; i++)
        PLAY_NEED(kg_str_printf(out, err, i ? ", %d" : "%d", x[i]));
    PLAY_NEED(kg_str_puts(out, "]", err));
}

/* Reports reward 1 with turns [from, to) as a TrainingTrace. more: text after the list of
 * turns */
static inline void play_report_turns(const char *episode, const struct play_turn *t,
                                     int from, int to, const char *more)
{
    struct kg_str line = {0};

    PLAY_NEED(kg_str_printf(
        &line, err, "{\"episode\": \"%s\", \"reward\": 1, \"trace\": {\"turns\": [",
        episode));
    for (int i = from; i < to; i++) {
        PLAY_NEED(kg_str_printf(&line, err, "%s{\"node_id\": \"%s\"",
                                i > from ? ", " : "", t[i].node));
        play_put_ints(&line, "prompt_token_ids", t[i].ids, t[i].prompt);
        play_put_ints(&line, "completion_token_ids", t[i].ids + t[i].prompt, t[i].n);
        play_put_ints(&line, "loss_mask", t[i].mask, t[i].prompt + t[i].n);
        PLAY_NEED(kg_str_puts(&line, ", \"per_token_logps\": [", err));
        for (int k = 0; k < t[i].n; k++)
            PLAY_NEED(kg_str_printf(&line, err, k ? ", %.9g" : "%.9g", t[i].logp[k]));
        PLAY_NEED(kg_str_puts(&line, "]}", err));
    }
    PLAY_NEED(kg_str_printf(&line, err, "]%s}}\n", more));
    play_say(line.data);
    kg_str_release(&line);
}

/* Trains the first token of the second turn and all but the first of the branch. */
static inline void play_thin(struct play *x, const char *episode)
{
    struct play_turn t[3];

    play_turns(x, t);
    for (int i = 1; i < t[1].n; i++)
        t[1].mask[t[1].prompt + i] = 0;
    t[2].mask[t[2].prompt] = 0;
    play_report_turns(episode, t, 1, 3, "");
}

/* A trace with one lie, or none. */
static inline void play_claim(struct play *x, const char *episode)
{
    const char *mode = play_mode + strlen("claim-"), *more = "";
    struct play_turn t[3];
    int from = 0, to = 3;

    play_turns(x, t);
    if (strcmp(mode, "id") == 0)
        t[1].ids[t[1].prompt] = (t[1].ids[t[1].prompt] + 1) % 100;
    if (strcmp(mode, "prompt") == 0)
        t[2].ids[1]++;
    if (strcmp(mode, "logp") == 0)
        t[0].logp[0] -= 0.01;
    if (strcmp(mode, "rounded") == 0)
        t[0].logp[0] += 2e-5;
    if (strcmp(mode, "short") == 0 || strcmp(mode, "long") == 0) {
        t[2].n += mode[0] == 's' ? -1 : 1;
        t[2].mask[t[2].prompt + t[2].n - 1] = 1;
    }
    if (strcmp(mode, "mask") == 0)
        t[1].mask[2] = 1;
    if (strcmp(mode, "bit") == 0)
        t[1].mask[t[1].prompt] = 2;
    if (strcmp(mode, "twice") == 0)
        t[1] = t[0], t[1].node = "n1";
    if (strcmp(mode, "node") == 0)
        t[1].node = "n2";
    if (strcmp(mode, "unnamed") == 0)
        t[1].node = "";
    if (strcmp(mode, "version") == 0)
        more = ", \"schema_version\": 2";
    if (strcmp(mode, "zero") == 0)
        memset(t[0].mask, 0, sizeof t[0].mask), to = 1;
    if (strcmp(mode, "nothing") == 0)
        to = 0;
    if (strcmp(mode, "branch") == 0)
        from = 2;
    play_report_turns(episode, t, from, to, more);
}

static void play_fault(struct play *x, const char *episode); /* of each test; reports */

static inline void play_episode(const char *line, size_t n)
{
    struct play x = {0};
    const char *episode;
    double reward = 0;

    PLAY_NEED(kg_json_parse(&x.task, line, n, "task", err));
    episode = play_text(x.task.root, "episode");
    if (strcmp(play_mode, "talk") == 0)
        reward = play_talk(&x, 3);
    else if (strcmp(play_mode, "once") == 0)
        reward = play_once(&x);
    else if (strcmp(play_mode, "ids") == 0)
        reward = play_ids(&x, 3);
    if (strcmp(play_mode, "thin") == 0)
        play_thin(&x, episode);
    else if (play_is_sound())
        play_report(&x, episode, reward, "");
    else
        play_fault(&x, episode);
    kg_json_release(&x.task);
    kg_json_release(&x.answer);
}

static void *play_thread(void *user)
{
    static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
    char *line = NULL;
    size_t capacity = 0;

    (void)user;
    for (;;) {
        pthread_mutex_lock(&reading);
        ssize_t n = getline(&line, &capacity, stdin);
        pthread_mutex_unlock(&reading);
        if (n < 0)
            break;
        play_episode(line, (size_t)n);
    }
    free(line);
    return NULL;
}

/* Requests that wait for a thread of the server. */
static struct {
    struct kg_http_exchange *x[256];
    int n, taken;
    pthread_mutex_t lock;
    pthread_cond_t more;
} play_queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static void play_on_run(void *user, struct kg_http_exchange *x)
{
    (void)user;
    pthread_mutex_lock(&play_queue.lock);
    play_queue.x[play_queue.n++ % 256] = x;
    pthread_cond_signal(&play_queue.more);
    pthread_mutex_unlock(&play_queue.lock);
}

static void *play_served(void *user)
{
    (void)user;
    for (;;) {
        struct kg_str body = {0};
        const char *text;
        size_t n;

        pthread_mutex_lock(&play_queue.lock);
        while (play_queue.taken == play_queue.n)
            pthread_cond_wait(&play_queue.more, &play_queue.lock);
        play_asked = play_queue.x[play_queue.taken++ % 256];
        pthread_mutex_unlock(&play_queue.lock);
        text = kg_http_body(play_asked, &n);
        PLAY_NEED(kg_str_append(&body, text, n, err));
        play_episode(body.data, body.len);
        kg_str_release(&body);
    }
    return NULL;
}

/* Starts the server and writes its port to port_file. */
static inline void play_listen(const char *port_file)
{
    static const struct kg_http_route routes[] = {
        {"POST", "/run", play_on_run, "an episode"}, {NULL, NULL, NULL, NULL}};
    struct kg_http_server_opts opts = {.routes = routes};
    struct kg_http_server *s = NULL;
    char port[16];

    play_serves = true;
    PLAY_NEED(kg_http_server_start(&s, &opts, err));
    snprintf(port, sizeof port, "%d", kg_http_server_port(s));
    PLAY_NEED(kg_file_write_atomic(port_file, port, strlen(port), err));
}

/* Plays as a program, or with port_file as a server. */
static inline int play_main(const char *mode, int threads, const char *port_file)
{
    pthread_t all[16];

    play_mode = mode;
    if (port_file)
        play_listen(port_file);
    for (int i = 0; i < threads && i < 16; i++)
        if (pthread_create(&all[i], NULL, port_file ? play_served : play_thread, NULL) !=
            0)
            return 9;
    for (int i = 0; i < threads && i < 16; i++)
        pthread_join(all[i], NULL);
    return 0;
}

/* out <- episode.command=... with this program */
static inline void play_command(char *out, size_t n, const char *mode, int threads)
{
    char self[1024];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    self[length > 0 ? length : 0] = '\0';
    snprintf(out, n, "episode.command='%s' play %s %d", self, mode, threads);
}

/* out <- episode.url=... with this program as a server, which the caller must kill */
static inline struct kg_task_child *play_server(char *out, size_t n, const char *root,
                                                const char *mode, int threads)
{
    char self[1024], line[1400], port_file[256];
    struct kg_task_command command = {.command = line};
    struct kg_task_child *server = NULL;
    struct kg_str port = {0};
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    self[length > 0 ? length : 0] = '\0';
    snprintf(port_file, sizeof port_file, "%s/port", root);
    snprintf(line, sizeof line, "exec '%s' serve %s %d %s", self, mode, threads,
             port_file);
    (void)unlink(port_file);
    NEED(kg_task_child_start(&server, &command, err));
    for (int i = 0; i < 10000 && !kg_file_exists(port_file); i++)
        usleep(2000);
    NEED(kg_file_read(&port, port_file, 16, err));
    snprintf(out, n, "episode.url=http://127.0.0.1:%s/run", port.data);
    kg_str_release(&port);
    return server;
}

#endif
