/* Assignment of devices to ranks, for every way in which launchers show devices to
 * processes, and refusal of devices that would not compute the same bits.
 */
#include "ranks/devices.h"

#include "base/clock.h"
#include "ranks/ranks_testing.h"
#include "tensor/selfcheck.h"

#include <stdio.h>
#include <string.h>

/* ---- dealing ---- */

enum { MOST = 5 };

/* sees: one letter per visible device, in the order of device numbers; takes: the device
 * number of each rank; says: NULL, or part of the error */
static const struct {
    const char *what;
    struct {
        const char *host, *sees;
    } rank[MOST];
    int asked;
    const char *takes, *says;
} deals[] = {
    {"one host, all see all", {{"a", "PQ"}, {"a", "PQ"}}, -1, "01", NULL},
    {"more devices than ranks", {{"a", "PQRS"}, {"a", "PQRS"}}, -1, "01", NULL},
    {"two hosts, ranks by turns",
     {{"a", "PQ"}, {"b", "RS"}, {"a", "PQ"}, {"b", "RS"}},
     -1,
     "0011",
     NULL},
    {"hosts with devices of one name",
     {{"a", "PQ"}, {"b", "PQ"}, {"b", "PQ"}},
     -1,
     "001",
     NULL},
    {"a launcher shows each its own", {{"a", "P"}, {"a", "Q"}}, -1, "00", NULL},
    {"a launcher shows each its own pair",
     {{"a", "PQ"}, {"a", "RS"}, {"a", "PQ"}},
     -1,
     "001",
     NULL},
    {"the same in another order", {{"a", "PQ"}, {"a", "QP"}}, -1, "00", NULL},
    {"one number, a rank a host", {{"a", "PQ"}, {"b", "RS"}}, 1, "11", NULL},
    {"one number of what each is shown", {{"a", "PQ"}, {"a", "RS"}}, 1, "11", NULL},
    {"more ranks than devices",
     {{"a", "PQ"}, {"b", "R"}, {"a", "PQ"}, {"a", "PQ"}},
     -1,
     NULL,
     "expected a device for each of the 3 ranks on a, found 2"},
    {"a device is shown in two ways",
     {{"a", "PQ"}, {"a", "P"}},
     -1,
     NULL,
     "ranks 0 and 1 (a): expected a device each, found one for both (cuda:0, P)"},
    {"one number on one host",
     {{"a", "PQ"}, {"a", "PQ"}},
     1,
     NULL,
     "ranks 0 and 1 (a): expected a device each, found one for both (cuda:1, Q)"},
    {"a number that one has not",
     {{"a", "PQ"}, {"b", "R"}},
     1,
     NULL,
     "rank 1 (b): expected a device from cuda:0 to cuda:0, found cuda:1"},
};

static void devices_are_dealt_by_what_ranks_see(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof deals / sizeof *deals; i++) {
        struct kg_ranks_sight all[MOST];
        int device[MOST], n = 0;
        struct kg_err e = {0};
        kg_status status;

        memset(all, 0, sizeof all);
        for (; n < MOST && deals[i].rank[n].host; n++) {
            strcpy(all[n].host, deals[i].rank[n].host);
            for (const char *c = deals[i].rank[n].sees; *c; c++)
                all[n].devices.id[all[n].devices.n++].text[0] = *c;
        }
        status = kg_ranks_deal_devices(device, all, n, deals[i].asked, &e);
        if (status != (deals[i].says ? KG_EINVAL : KG_OK) ||
            (deals[i].says && strncmp(e.message, deals[i].says, strlen(deals[i].says))))
            fail_msg("%s: %s", deals[i].what, e.message);
        for (int p = 0; p < n && !deals[i].says; p++)
            assert_int_equal(device[p], deals[i].takes[p] - '0');
    }
}

/* ---- choosing ---- */

struct asked {
    const char *device, *says; /* says: part of the error, or NULL */
};

static int choose(struct kg_ranks *r, void *user)
{
    const struct asked *a = user;
    struct kg_ranks_device d;
    struct kg_err e = {0};
    kg_status status = kg_ranks_choose_device(&d, r, a->device, &e);

    if (a->says)
        return status == KG_OK || !strstr(e.message, a->says);
    return status != KG_OK || strcmp(d.name, a->device) != 0;
}

static void what_is_no_gpu_is_left_to_whoever_opens_it(void **state)
{
    static struct asked all[] = {
        {"cpu", NULL},
        {"gpu", NULL},
        {"auto", "expected cpu, cuda or cuda:N, found auto: each of the 2 ranks"},
        {"cuda:x", "expected cuda or cuda:N"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int ended[2];

        ranks_run(ended, 2, choose, &all[i]);
        assert_int_equal(ended[0] + ended[1], 0);
    }
}

static void alone_a_rank_takes_what_is_asked(void **state)
{
    struct kg_ranks alone = {0};
    struct asked any = {"auto", NULL};

    (void)state;
    assert_int_equal(choose(&alone, &any), 0);
}

/* ---- equal devices ---- */

/* In what rank 1 differs from rank 0. */
enum unlike { NOTHING, TRAIT, BITS, DEVICE };

static const char *driver;
static int traits(struct kg_trait t[KG_TRAITS])
{
    t[0].name = "gpu";
    t[1].name = "driver";
    snprintf(t[0].value, sizeof t[0].value, "a fine one");
    snprintf(t[1].value, sizeof t[1].value, "%s", driver);
    return 2;
}

static const struct kg_backend *cpu;
static kg_status almost(struct kg_mat c, struct kg_mat a, struct kg_mat b,
                        enum kg_matmul_kind kind, bool accumulate, struct kg_err *err)
{
    KG_TRY(cpu->matmul(c, a, b, kind, accumulate, err));
    ((float *)c.data)[c.cols] += 1.0f;
    return KG_OK;
}

static int check(struct kg_ranks *r, void *user)
{
    static const char *const says[][2] = {
        {"", ""},
        {"rank 1", "driver is old, rank 0 has new; expected the same on every rank"},
        {"rank 1", "bits of products is "},
        {"rank 1", "device is finer, rank 0 has fine;"}};
    const enum unlike made = *(enum unlike *)user;
    const enum unlike unlike = r->me == 1 ? made : NOTHING;
    struct kg_backend be;
    struct kg_err e = {0};
    kg_status status;

    cpu = kg_backend_cpu_variant(0);
    be = *cpu;
    be.name = unlike == DEVICE ? "finer" : "fine";
    be.traits = traits;
    driver = unlike == TRAIT ? "old" : "new";
    if (unlike == BITS)
        be.matmul = almost;
    status = kg_ranks_check_devices(r, &be, &e);
    if (made == NOTHING)
        return status != KG_OK;
    return status != KG_ECONFLICT || !strstr(e.message, says[made][0]) ||
           !strstr(e.message, says[made][1]);
}

static void devices_that_are_not_alike_are_refused(void **state)
{
    (void)state;
    for (enum unlike u = NOTHING; u <= DEVICE; u++) {
        int ended[3];

        ranks_run(ended, 3, check, &u);
        assert_int_equal(ended[0] + ended[1] + ended[2], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_dealt_by_what_ranks_see),
        cmocka_unit_test(what_is_no_gpu_is_left_to_whoever_opens_it),
        cmocka_unit_test(alone_a_rank_takes_what_is_asked),
        cmocka_unit_test(devices_that_are_not_alike_are_refused),
    };
    kg_threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
