/* Fuzz target: what a run is resumed from, except its tensors. The input is a folder's
 * manifest and a state.json. Counters that were read must read the same after they are
 * written, and an accepted manifest lists no more files than it has bytes.
 */
#include "train/keep/checkpoint.h"

#include "base/file.h"
#include "base/mem.h"
#include "data/manifest.h"
#include "report/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int kg_fuzz_resume(const uint8_t *bytes, size_t n);

static const char *fuzz_dir(void)
{
    static char dir[64];
    struct kg_err err;

    snprintf(dir, sizeof dir, "%s/kedge-fuzz-resume-%d",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (int)getpid());
    if (kg_file_make_dirs(dir, &err) != KG_OK)
        abort();
    return dir;
}

static void fuzz_write(const char *path, const void *bytes, size_t n)
{
    struct kg_err err;

    if (kg_file_write_atomic(path, bytes, n, &err) != KG_OK)
        abort();
}

static void fuzz_counters(const char *path)
{
    struct kg_counters once = {0};
    struct kg_counters twice = {0};
    struct kg_err err;

    if (kg_checkpoint_counters(&once, path, &err) != KG_OK)
        return;
    if (kg_checkpoint_put_counters(&once, path, &err) != KG_OK ||
        kg_checkpoint_counters(&twice, path, &err) != KG_OK ||
        memcmp(&once, &twice, sizeof once) != 0)
        abort();
}

int kg_fuzz_resume(const uint8_t *bytes, size_t n)
{
    uint64_t before = kg_mem_current_bytes();
    const char *dir = fuzz_dir();
    struct kg_path state = kg_path_in(dir, "state.json");
    struct kg_path manifest = kg_path_in(dir, KG_MANIFEST_NAME);
    struct kg_manifest_size size = {0};
    struct kg_err err;

    fuzz_write(state.text, bytes, n);
    fuzz_write(manifest.text, bytes, n);
    if (kg_manifest_check(&size, dir, &err) == KG_OK && size.files > n)
        abort();
    fuzz_counters(state.text);
    unlink(state.text);
    unlink(manifest.text);
    rmdir(dir); /* the next call makes it again */
    if (kg_mem_current_bytes() != before)
        abort();
    return 0;
}
