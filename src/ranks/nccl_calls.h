/* Declarations of the NCCL calls in use. kedge is built without NVIDIA's header and loads
 * the library at run time (nccl.h). Where NVIDIA's header is installed, a test compiles
 * this file with KG_NCCL_COMPARED, which compares both.
 * source: nccl.h of NCCL 2.28 */
#ifndef KG_RANKS_NCCL_CALLS_H
#define KG_RANKS_NCCL_CALLS_H

#include <stddef.h>

enum { KG_NCCL_OK = 0, KG_NCCL_IN_PROGRESS = 7, KG_NCCL_INT8 = 0 };
enum { KG_NCCL_ID_BYTES = 128 };

/* The id that ranks exchange before they form a communicator. */
struct kg_nccl_id {
    char bytes[KG_NCCL_ID_BYTES];
};

/* The library's settings as of version 2.14; later versions use their defaults for the
 * rest. */
enum { KG_NCCL_CONFIG_VERSION = 21400 };
#define KG_NCCL_MAGIC 0xcafebeefu
struct kg_nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking; /* 0: calls return KG_NCCL_IN_PROGRESS instead of waiting */
};

/* Handles are opaque pointers, except the id. */
struct kg_nccl_calls {
    int (*version)(int *version); /* 22809 is 2.28.9 */
    const char *(*error)(int result);
    int (*id)(struct kg_nccl_id *id);
    int (*init)(void **comm, int n, struct kg_nccl_id id, int rank,
                struct kg_nccl_config *config);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *from, size_t count, int type, int peer, void *comm,
                void *stream);
    int (*recv)(void *to, size_t count, int type, int peer, void *comm, void *stream);
    int (*async_error)(void *comm, int *result);
    int (*give_up)(void *comm);
};

#if defined(KG_NCCL_COMPARED)
#include <nccl.h>
_Static_assert((int)KG_NCCL_OK == (int)ncclSuccess &&
                   (int)KG_NCCL_IN_PROGRESS == (int)ncclInProgress &&
                   (int)KG_NCCL_INT8 == (int)ncclInt8,
               "results and types");
_Static_assert(sizeof(struct kg_nccl_id) == sizeof(ncclUniqueId), "ids");
_Static_assert(offsetof(struct kg_nccl_config, magic) == offsetof(ncclConfig_t, magic) &&
                   offsetof(struct kg_nccl_config, version) ==
                       offsetof(ncclConfig_t, version) &&
                   offsetof(struct kg_nccl_config, blocking) ==
                       offsetof(ncclConfig_t, blocking),
               "settings");
#endif

#endif
