/* Two users of one server: each sees only their own objects, runs in turn with the
 * others, and has a share of every limit. */
#define DIR "build/test-tinker-users"
#include "tinker/tinker_client_testing.h"

#include "net/http_keys.h"

#define KEY(x) "tml-key-of-" x "-0123456789"
static const char ann[] = "X-API-Key: " KEY("ann") "\r\n";
static const char bob[] = "X-API-Key: " KEY("bob") "\r\n";
static const struct kg_http_keys keys = {{{"ann", KEY("ann")}, {"bob", KEY("bob")}}, 2};

static void start_users(int max_models, int max_requests)
{
    const struct kg_serve_opts opts = {.model = model,
                                       .tok = tok,
                                       .name = "digits",
                                       .max_len = 64,
                                       .max_batch = 4,
                                       .keys = &keys,
                                       .max_models = max_models,
                                       .max_requests = max_requests};
    NEED(kg_file_remove_tree(DIR "/checkpoints", err));
    NEED(kg_tinker_open(&server, &opts, DIR "/checkpoints", err));
}

static void stop_users(void)
{
    whose = "";
    close_server();
}

/* Gives ann a session, a model with one update, a checkpoint, and weights to sample
 * from. */
static void begin_ann(void)
{
    char body[512], file[256], id[32];
    struct answer a = {0};
    whose = ann;
    open_session();
    open_model(4);
    learn_once(1);
    save(file, 3, "one");
    snprintf(body, sizeof body, "{\"model_id\": \"%s\", \"seq_id\": 4, \"path\": \"s\"}",
             model_id);
    future(id, "save_weights_for_sampler", body);
    done(id, "sampler_weights/s");
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"sampling_session_seq_id\": 1, \"model_path\": "
             "\"tinker://%s/sampler_weights/s\"}",
             session, model_id);
    post(&a, "create_sampling_session", body);
    assert_int_equal(a.status, 200);
    kg_str_release(&a.body);
}

/* ---- another user's objects appear not to exist ---- */

/* Stands for a session of the user who sends the request. */
#define OWN "ownownownownown!"

/* Replaces each "SESSION" in a text by a session id. */
static void fill(struct kg_str *to, const char *text, const char *id)
{
    static const char word[] = "SESSION";
    kg_str_clear(to);
    for (const char *at; (at = strstr(text, word)); text = at + sizeof word - 1) {
        NEED(kg_str_append(to, text, (size_t)(at - text), err));
        NEED(kg_str_puts(to, id, err));
    }
    NEED(kg_str_puts(to, text, err));
}

/* Sends a request with a session's id; a gets the reply, or the result of its future,
 * with that id as "SESSION". */
static void answer_of(struct answer *a, const char *method, const char *path,
                      const char *body, const char *id)
{
    struct kg_str at = {0}, filled = {0}, said = {0};
    char number[32] = "";
    fill(&at, path, id);
    fill(&filled, body, id);
    char *own = strstr(kg_str_text(&filled), OWN);
    if (own) {
        open_session();
        memcpy(own, session, sizeof OWN - 1);
    }
    ask(a, method, at.data, filled.data, filled.len);
    if (a->status == 200 && strstr(kg_str_text(&a->body), "\"request_id\"")) {
        text_of(number, sizeof number, a, "request_id");
        retrieve(a, number);
    }
    for (const char *from = kg_str_text(&a->body), *found;; from = found + strlen(id)) {
        found = strstr(from, id);
        NEED(kg_str_append(&said, from, found ? (size_t)(found - from) : strlen(from),
                           err));
        if (!found)
            break;
        NEED(kg_str_puts(&said, "SESSION", err));
    }
    kg_str_release(&a->body);
    a->body = said;
    kg_str_release(&at);
    kg_str_release(&filled);
}

#define PATH "\"tinker://SESSION:train:4/"
#define ASK(path, fields)                                                                \
    {                                                                                    \
        "POST", "/api/v1/" path, "{" fields "}"                                          \
    }
static const struct {
    const char *method, *path, *body;
} attacks[] = {
    ASK("session_heartbeat", "\"session_id\": \"SESSION\""),
    ASK("create_model", "\"session_id\": \"SESSION\", \"model_seq_id\": 9"),
    ASK("create_model", "\"session_id\": \"SESSION\", \"model_seq_id\": 4"),
    ASK("load_weights",
        "\"session_id\": \"SESSION\", \"model_seq_id\": 9, \"path\": " PATH
        "weights/one\""),
    ASK("load_weights", "\"session_id\": \"" OWN
                        "\", \"model_seq_id\": 9, \"path\": " PATH "weights/one\""),
    ASK("load_weights",
        "\"session_id\": \"" OWN "\", \"model_seq_id\": 8, \"optimizer\": "
        "true, \"path\": " PATH "weights/one\""),
    ASK("create_sampling_session",
        "\"session_id\": \"SESSION\", \"sampling_session_seq_id\": 7, \"base_model\": "
        "\"digits\""),
    ASK("create_sampling_session",
        "\"session_id\": \"" OWN "\", \"sampling_session_seq_id\": "
        "7, \"model_path\": " PATH "weights/one\""),
    ASK("create_sampling_session",
        "\"session_id\": \"" OWN "\", \"sampling_session_seq_id\": "
        "7, \"model_path\": " PATH "sampler_weights/s\""),
    ASK("get_info", "\"model_id\": \"SESSION:train:4\""),
    ASK("weights_info", "\"tinker_path\": " PATH "weights/one\""),
    ASK("weights_info", "\"tinker_path\": " PATH "sampler_weights/s\""),
    ASK("optim_step", "\"model_id\": \"SESSION:train:4\", \"seq_id\": 5"),
    ASK("optim_step", "\"model_id\": \"SESSION:train:4\", \"seq_id\": 2"),
    ASK("save_weights", "\"model_id\": \"SESSION:train:4\", \"seq_id\": 3, \"path\": "
                        "\"one\", \"overwrite\": true"),
    ASK("save_weights_for_sampler", "\"model_id\": \"SESSION:train:4\", \"seq_id\": 6"),
    ASK("unload_model", "\"model_id\": \"SESSION:train:4\""),
    ASK("asample", "\"sampling_session_id\": \"SESSION:sample:1\", \"seq_id\": 1, "
                   "\"prompt\": {\"chunks\": [{\"tokens\": [3, 4]}]}"),
    {"GET", "/api/v1/samplers/SESSION:sample:1", ""},
    {"GET", "/api/v1/training_runs/SESSION:train:4", ""},
    {"GET", "/api/v1/training_runs/SESSION:train:4/checkpoints", ""},
};

static void learns(struct answer *a, const char *id)
{
    struct kg_str s = {0};
    char model_of[KG_TINKER_ID + 16], number[32];
    snprintf(model_of, sizeof model_of, "%s:train:4", id);
    put_head(&s, model_of, 1, "cross_entropy");
    put_supervised(&s, tokens, 8);
    learn(number, &s);
    retrieve(a, number);
    kg_str_release(&s);
}

/* Each request with ann's id gets bob the same answer as with an id that never
 * existed. */
static void the_id_of_another_is_an_unknown_one(void **state)
{
    static const char unknown[] = "0123456789abcdef";
    char hers[KG_TINKER_ID], model_of_hers[KG_TINKER_ID + 16], file[256];
    struct answer a = {0}, b = {0};
    (void)state;
    start_users(0, 0);
    begin_ann();
    memcpy(hers, session, sizeof hers);
    memcpy(model_of_hers, model_id, sizeof hers);
    whose = bob;
    open_session();
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        const char *body = attacks[i].body;
        answer_of(&a, attacks[i].method, attacks[i].path, body, hers);
        answer_of(&b, attacks[i].method, attacks[i].path, body, unknown);
        if (a.status != b.status || strcmp(kg_str_text(&a.body), kg_str_text(&b.body)))
            fail_msg("%s %s: %d %s, of an unknown one %d %s", attacks[i].path, body,
                     a.status, kg_str_text(&a.body), b.status, kg_str_text(&b.body));
        if (a.status == 200 && !strstr(kg_str_text(&a.body), "\"error\""))
            fail_msg("%s %s: %s", attacks[i].path, body, kg_str_text(&a.body));
    }
    learns(&a, hers);
    learns(&b, unknown);
    assert_true(has(&a.body, "no model") && has(&b.body, "no model"));
    assert_int_equal(a.body.len, b.body.len);
    post(&a, "retrieve_future", "{\"request_id\": \"1000\"}");
    assert_int_equal(a.status, 410);
    whose = ann; /* nothing of ann's was changed */
    memcpy(session, hers, sizeof hers);
    memcpy(model_id, model_of_hers, sizeof hers);
    learn_once(5);
    save(file, 7, "two");
    kg_str_release(&a.body);
    kg_str_release(&b.body);
    stop_users();
}

/* Futures are numbered for each user. */
static void a_future_is_its_users(void **state)
{
    struct answer a = {0};
    (void)state;
    start_users(0, 0);
    begin_ann();
    retrieve(&a, "1");
    assert_int_equal(a.status, 200);
    whose = bob;
    retrieve(&a, "1");
    assert_int_equal(a.status, 410);
    open_session();
    open_model(2);
    retrieve(&a, "1");
    assert_true(has(&a.body, session));
    retrieve(&a, "2");
    assert_int_equal(a.status, 410);
    kg_str_release(&a.body);
    stop_users();
}

static void lists_have_ones_own(void **state)
{
    struct answer a = {0};
    char hers[KG_TINKER_ID];
    (void)state;
    start_users(0, 0);
    begin_ann();
    memcpy(hers, session, sizeof hers);
    whose = bob;
    ask(&a, "GET", "/api/v1/training_runs", "", 0);
    assert_string_equal(a.body.data,
                        "{\"training_runs\": [], \"cursor\": {\"offset\": 0, "
                        "\"limit\": 0, \"total_count\": 0}}");
    open_session();
    open_model(2);
    ask(&a, "GET", "/api/v1/training_runs", "", 0);
    assert_true(has(&a.body, session) && has(&a.body, "\"model_owner\": \"bob\""));
    assert_false(has(&a.body, hers));
    whose = ann;
    ask(&a, "GET", "/api/v1/training_runs", "", 0);
    assert_true(has(&a.body, hers) && has(&a.body, "\"model_owner\": \"ann\""));
    assert_false(has(&a.body, session));
    assert_true(has(&a.body, "\"total_count\": 1"));
    kg_str_release(&a.body);
    stop_users();
}

/* ---- paths ---- */

/* The folder has exactly these entries. */
static void has_only(const char *dir, const char *const *want, size_t n_want)
{
    char **names;
    size_t n;
    NEED(kg_file_list(&names, &n, dir, err));
    if (n != n_want)
        fail_msg("%s: expected %zu entries, found %zu", dir, n_want, n);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(names[i], want[i]);
    kg_file_names_free(names, n);
}

static void no_path_leads_to_another_user(void **state)
{
    static const char *const names[] = {
        "../../../ann/x", "..",     ".",   "a/b",      "/etc/x", ".x",
        "x\\u0000y",      "%2e%2e", "a b", "..\\\\ann"};
    static const char *const heads[] = {"tinker://../ann/SESSION:train:4",
                                        "tinker://..",
                                        "tinker://ann",
                                        "tinker://ann/SESSION:train:4",
                                        "tinker://./../ann/SESSION:train:4",
                                        "tinker://users/ann/SESSION:train:4",
                                        "tinker:///SESSION:train:4",
                                        "file://SESSION:train:4",
                                        "tinker://..%2fann%2fSESSION:train:4"};
    static const char *const top[] = {"lock", "users"}, *const users[] = {"ann", "bob"};
    char body[512], hers[KG_TINKER_ID], mine[256], id[32];
    struct answer a = {0};
    struct kg_str head = {0};
    int64_t seq = 1;
    (void)state;
    start_users(0, 0);
    begin_ann();
    memcpy(hers, session, sizeof hers);
    whose = bob;
    open_session();
    open_model(4);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int k = 0; k < 2; k++) {
            snprintf(body, sizeof body,
                     "{\"model_id\": \"%s\", \"seq_id\": %lld, \"path\": \"%s\"}",
                     model_id, (long long)seq, names[i]);
            post(&a, k ? "save_weights" : "save_weights_for_sampler", body);
            if (a.status != 200)
                continue; /* not valid JSON */
            text_of(id, sizeof id, &a, "request_id");
            done(id, "path: expected a name of letters");
            seq++;
        }
    }
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        fill(&head, heads[i], hers);
        snprintf(body, sizeof body, "{\"tinker_path\": \"%s/weights/one\"}", head.data);
        post(&a, "weights_info", body);
        if (a.status != 422 && a.status != 404)
            fail_msg("%s: %d %s", body, a.status, kg_str_text(&a.body));
        snprintf(body, sizeof body,
                 "{\"session_id\": \"%s\", \"sampling_session_seq_id\": %zu, "
                 "\"model_path\": \"%s/sampler_weights/s\"}",
                 session, i, head.data);
        post(&a, "create_sampling_session", body);
        if (a.status != 422 && a.status != 404)
            fail_msg("%s: %d %s", body, a.status, kg_str_text(&a.body));
    }
    has_only(DIR "/checkpoints", top, 2);
    has_only(DIR "/checkpoints/users", users, 2);
    snprintf(mine, sizeof mine, DIR "/checkpoints/users/bob/%s", model_id);
    has_only(mine, (const char *const[]){"run.json"}, 1);
    kg_str_release(&head);
    kg_str_release(&a.body);
    stop_users();
}

/* Samples from a user's weights `path`, in sampling session `number`. */
static void draw(struct answer *a, const char *path, int number)
{
    char body[512], id[32];
    open_session();
    snprintf(body, sizeof body,
             "{\"session_id\": \"%s\", \"sampling_session_seq_id\": %d, "
             "\"model_path\": \"%s\"}",
             session, number, path);
    post(a, "create_sampling_session", body);
    assert_int_equal(a->status, 200);
    snprintf(body, sizeof body,
             "{\"sampling_session_id\": \"%s:sample:%d\", \"seq_id\": 1, \"prompt\": "
             "{\"chunks\": [{\"tokens\": [3, 10]}]}, \"sampling_params\": "
             "{\"max_tokens\": 4, \"seed\": 7}}",
             session, number);
    future(id, "asample", body);
    retrieve(a, id);
    assert_false(has(&a->body, "error"));
}

/* An administrator copied ann's model to bob, then ann overwrote her weights: the same
 * path must give each user their own. */
static void one_path_of_two_users_has_the_weights_of_each(void **state)
{
    struct answer old = {0}, hers = {0}, his = {0};
    char path[256], body[256], command[512], id[32];
    (void)state;
    start_users(0, 0);
    begin_ann();
    snprintf(path, sizeof path, "tinker://%s/sampler_weights/s", model_id);
    draw(&old, path, 1);
    snprintf(command, sizeof command,
             "cp -r " DIR "/checkpoints/users/ann/%s " DIR "/checkpoints/users/bob/",
             model_id);
    assert_int_equal(system(command), 0);
    learn_once(5);
    snprintf(body, sizeof body,
             "{\"model_id\": \"%s\", \"seq_id\": 7, \"path\": \"s\", \"overwrite\": "
             "true}",
             model_id);
    future(id, "save_weights_for_sampler", body);
    done(id, "sampler_weights/s");
    draw(&hers, path, 2);
    whose = bob;
    draw(&his, path, 3);
    assert_int_equal(his.body.len, old.body.len);
    assert_memory_equal(his.body.data, old.body.data, old.body.len);
    assert_true(hers.body.len != old.body.len ||
                memcmp(hers.body.data, old.body.data, old.body.len) != 0);
    kg_str_release(&old.body);
    kg_str_release(&hers.body);
    kg_str_release(&his.body);
    stop_users();
}

/* ---- shares ---- */

static void a_user_has_at_most_so_many_models(void **state)
{
    char body[256], id[32];
    (void)state;
    start_users(2, 0);
    begin_ann();
    open_model(2);
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body,
                 "{\"session_id\": \"%s\", \"model_seq_id\": %d, \"lora_config\": "
                 "{\"rank\": 1}}",
                 session, 7 + i);
        future(id, "create_model", body);
        done(id, i == 0 ? "at most 2 models of a user in training at once (--max-models)"
                        : "\"model_id\": ");
        snprintf(body, sizeof body, "{\"model_id\": \"%s\"}", model_id);
        future(id, "unload_model", body);
        done(id, "unload_model");
    }
    whose = bob;
    open_session();
    open_model(2);
    open_model(3);
    stop_users();
}

/* Ann's requests that wait for a missing one fill her share of the queue, not bob's. */
static void a_full_queue_is_that_of_its_user(void **state)
{
    char body[256], id[32];
    struct answer a = {0};
    (void)state;
    start_users(0, 8);
    begin_ann();
    for (int i = 0; i < 4; i++)
        step(id, 7 + i, "\"learning_rate\": 0.01");
    snprintf(body, sizeof body, "{\"model_id\": \"%s\", \"seq_id\": 11}", model_id);
    post(&a, "optim_step", body);
    assert_int_equal(a.status, 429);
    assert_true(has(&a.body, "4 requests are open"));
    whose = bob;
    open_session();
    open_model(4);
    learn_once(1);
    kg_str_release(&a.body);
    stop_users();
}

/* ---- turns ---- */

/* A queue without a worker; its jobs wait for no other job. */
static struct kg_tinker queue;
static struct kg_tinker_user who[3];

static void begin_queue(void)
{
    queue = (struct kg_tinker){.users = who, .n_users = 3};
    queue.opts.max_requests = 3000;
    queue.opts.max_held_bytes = 3 << 20;
    pthread_mutex_init(&queue.lock, NULL);
    pthread_cond_init(&queue.due, NULL);
    for (int i = 0; i < 3; i++)
        who[i] = (struct kg_tinker_user){.t = &queue};
}

static void add_jobs(int user, int n)
{
    static int64_t seq;
    for (int i = 0; i < n; i++) {
        struct kg_err error;
        struct kg_tinker_job *job = kg_mem_calloc(1, sizeof *job, "a job", &error);
        int64_t id;
        assert_non_null(job);
        job->user = &who[user];
        job->seq = ++seq;
        NEED(kg_tinker_queue(&id, job, err));
    }
}

/* Runs the next n jobs, which take their user's seconds; text names the users, as in
 * "AAB". */
static void turns(char *text, size_t n, const double seconds[3])
{
    for (size_t i = 0; i < n; i++) {
        struct kg_tinker_job *job = kg_tinker_next(&queue);
        assert_non_null(job);
        kg_tinker_take(job);
        kg_tinker_charge(job->user, seconds[job->user - who]);
        text[i] = (char)('A' + (job->user - who));
        kg_tinker_finish(job, KG_OK, NULL);
    }
    text[n] = '\0';
}

static void users_take_turns_by_the_seconds_that_they_compute(void **state)
{
    char text[32];
    (void)state;
    begin_queue();
    add_jobs(0, 500);
    add_jobs(1, 4);
    turns(text, 9, (double[]){1, 1, 1});
    assert_string_equal(text, "ABABABABA"); /* although A had 500 jobs before */
    add_jobs(1, 20);
    turns(text, 8, (double[]){1, 3, 1}); /* one job of B costs as much as three of A */
    assert_string_equal(text, "BAABAAAB");
    kg_tinker_forget(&queue);
}

/* A user who comes late gets no credit for the time before, and no debt. */
static void who_comes_late_begins_with_the_present(void **state)
{
    char text[32];
    (void)state;
    begin_queue();
    add_jobs(0, 100);
    turns(text, 20, (double[]){5, 5, 5});
    add_jobs(2, 10);
    turns(text, 6, (double[]){5, 5, 5});
    assert_true(strcmp(text, "CACACA") == 0 || strcmp(text, "CCACAC") == 0);
    add_jobs(1, 2);
    turns(text, 6, (double[]){5, 5, 5});
    int n = 0;
    for (int i = 0; i < 6; i++)
        n += text[i] == 'B';
    assert_int_equal(n, 2);
    kg_tinker_forget(&queue);
}

static int64_t open_of(int user)
{
    pthread_mutex_lock(&server->lock);
    const int64_t n = server->users[user].n_open;
    pthread_mutex_unlock(&server->lock);
    return n;
}

/* Bob's update does not wait for all of ann's samples, and his sample is not behind
 * hers. */
static void nobody_waits_for_all_that_another_samples(void **state)
{
    char body[512], id[32];
    struct answer a = {0};
    (void)state;
    start_users(0, 0);
    whose = bob;
    open_session();
    open_model(4);
    char his[KG_TINKER_ID];
    memcpy(his, session, sizeof his);
    for (int k = 0; k < 2; k++) {
        whose = k ? bob : ann;
        if (!k)
            open_session();
        snprintf(body, sizeof body,
                 "{\"session_id\": \"%s\", \"sampling_session_seq_id\": 1, "
                 "\"base_model\": \"digits\"}",
                 k ? his : session);
        post(&a, "create_sampling_session", body);
        assert_int_equal(a.status, 200);
    }
    whose = ann;
    for (int i = 0; i < 300; i++) {
        snprintf(body, sizeof body,
                 "{\"sampling_session_id\": \"%s:sample:1\", \"seq_id\": %d, "
                 "\"num_samples\": 4, \"prompt\": {\"chunks\": [{\"tokens\": [3]}]}, "
                 "\"sampling_params\": {\"max_tokens\": 60, \"stop\": []}}",
                 session, i);
        future(id, "asample", body);
    }
    whose = bob;
    learn_once(1);
    assert_true(open_of(0) > 0);
    snprintf(body, sizeof body,
             "{\"sampling_session_id\": \"%s:sample:1\", \"seq_id\": 0, "
             "\"num_samples\": 5, \"prompt\": {\"chunks\": [{\"tokens\": [3]}]}}",
             his);
    future(id, "asample", body);
    done(id, "num_samples: expected 1 to 4, found 5"); /* --max-batch */
    snprintf(
        body, sizeof body,
        "{\"sampling_session_id\": \"%s:sample:1\", \"seq_id\": 1, \"prompt\": "
        "{\"chunks\": [{\"tokens\": [3]}]}, \"sampling_params\": {\"max_tokens\": 2}}",
        his);
    future(id, "asample", body);
    done(id, "");
    assert_true(open_of(0) > 0);
    kg_str_release(&a.body);
    stop_users();
}

/* Whichever allocation fails at the start: nothing leaks, and the folder stays free. */
static void a_server_without_memory_does_not_start(void **state)
{
    const struct kg_serve_opts opts = {
        .model = model, .tok = tok, .name = "digits", .max_len = 64, .keys = &keys};
    const uint64_t before = kg_mem_current_bytes();
    struct kg_err error;
    kg_status status = KG_ENOMEM;
    (void)state;
    for (uint64_t n = 1; status != KG_OK; n++) {
        kg_mem_fail_at(n);
        status = kg_tinker_open(&server, &opts, DIR "/checkpoints", &error);
        kg_mem_fail_at(0);
        if (status != KG_OK && status != KG_ENOMEM)
            fail_msg("allocation %d: %s", (int)n, error.message);
        if (status != KG_OK)
            assert_int_equal(kg_mem_current_bytes(), before);
    }
    stop_users();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_without_memory_does_not_start),
        cmocka_unit_test(the_id_of_another_is_an_unknown_one),
        cmocka_unit_test(a_future_is_its_users),
        cmocka_unit_test(lists_have_ones_own),
        cmocka_unit_test(no_path_leads_to_another_user),
        cmocka_unit_test(one_path_of_two_users_has_the_weights_of_each),
        cmocka_unit_test(a_user_has_at_most_so_many_models),
        cmocka_unit_test(a_full_queue_is_that_of_its_user),
        cmocka_unit_test(users_take_turns_by_the_seconds_that_they_compute),
        cmocka_unit_test(who_comes_late_begins_with_the_present),
        cmocka_unit_test(nobody_waits_for_all_that_another_samples),
    };
    return cmocka_run_group_tests(tests, load_digits, free_digits);
}
