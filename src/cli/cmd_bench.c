/* kedge bench: the ceilings of this machine and how close kedge comes to them, measured
 * in the same run. `serve` and `ranks` are not part of "all": one needs a checkpoint, the
 * other several processes. The benchmarks are in bench/ and in guests; here are the
 * flags. */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/status.h"
#include "bench/bench.h"
#include "cli/load.h"
#include "ranks/launch.h"
#include "ranks/nccl.h"
#include "ranks/sockets.h"
#include "tensor/selfcheck.h"

#include <assert.h>
#include <string.h>

#define ALONE "=serve,ceilings,ops,decode,prefill,train"

static bool json;
static int64_t streams;
static int64_t tokens;
static int64_t rounds;
static int64_t piece_ms = 50;
static int64_t ranks = 1;
static bool parts;
static const char *only_row;
static const char *nccl; /* NULL: search for it */

const struct kg_flag kg_bench_flags[] = {
    {"json", 0, KG_TO(json), NULL, "print one JSON object per figure"},
    {"dtype", 0, KG_IF("!ranks", kg_load.dtype), "TYPE",
     "dtype of products: bf16 or fp32 (default: bf16)", 0, 0, "bf16|fp32"},
    {"threads", 0, KG_TO(kg_load.threads), "N", "threads (default: all cores)", 0, 1024},
    {"model", 'm', KG_IF("=serve", kg_load.dir), KG_MODEL_ARG, "the checkpoint"},
    {"device", 0, KG_IF(ALONE ",search,ranks", kg_load.device), "DEVICE",
     "cpu, cuda, cuda:N or auto (default cpu)"},
    {"products", 0, KG_IF(ALONE "&--device", kg_load.products), "BY",
     "cublas, own or exact (default: by the GPU)", 0, 0, "cublas|own|exact"},
    {"libraries", 0, KG_IF(ALONE "&--device", kg_load.libraries), "DIR",
     "folder of cuBLASLt (default: search for it)"},
    {"unpinned", 0, KG_IF(ALONE "&--device", kg_load.unpinned), NULL,
     "products by the library's fastest plan for each shape, whatever its bits: shows "
     "what exactness costs"},
    {"parts", 0, KG_IF("=decode,prefill,train,head", parts), NULL,
     "list a step's operations: seconds, and share of the operation's ceiling"},
    {"row", 0, KG_IF("=products,decode,prefill,train", only_row), "TEXT",
     "only rows whose name contains this text, such as \"batch 16\""},
    {"streams", 0, KG_IF("=serve", streams), "N", "clients at once (default 64)", 1, 512},
    {"tokens", 0, KG_IF("=serve", tokens), "N", "tokens of each completion (default 256)",
     2, 1 << 20},
    {"rounds", 0, KG_IF("=serve", rounds), "N",
     "measurements of server and engine (default 5)", 1, 4096},
    {"stream-interval", 0, KG_IF("=serve", piece_ms), "MS",
     "as in `kedge serve` (default 50)", 0, 60000},
    {"ranks", 0, KG_IF("=ranks,async", ranks), "N",
     "run as N processes on this machine, without a launcher (default 1)", 1,
     KG_RANKS_SOCKETS},
    {"nccl", 0, KG_IF("=ranks&--device", nccl), "DIR",
     "with --device: folder of libnccl.so.2, which joins GPUs (default: search for it)"},
    {0},
};

enum { TERMS_MAX = 20, SILENT_S = 60 };

/* Names of bench/, and serve and ranks.   returns their number */
static int list_terms(struct kg_term terms[static TERMS_MAX])
{
    int n = 0;

    for (const struct kg_bench_row *row = kg_bench_table(); row->name; row++) {
        assert(n < TERMS_MAX - 2);
        terms[n++] = (struct kg_term){row->name, row->help};
    }
    terms[n++] = (struct kg_term){
        "serve", "--streams clients of `kedge serve` on --model, next to the engine "
                 "alone on the same sequences; not part of `all`"};
    terms[n++] = (struct kg_term){
        "ranks", "exchanges among the processes of --ranks, mpirun or srun: bytes, "
                 "seconds, and a model of them; not part of `all`"};
    return n;
}

bool kg_bench_term(struct kg_term *term, int i)
{
    struct kg_term terms[TERMS_MAX];
    const int n = list_terms(terms);

    if (i < n)
        *term = terms[i];
    return i < n;
}

static kg_status check_name(const char *name, struct kg_err *err)
{
    struct kg_term terms[TERMS_MAX];
    size_t index;

    return kg_str_pick(&index, KG_ENOTFOUND, NULL, name, terms, (size_t)list_terms(terms),
                       sizeof *terms, err);
}

static kg_status bench_serve(struct kg_str *out, struct kg_err *err)
{
    struct kg_loaded l;
    if (!kg_serve_load)
        return kg_guest_missing("bench serve", "lab", err);
    if (kg_load.dir == NULL)
        return kg_fail(err, KG_EINVAL, "serve: expected --model DIR");
    KG_TRY(kg_load_model(&l, &kg_load, err));
    struct kg_serve_load_opts opts = {.model = l.model,
                                      .tok = l.tok,
                                      .streams = (int)streams,
                                      .tokens = (int)tokens,
                                      .rounds = (int)rounds,
                                      .piece_seconds = (double)piece_ms / 1e3,
                                      .json = json};
    kg_status status = kg_serve_load(out, &opts, err);
    kg_load_release(&l);
    return status;
}

static kg_status bench_rows(struct kg_str *out, const char *name, enum kg_dtype ct,
                            struct kg_ranks *all, struct kg_err *err)
{
    /* search needs only fp32, for which a GPU needs no GEMM library */
    const bool search = name && strcmp(name, "search") == 0;
    const struct kg_backend *be;

    KG_TRY(kg_load_device(&be, &kg_load, search ? KG_F32 : ct, err));
    return kg_bench_run(
        out, &(struct kg_bench_opts){name, only_row, be, ct, json, parts, all}, err);
}

/* Between GPUs by NCCL, else between host memories. Only fp32 is summed, for which a GPU
 * needs no GEMM library. */
static kg_status bench_exchanges(struct kg_str *out, struct kg_ranks *r,
                                 struct kg_err *err)
{
    const struct kg_backend *be = kg_backend_cpu_variant(0), *gpu = NULL;

    if (!kg_bench_ranks)
        return kg_guest_missing("bench ranks", "lab", err);
    if (kg_load.device) {
        kg_load.ranks = r;
        KG_TRY(kg_ranks_agree(r, kg_load_device(&be, &kg_load, KG_F32, err),
                              "bench ranks", err));
        KG_TRY(kg_ranks_nccl_open(r, be, nccl, err));
        gpu = be;
    }
    KG_TRY(kg_bench_ranks(out, r, gpu, KG_BENCH_EXCHANGE, json, err));
    return kg_bench_gradient(out, r, be, KG_BENCH_GRADIENT, json, err);
}

/* All processes take part; the first prints. */
static int bench_ranks(const char *name, enum kg_dtype ct)
{
    const bool exchanges = strcmp(name, "ranks") == 0;
    struct kg_ranks r;
    struct kg_str out = {0};
    struct kg_err err;
    char command[32];

    snprintf(command, sizeof command, "bench %s%s", name,
             kg_load.device ? " --device" : "");
    kg_status status = kg_cli_ranks_begin(&r, (int)ranks, SILENT_S, command, &err);

    if (status == KG_OK) /* as in a run: threads of this rank */
        kg_ranks_set_threads(&r, (int)kg_load.threads);
    if (status == KG_OK)
        status = exchanges ? bench_exchanges(&out, &r, &err)
                           : bench_rows(&out, name, ct, &r, &err);
    if (r.me > 0)
        kg_str_clear(&out);
    status = kg_ranks_agree(&r, kg_cli_print(status, &out, &err), command, &err);
    return kg_cli_ranks_end(&r, status, &err);
}

int kg_cmd_bench(int argc, char **argv)
{
    struct kg_str out = {0};
    enum kg_dtype ct;
    struct kg_err err;

    kg_threads_set((int)kg_load.threads);
    kg_status status = kg_load_dtype(&ct, kg_load.dtype, &err);
    if (status == KG_OK && argc > 0)
        status = check_name(argv[0], &err);
    if (status == KG_OK && argc > 0 &&
        (strcmp(argv[0], "ranks") == 0 || strcmp(argv[0], "async") == 0))
        return bench_ranks(argv[0], ct);
    if (status == KG_OK && argc > 0 && strcmp(argv[0], "serve") == 0)
        status = bench_serve(&out, &err);
    else if (status == KG_OK)
        status = bench_rows(&out, argc > 0 ? argv[0] : NULL, ct, NULL, &err);
    return kg_cli_exit(kg_cli_print(status, &out, &err), &err);
}
