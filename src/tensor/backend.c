/* The backends of this build, and the CPU table that this machine runs.
 *
 * The CPU kernels are compiled once per instruction set; all tables give the same bits.
 * The program uses the best table that the processor supports, and reads no environment
 * variable; tests may choose another. The build defines KG_CPU_HAS_*.
 */
#include "tensor/backend.h"
#include "tensor/selfcheck.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct kg_backend kg_backend_cpu_generic;
extern const struct kg_backend kg_backend_cpu_neon;
extern const struct kg_backend kg_backend_cpu_v3;
extern const struct kg_backend kg_backend_cpu_v4;
extern const struct kg_backend kg_backend_cpu_v4_bf16;
extern const struct kg_backend kg_backend_cpu_v4_amx;

struct candidate {
    const struct kg_backend *table;
    bool (*runs)(void);
};

#if defined(__x86_64__)
/* By cpuid, because clang 14's __builtin_cpu_supports has no name for F16C. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static bool has_v4(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("fma");
}
/* Linux enables the large tile registers only for processes that request them. */
static bool has_v4_amx(void)
{
    enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18, TILE_BF16 = 1 << 22, TILE = 1 << 24 };
    unsigned a, b, c, d;

    return has_v4() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & TILE_BF16) &&
           (d & TILE) && syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
}
static bool has_v4_bf16(void) { return has_v4() && __builtin_cpu_supports("avx512bf16"); }
/* Intel's cores split the bf16 dot product into several operations: fused multiply-adds
 * are 1.4 to 2 times as fast from 8 rows on (one thread, W 4,864 x 896). */
static bool pairs_are_slow(void) { return __builtin_cpu_is("intel"); }
static bool has_fast_pairs(void) { return has_v4_bf16() && !pairs_are_slow(); }
static bool has_slow_pairs(void) { return has_v4_bf16() && pairs_are_slow(); }
static bool has_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2") && has_f16c();
}
#endif
#if defined(KG_CPU_HAS_generic) || defined(KG_CPU_HAS_neon)
static bool always(void) { return true; }
#endif

/* Best first. */
static const struct candidate candidates[] = {
#if defined(KG_CPU_HAS_v4_amx)
    {&kg_backend_cpu_v4_amx, has_v4_amx},
#endif
#if defined(KG_CPU_HAS_v4_bf16)
    {&kg_backend_cpu_v4_bf16, has_fast_pairs},
#endif
#if defined(KG_CPU_HAS_v4)
    {&kg_backend_cpu_v4, has_v4},
#endif
#if defined(KG_CPU_HAS_v4_bf16)
    {&kg_backend_cpu_v4_bf16, has_slow_pairs},
#endif
#if defined(KG_CPU_HAS_v3)
    {&kg_backend_cpu_v3, has_v3},
#endif
#if defined(KG_CPU_HAS_neon)
    {&kg_backend_cpu_neon, always},
#endif
#if defined(KG_CPU_HAS_generic)
    {&kg_backend_cpu_generic, always},
#endif
};

const struct kg_backend *kg_backend_cpu_variant(int i)
{
    int n = (int)(sizeof candidates / sizeof candidates[0]);
    for (int c = 0; c < n; c++)
        if (candidates[c].runs() && i-- == 0)
            return candidates[c].table;
    return NULL;
}

static int variant; /* index of the table of backend "cpu"; only tests change it */

bool kg_backend_cpu_use(int i)
{
    if (!kg_backend_cpu_variant(i))
        return false;
    variant = i;
    return true;
}

/* ---- by name ---- */
kg_status kg_backend_open_cpu(const struct kg_backend **be, struct kg_err *err)
{
    *be = kg_backend_cpu_variant(variant);
    return *be ? KG_OK
               : kg_fail(err, KG_EUNSUPPORTED,
                         "backend cpu: expected a processor with x86-64-v3 or newer");
}

kg_status kg_backend_open(const struct kg_backend **be, const char *name,
                          struct kg_err *err)
{
    if (kg_backend_open_tested)
        return kg_backend_open_tested(be, name, err);
    if (name && strcmp(name, "cpu") != 0)
        return kg_fail(err, KG_ENOTFOUND, "backend: expected cpu, found '%s'", name);
    return kg_backend_open_cpu(be, err);
}

kg_status kg_backend_host(const struct kg_backend **host, const struct kg_backend *be,
                          struct kg_err *err)
{
    *host = be;
    return be->host_memory ? KG_OK : kg_backend_open_cpu(host, err);
}

#if defined(__x86_64__)
/* The builtin requires a literal, so a loop over names is impossible. */
void kg_selfcheck_cpu_features(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s%s%s%s%s%s%s",
             __builtin_cpu_supports("sse4.2") ? "sse4.2 " : "",
             __builtin_cpu_supports("avx2") ? "avx2 " : "",
             __builtin_cpu_supports("fma") ? "fma " : "",
             __builtin_cpu_supports("avx512f") ? "avx512f " : "",
             __builtin_cpu_supports("avx512bw") ? "avx512bw " : "",
             __builtin_cpu_supports("avx512vnni") ? "avx512vnni " : "",
             __builtin_cpu_supports("avx512bf16") ? "avx512bf16 " : "");
    size_t n = strlen(text);
    if (n > 0 && text[n - 1] == ' ')
        text[n - 1] = 0;
}
#else
void kg_selfcheck_cpu_features(char *text, size_t bytes)
{
    snprintf(text, bytes, "portable kernels");
}
#endif
