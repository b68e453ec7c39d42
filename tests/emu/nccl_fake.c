/* Replaces NCCL in tests: processes exchange bytes through files in a folder next to this
 * library; the id names the folder.
 *
 * Nothing blocks, as in a non-blocking communicator: a group ends when its sends are
 * written; what it receives is looked for whenever the communicator's state is queried.
 * FAKE_NCCL names the call that fails and its rank ("send@1"); "silent@1" never sends,
 * "dies@1" kills its process while it sends. If FAKE_NCCL_BEHIND is set, this applies
 * only after that file exists. Compiled by tests (nccl_testing.h).
 */
#define _GNU_SOURCE
#include "emu/nccl_fake.h"
#include "ranks/nccl_calls.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
enum { SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { RANKS = 16 };

/* A send or a receive. */
struct message {
    void *data;
    size_t bytes;
    int peer;
};

static struct {
    char folder[KG_NCCL_ID_BYTES];
    int n, rank;
    bool open, grouped;
    unsigned sent[RANKS], come[RANKS];
    struct message out[RANKS], in[RANKS];
    int n_out, n_in;
} comm;

static bool is_asked(const char *call)
{
    const char *asked = getenv("FAKE_NCCL"), *behind = getenv("FAKE_NCCL_BEHIND");
    char own[64];

    snprintf(own, sizeof own, "%s@%d", call, comm.rank);
    return asked && strcmp(asked, own) == 0 && (!behind || access(behind, F_OK) == 0);
}

/* ---- about the library ---- */

EXPORTED int ncclGetVersion(int *version)
{
    *version = FAKE_VERSION;
    return KG_NCCL_OK;
}

EXPORTED const char *ncclGetErrorString(int result)
{
    return result == SYSTEM_ERROR ? "unhandled system error" : "invalid usage";
}

/* ---- joining ---- */

EXPORTED int ncclGetUniqueId(struct kg_nccl_id *id)
{
    Dl_info own;

    if (is_asked("id") || dladdr(ncclGetVersion, &own) == 0)
        return SYSTEM_ERROR;
    snprintf(id->bytes, sizeof id->bytes, "%.100s.XXXXXX", own.dli_fname);
    return mkdtemp(id->bytes) ? KG_NCCL_OK : SYSTEM_ERROR;
}

static void name_here(char *path, size_t bytes, int rank)
{
    snprintf(path, bytes, "%s/here-%d", comm.folder, rank);
}

static bool all_here(void)
{
    char path[256];

    for (int p = 0; p < comm.n; p++) {
        name_here(path, sizeof path, p);
        if (access(path, F_OK) != 0)
            return false;
    }
    return true;
}

EXPORTED int ncclCommInitRankConfig(void **made, int n, struct kg_nccl_id id, int rank,
                                    struct kg_nccl_config *config)
{
    char path[256];

    memset(&comm, 0, sizeof comm);
    comm.rank = rank;
    if (is_asked("init"))
        return SYSTEM_ERROR;
    if (config->size != sizeof *config || config->magic != KG_NCCL_MAGIC ||
        config->blocking != 0 || n > RANKS)
        return INVALID_ARGUMENT;
    memcpy(comm.folder, id.bytes, sizeof comm.folder);
    comm.n = n;
    comm.open = true;
    *made = &comm;
    name_here(path, sizeof path, rank);
    if (!is_asked("absent"))
        mkdir(path, 0777);
    return KG_NCCL_IN_PROGRESS;
}

/* ---- moving ---- */

EXPORTED int ncclGroupStart(void)
{
    if (is_asked("group_start"))
        return SYSTEM_ERROR;
    comm.grouped = true;
    comm.n_out = 0;
    return KG_NCCL_OK;
}

static int note(struct message *list, int *n, struct message m, int type, void *of)
{
    if (of != &comm || !comm.open || !comm.grouped || type != KG_NCCL_INT8 ||
        m.bytes == 0 || m.peer < 0 || m.peer >= comm.n || m.peer == comm.rank)
        return INVALID_USAGE;
    list[(*n)++] = m;
    return KG_NCCL_IN_PROGRESS;
}

EXPORTED int FAKE_SEND(const void *from, size_t count, int type, int peer, void *of,
                       void *stream)
{
    const struct message m = {(void *)from, count, peer};

    (void)stream;
    return is_asked("send") ? SYSTEM_ERROR : note(comm.out, &comm.n_out, m, type, of);
}

EXPORTED int ncclRecv(void *to, size_t count, int type, int peer, void *of, void *stream)
{
    const struct message m = {to, count, peer};

    (void)stream;
    return is_asked("recv") ? SYSTEM_ERROR : note(comm.in, &comm.n_in, m, type, of);
}

static void name_message(char *path, size_t bytes, int from, int to, unsigned number)
{
    snprintf(path, bytes, "%s/%d-%d-%u", comm.folder, from, to, number);
}

static int write_out(const struct message *m)
{
    char part[256], path[256];
    FILE *f;

    snprintf(part, sizeof part, "%s/part-%d", comm.folder, comm.rank);
    name_message(path, sizeof path, comm.rank, m->peer, comm.sent[m->peer]++);
    f = fopen(part, "wb");
    if (!f || fwrite(m->data, 1, m->bytes, f) != m->bytes || fclose(f) != 0)
        return SYSTEM_ERROR;
    return rename(part, path) == 0 ? KG_NCCL_OK : SYSTEM_ERROR;
}

EXPORTED int ncclGroupEnd(void)
{
    int e = is_asked("group_end") ? SYSTEM_ERROR : KG_NCCL_OK;

    for (int i = 0; i < comm.n_out && e == KG_NCCL_OK && !is_asked("silent"); i++)
        e = is_asked("dies") ? raise(SIGKILL) : write_out(&comm.out[i]);
    comm.grouped = false;
    return e == KG_NCCL_OK && comm.n_in > 0 ? KG_NCCL_IN_PROGRESS : e;
}

/* *came <- whether the message was there */
static int read_in(bool *came, const struct message *m)
{
    char path[256], more;
    FILE *f;
    size_t n;

    name_message(path, sizeof path, m->peer, comm.rank, comm.come[m->peer]);
    f = fopen(path, "rb");
    *came = f;
    if (!f)
        return KG_NCCL_OK;
    n = fread(m->data, 1, m->bytes, f);
    n += fread(&more, 1, 1, f);
    fclose(f);
    unlink(path);
    comm.come[m->peer]++;
    return n == m->bytes ? KG_NCCL_OK : INVALID_ARGUMENT;
}

EXPORTED int ncclCommGetAsyncError(void *of, int *state)
{
    bool came;

    if (of != &comm || !comm.open)
        return INVALID_USAGE;
    if (is_asked("async") && comm.n_in > 0)
        return SYSTEM_ERROR;
    *state = all_here() ? KG_NCCL_OK : KG_NCCL_IN_PROGRESS;
    for (int i = 0; i < comm.n_in && *state == KG_NCCL_OK;) {
        *state = read_in(&came, &comm.in[i]);
        if (came)
            comm.in[i] = comm.in[--comm.n_in];
        else
            i++;
    }
    if (*state == KG_NCCL_OK && comm.n_in > 0)
        *state = KG_NCCL_IN_PROGRESS;
    return KG_NCCL_OK;
}

EXPORTED int ncclCommAbort(void *of)
{
    if (of != &comm || !comm.open)
        return INVALID_USAGE;
    comm.open = false;
    return KG_NCCL_OK;
}
