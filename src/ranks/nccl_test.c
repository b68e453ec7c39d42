/* NCCL through a fake library: how the library is found, which missing parts are refused,
 * that each rank receives what was sent to it, and that all ranks learn of one rank's
 * failure.
 */
#include "ranks/message.h"
#include "ranks/nccl.h"

#include "base/clock.h"
#include "base/folder_testing.h"
#include "emu/far.h"
#include "emu/nccl_testing.h"
#include "ranks/lost.h"
#include "ranks/ranks_testing.h"

#include <dlfcn.h>
#include <limits.h>
#include <sys/mman.h>

enum { BYTES = 1000 };

/* ---- finding ---- */

static void the_folder_that_is_named_is_the_only_one(void **state)
{
    char path[PATH_MAX];

    (void)state;
    make_good_nccl(in_dir("there"));
    assert_int_equal(kg_ranks_nccl_find(path, in_dir("there"), &err), KG_OK);
    assert_string_equal(path, in_dir("there/libnccl.so.2"));
    assert_int_equal(kg_ranks_nccl_find(path, in_dir("empty"), &err), KG_ENOTFOUND);
    assert_non_null(strstr(err.message, "nccl: no libnccl.so.2 in /tmp/kedge-test-"));
    assert_non_null(strstr(err.message, "/empty; ranks.link=host needs no NCCL"));
}

static void it_is_found_among_wheels(void **state)
{
    char path[PATH_MAX], line[512];
    kg_status status;

    (void)state;
    snprintf(line, sizeof line,
             "mkdir -p %s/lib/python3.11/site-packages/nvidia/nccl/lib", dir);
    assert_int_equal(system(line), 0);
    put("lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", "");
    setenv("VIRTUAL_ENV", dir, true);
    status = kg_ranks_nccl_find(path, NULL, &err);
    unsetenv("VIRTUAL_ENV");
    assert_int_equal(status, KG_OK);
    if (strncmp(path, dir, strlen(dir)) != 0) {
        print_message("skip: this machine has one that comes before: %s\n", path);
        skip();
    }
}

static void it_stays_when_it_is_closed(void **state)
{
    char path[PATH_MAX], version[KG_NCCL_VERSION];

    (void)state;
    make_good_nccl(in_dir("there"));
    assert_null(dlopen(in_dir("there/libnccl.so.2"), RTLD_LAZY | RTLD_NOLOAD));
    assert_int_equal(kg_ranks_nccl_look(path, version, in_dir("there"), &err), KG_OK);
    assert_non_null(dlopen(path, RTLD_LAZY | RTLD_NOLOAD));
}

static void declarations_are_those_of_nvidias_header(void **state)
{
    (void)state;
    if (access("/usr/local/cuda/include/nccl.h", R_OK) != 0 ||
        access(NCCL_FAKE, R_OK) != 0) {
        print_message("skip: no nccl.h in /usr/local/cuda/include, or not at the top of "
                      "the tree\n");
        skip();
    }
    assert_int_equal(system("echo '#include \"ranks/nccl_calls.h\"' | ${CC:-cc} -xc - "
                            "-fsyntax-only -DKG_NCCL_COMPARED -Isrc "
                            "-I/usr/local/cuda/include"),
                     0);
}

/* ---- failures that all ranks report ---- */

struct asked {
    const char *folder, *fails; /* fails: value of FAKE_NCCL */
    const char *says;           /* says: NULL if nothing fails */
    kg_status status;
    double wait_s; /* 0: the ranks keep theirs */
    bool opens;    /* opening succeeds and a later call fails */
};

/* Bytes that rank `from` sends to rank `to`; different for each pair. */
static size_t sent(int from, int to)
{
    return from == to ? 40 : (size_t)(100 * from + to);
}

static kg_status exchange(struct kg_ranks *r, const struct kg_backend *be, int turn,
                          struct kg_err *e)
{
    struct kg_ranks_part out[RANKS_MOST] = {0}, in[RANKS_MOST] = {0};
    char *out_of[RANKS_MOST], *in_of[RANKS_MOST], bytes[BYTES];
    kg_status status;

    for (int p = 0; p < r->n; p++) {
        out_of[p] = kg_buf_alloc(be, BYTES, "test", e);
        in_of[p] = kg_buf_alloc(be, BYTES, "test", e);
        memset(bytes, 16 * r->me + p + turn, BYTES);
        if (kg_buf_put(be, out_of[p], bytes, BYTES, e) != KG_OK)
            _exit(3);
        out[p] = (struct kg_ranks_part){out_of[p], sent(r->me, p)};
        in[p] = (struct kg_ranks_part){in_of[p] + 1, sent(p, r->me)};
    }
    status = kg_ranks_nccl_exchange(r, out, in, "words", e);
    for (int p = 0; p < r->n; p++) {
        if (status == KG_OK && kg_buf_get(be, bytes, in_of[p], BYTES, e) != KG_OK)
            _exit(4);
        for (size_t i = 0; status == KG_OK && i < BYTES; i++)
            if (bytes[i] !=
                (i > 0 && i <= sent(p, r->me) ? (char)(16 * p + r->me + turn) : 0))
                _exit(5);
        kg_buf_free(be, out_of[p]);
        kg_buf_free(be, in_of[p]);
    }
    return status;
}

static kg_status open_far(const struct kg_backend **be, struct kg_err *e)
{
    return kg_backend_open(be, "far", e);
}

static int speak(struct kg_ranks *r, void *user)
{
    const struct asked *a = user;
    const struct kg_backend *be;
    struct kg_err e = {0};
    uint64_t before, all = 0;
    kg_status status;

    if (open_far(&be, &e) != KG_OK)
        return 2;
    if (a->wait_s > 0)
        r->wait_s = a->wait_s;
    if (a->fails)
        setenv("FAKE_NCCL", a->fails, true);
    status = kg_ranks_nccl_open(r, be, a->folder, &e);
    if (a->opens && status != KG_OK)
        return 6;
    before = r->sent;
    for (int turn = 0; turn < 3 && status == KG_OK; turn++)
        status = exchange(r, be, turn, &e);
    for (int p = 0; p < r->n; p++)
        all += p != r->me ? 3 * sent(r->me, p) : 0;
    /* the ranks agree before and after each exchange */
    all += (uint64_t)(3 * 2 * (r->n - 1)) * sizeof(struct kg_ranks_word);
    if (status == KG_OK && r->sent - before != all)
        return 7;
    if (status != a->status || (a->says && !strstr(e.message, a->says))) {
        fprintf(stderr, "rank %d: %s\n", r->me, e.message);
        return 1;
    }
    /* exchanges through the host still work */
    kg_ranks_forgive(r);
    status = kg_ranks_agree(r, KG_OK, "afterwards", &e);
    kg_ranks_close(r);
    return status != KG_OK || r->nccl;
}

static void all_end_well(int n, struct asked a)
{
    int ended[RANKS_MOST];

    ranks_run(ended, n, speak, &a);
    for (int p = 0; p < n; p++)
        if (ended[p] != 0)
            fail_msg("rank %d of %d, %s: %#x", p, n, a.fails ? a.fails : a.folder,
                     (unsigned)ended[p]);
}

static void ranks_have_what_was_sent_to_them(void **state)
{
    (void)state;
    make_good_nccl(in_dir("there"));
    for (int n = 2; n <= 4; n++)
        all_end_well(n, (struct asked){.folder = in_dir("there"), .opens = true});
}

static void a_library_that_will_not_do_is_one_line(void **state)
{
    char old[200], less[200], none[200], text[200];

    (void)state;
    snprintf(old, sizeof old, "%s", in_dir("old"));
    snprintf(less, sizeof less, "%s", in_dir("less"));
    snprintf(none, sizeof none, "%s", in_dir("none"));
    snprintf(text, sizeof text, "%s", in_dir("text"));
    make_nccl(old, 21304, "ncclSend");
    make_nccl(less, 22809, "ncclPost");
    assert_int_equal(mkdir(text, 0777), 0);
    put("text/libnccl.so.2", "no library");
    all_end_well(2,
                 (struct asked){.folder = old,
                                .status = KG_ECONFLICT,
                                .says = "expected version 2.14 or newer, found 2.13.4"});
    all_end_well(2, (struct asked){.folder = less,
                                   .status = KG_EFORMAT,
                                   .says = "expected the symbol ncclSend, found none"});
    all_end_well(2, (struct asked){.folder = none,
                                   .status = KG_ENOTFOUND,
                                   .says = "nccl: no libnccl.so.2 in "});
    all_end_well(2, (struct asked){
                        .folder = text, .status = KG_EFORMAT, .says = "file too short"});
}

static void all_hear_of_a_call_that_fails_on_one(void **state)
{
    static const struct {
        const char *fails, *says;
        bool opens;
    } calls[] = {
        {"id@0", "does not start: unhandled system error", false},
        {"init@1", "does not start: unhandled system error", false},
        {"group_start@1", "words: nccl 2.28.9: unhandled system error", true},
        {"send@1", "words: nccl 2.28.9: unhandled system error", true},
        {"recv@0", "words: nccl 2.28.9: unhandled system error", true},
        {"group_end@2", "words: nccl 2.28.9: unhandled system error", true},
    };

    (void)state;
    make_good_nccl(in_dir("there"));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        all_end_well(3, (struct asked){.folder = in_dir("there"),
                                       .fails = calls[i].fails,
                                       .says = calls[i].says,
                                       .status = KG_EDEVICE,
                                       .opens = calls[i].opens});
}

static void what_does_not_come_is_given_up(void **state)
{
    (void)state;
    make_good_nccl(in_dir("there"));
    all_end_well(
        3, (struct asked){
               .folder = in_dir("there"),
               .fails = "silent@1",
               .says = "words: nccl 2.28.9: expected the collective to start within 1 s",
               .status = KG_ETIMEOUT,
               .wait_s = 2,
               .opens = true});
    all_end_well(
        2,
        (struct asked){
            .folder = in_dir("there"),
            .fails = "absent@1",
            .says = "joining: nccl 2.28.9: expected the collective to start within 1 s",
            .status = KG_ETIMEOUT,
            .wait_s = 2});
    all_end_well(2, (struct asked){.folder = in_dir("there"),
                                   .fails = "async@1",
                                   .says = "rank 1",
                                   .status = KG_EDEVICE,
                                   .wait_s = 2,
                                   .opens = true});
}

/* NCCL does not say which rank left; kedge names it. */
struct leaving {
    const char *folder;
    struct kg_ranks_loss *loss; /* shared memory */
};

static int leave(struct kg_ranks *r, void *user)
{
    const struct leaving *l = user;
    const struct kg_backend *be;
    struct kg_err e = {0};

    r->wait_s = 2;
    r->loss = l->loss;
    if (open_far(&be, &e) != KG_OK || kg_ranks_nccl_open(r, be, l->folder, &e) != KG_OK)
        return 2;
    if (r->me == 1)
        _exit(0);
    return exchange(r, be, 0, &e) != KG_EIO || !r->lost ||
           !strstr(e.message, "rank 1 is gone");
}

static void a_rank_that_is_gone_is_named(void **state)
{
    char folder[200];
    struct leaving l = {folder, mmap(NULL, sizeof *l.loss, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    int ended[3];

    (void)state;
    assert_true(l.loss != MAP_FAILED);
    snprintf(folder, sizeof folder, "%s", in_dir("there"));
    make_good_nccl(folder);
    ranks_run(ended, 3, leave, &l);
    munmap(l.loss, sizeof *l.loss);
    for (int p = 0; p < 3; p++)
        assert_int_equal(ended[p], 0);
}

static int on_cpu(struct kg_ranks *r, void *user)
{
    const struct kg_backend *be;
    struct kg_err e = {0};

    if (kg_backend_open(&be, "cpu", &e) != KG_OK)
        return 2;
    return kg_ranks_nccl_open(r, be, user, &e) != KG_EINVAL ||
           !strstr(e.message, "expected ranks that compute on GPUs, found cpu");
}

static void ranks_on_cpus_are_refused(void **state)
{
    int ended[2];

    (void)state;
    ranks_run(ended, 2, on_cpu, NULL);
    assert_int_equal(ended[0] + ended[1], 0);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(the_folder_that_is_named_is_the_only_one),
        IN_FOLDER(it_is_found_among_wheels),
        IN_FOLDER(it_stays_when_it_is_closed),
        cmocka_unit_test(declarations_are_those_of_nvidias_header),
        IN_FOLDER(ranks_have_what_was_sent_to_them),
        IN_FOLDER(a_library_that_will_not_do_is_one_line),
        IN_FOLDER(all_hear_of_a_call_that_fails_on_one),
        IN_FOLDER(what_does_not_come_is_given_up),
        IN_FOLDER(a_rank_that_is_gone_is_named),
        cmocka_unit_test(ranks_on_cpus_are_refused),
    };
    kg_threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
