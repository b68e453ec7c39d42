/* Runs device code without a device: the threads of a block are fibers of one host
 * thread.
 *
 * At a barrier or an exchange within a warp another fiber continues, in one of three
 * orders; a kernel without a race gives the same bits in all. Undefined behaviour of a
 * device is a fault here: a barrier that some threads never reach or that differs between
 * threads, a host pointer, absent lanes, a copy that is never waited for. Copied data is
 * NaN until it is waited for. Shared memory starts as NaN in each block and ends at a
 * page's end. Device memory is accessible to a kernel or copy only while it runs, and
 * only the buffers among its arguments (tensor/pages.h).
 *
 * Linked into tests only, and only if there is a C++ compiler: otherwise kg_emu_open is
 * NULL.
 */
#ifndef KG_EMU_H
#define KG_EMU_H

#ifdef __cplusplus
extern "C" {
#endif
#include "tensor/backend.h"

/* ---- for tests ---- */
/* Opens the backend "emu", with products by kg_device_test_opts. */
kg_status kg_emu_open(const struct kg_backend **be, struct kg_err *err) KG_GUEST;

enum kg_emu_schedule {
    KG_EMU_ROUND_ROBIN, /* each thread to its next barrier, in turn */
    KG_EMU_FORWARD,     /* the first warp as far as possible, then the next */
    KG_EMU_BACKWARD,    /* starting from the last thread of the last block */
    KG_EMU_SCHEDULES
};
void kg_emu_schedule(enum kg_emu_schedule o) KG_GUEST;

/* The device is lost at its n-th launch from now on: that and all later ones fail, until
 * this is called again; n < 0: it is there.   returns the launches so far */
int64_t kg_emu_lose(int64_t n) KG_GUEST;

/* The clock that products are timed by; without one all take no time. */
void kg_emu_clock(double (*seconds)(void)) KG_GUEST;

/* Where CUDA's own libraries are looked for; without it nowhere. */
void kg_emu_cuda(const char *root) KG_GUEST;

/* Whether kg_dev_done was called since something was launched, copied or cleared, as it
 * is before an operation returns: a device may not have begun with it. */
bool kg_emu_is_asked(void) KG_GUEST;

/* How many multiprocessors with Hopper's instructions there are, 3 at the start; 0: those
 * of other devices. */
void kg_emu_hoppers(int n) KG_GUEST;

/* Whether products of four warps add eight factors at once, with other bits than kg_mma:
 * not at the start. */
void kg_emu_eights(bool yes) KG_GUEST;

/* A thread's parts of products of four warps, made so far. */
int64_t kg_emu_products(void) KG_GUEST;

/* Whether records can be made, as they can at the start. */
void kg_emu_records(bool possible) KG_GUEST;

/* ---- replacements of CUDA (emu_dev.h) ---- */
struct kg_emu_dim {
    unsigned x, y, z;
};
extern struct kg_emu_dim kg_emu_thread; /* of the running fiber */
extern struct kg_emu_dim kg_emu_block;

/* Lanes of a warp, and bytes that a lane can exchange at a time. */
enum { KG_EMU_WARP = 32, KG_EMU_SHOWN = 48 };

/* Runs run(arg) in `threads` threads of every block; arg has `bytes` bytes. After a fault
 * nothing is launched until it was reported. */
void kg_emu_launch(const char *name, struct kg_emu_dim grid, unsigned threads,
                   void (*run)(void *), void *arg, size_t bytes);
/* Checks a pointer argument of a kernel: a host pointer is a fault. */
void kg_emu_argument(const char *name, const void *p);
/* Registers an argument of the next launch: only the buffers that it points into are
 * accessible. */
void kg_emu_lend(const void *argument, size_t bytes);
void kg_emu_barrier(int line);
/* Exchanges KG_EMU_SHOWN bytes per lane within a warp; the result is valid until the next
 * exchange. A mask must have all lanes. The last lane to arrive calls together(shown)
 * before any continues, to compute a common result once; NULL: nothing. */
const char *kg_emu_exchange(unsigned mask, const void *mine, size_t bytes,
                            void (*together)(char *shown), int line);
/* The block's shared memory of this name. */
void *kg_emu_shared(const void *name, size_t bytes);
/* Requests dynamic shared memory for the next launch; returns a block's memory. */
void kg_emu_ask(const char *name, size_t bytes, size_t most);
void *kg_emu_asked(void);
/* Checks a row of kg_fragments: it must be aligned to sixteen. */
void kg_emu_row(const void *row, int line);
/* As in dev.h: the bytes are read when their group is waited for. */
void kg_emu_copy(void *to, const void *from, int bytes, int line);
void kg_emu_copies_end(void);
void kg_emu_copies_wait(int n);

/* As in hopper.h. A matrix whose boxes are copied, in the bytes of a struct kg_boxes; and
 * where factors of a product are. */
struct kg_emu_matrix {
    const uint16_t *data;
    int64_t rows, cols, stride;
    int rows_of_box;
};
struct kg_emu_factors {
    const char *at;
    int block, eight;
    bool columns;
};
void kg_emu_barrier_init(const void *at, int expected);
void kg_emu_barrier_arrive(const void *at, int bytes, int line);
void kg_emu_barrier_wait(const void *at, int parity, int line);
void kg_emu_box(char *to, const struct kg_emu_matrix *from, int64_t row, int64_t col,
                const void *at, int line);
void kg_emu_write(void *to, const uint32_t part[4], int line);
void kg_emu_writes_end(void);
void kg_emu_products_begin(void);
void kg_emu_product(float *d, int cols, struct kg_emu_factors a, struct kg_emu_factors b,
                    int line);
/* The same with the left side in the thread's registers. */
void kg_emu_product_left(float *d, int cols, const uint32_t a[4], struct kg_emu_factors b,
                         int line);
void kg_emu_products_end(void);
void kg_emu_products_wait(int n, int line);

extern struct kg_traffic kg_dev_traffic; /* copies of put and get; defined in memory.cu */
/* As in dev.h: from or to the host, or within the device. */
void *kg_dev_alloc(uint64_t bytes, const char *what, struct kg_err *err);
void kg_dev_spoil(void *memory, uint64_t bytes);
void kg_dev_free(void *memory);
kg_status kg_dev_memory(uint64_t *total, uint64_t *free, struct kg_err *err);
void kg_dev_put(void *to, const void *from, uint64_t bytes);
void kg_dev_get(void *to, const void *from, uint64_t bytes);
void *kg_dev_pin(uint64_t bytes, const char *what, struct kg_err *err);
void kg_dev_unpin(void *memory);
/* A fault unless `to` is within memory of kg_dev_pin. */
void kg_dev_fetch(void *to, const void *from, uint64_t bytes);
/* Host memory belongs to a copy until a later mark was waited for: until then a
 * destination holds bytes of 0xff, and a change of a source is a fault at the wait.
 * Memory that is not page-locked, or is freed too early, is a fault at once. */
void kg_dev_put_later(void *to, const void *from, uint64_t bytes);
void kg_dev_get_later(void *to, const void *from, uint64_t bytes);
void kg_dev_mark(uint64_t mark);
void kg_dev_wait(uint64_t mark);
bool kg_dev_reached(uint64_t mark); /* always true: the host owns the memory then */
void kg_dev_copy(void *to, const void *from, uint64_t bytes);
void kg_dev_zero(void *to, uint64_t bytes);

/* As in dev.h. A record holds launches with copies of all arguments; memory operations
 * inside a record, also on the host, are faults. */
void kg_dev_record_begin(void);
void *kg_dev_record_end(void);
void kg_dev_record_launch(void *record);
void kg_dev_record_free(void *record);
int kg_dev_call(int (*f)(void *), void *arg, size_t bytes);

int kg_dev_traits(struct kg_trait traits[KG_TRAITS]);
void kg_dev_lend(const void *const *memory, size_t n);
void kg_dev_take_back(const void *const *memory, size_t n);
double kg_dev_seconds(void) KG_GUEST;
const char *kg_emu_cuda_root(void);

/* The first fault since the last call, as an error of `op`. */
kg_status kg_dev_done(const char *op, struct kg_err *err);

#ifdef __cplusplus
}
#endif
#endif
