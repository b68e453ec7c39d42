/* How a run ends whose processes the command started itself, and what it reports. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/need_testing.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* Rank 1 leaves the others and exits a little later. */
static int leave_and_end(void)
{
    struct kg_ranks r;
    struct kg_err err;
    kg_status status = kg_cli_ranks_begin(&r, 2, 20, "test", &err);

    if (status == KG_OK && r.me == 1) {
        kg_ranks_close(&r);
        usleep(200000);
        _exit(3);
    }
    if (status == KG_OK)
        status = kg_ranks_agree(&r, KG_OK, "test", &err);
    return kg_cli_ranks_end(&r, status, &err);
}

static void a_rank_that_leaves_is_told_by_its_own_end(void **state)
{
    char said[] = "/tmp/kedge-ranks-XXXXXX";
    struct kg_str text = {0};
    int fd = mkstemp(said), ended;
    pid_t child;

    (void)state;
    assert_true(fd >= 0);
    child = fork();
    if (child == 0) {
        dup2(fd, STDERR_FILENO);
        _exit(leave_and_end());
    }
    close(fd);
    assert_int_equal(waitpid(child, &ended, 0), child);
    NEED(kg_file_read(&text, said, 1 << 16, err));
    if (!strstr(kg_str_text(&text), "is gone: ended with status 3"))
        fail_msg("found: %s", kg_str_text(&text));
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == KG_RANKS_EXIT_LOST);
    kg_str_release(&text);
    unlink(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_leaves_is_told_by_its_own_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
