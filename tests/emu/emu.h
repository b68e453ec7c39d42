/* Runs device code without a device: the threads of a block are fibers of one host
 * thread.
 *
 * At a barrier or a warp exchange, the emulation switches to another fiber, in one of
 * three orders. A kernel without a race gives the same bits in all three.
 *
 * What is undefined on a device is a fault here: a barrier that some threads never reach,
 * threads at different barriers, a host pointer, absent lanes, a copy without a wait.
 * Copied data is NaN until the wait. Shared memory starts as NaN in each block and ends
 * at the end of a page. Device memory is accessible only while a kernel or copy runs, and
 * then only the buffers among its arguments (emu/pages.h).
 *
 * Only tests link it. Without a C++ compiler, kg_emu_open is NULL.
 */
#ifndef KG_EMU_H
#define KG_EMU_H

#ifdef __cplusplus
extern "C" {
#endif
#include "tensor/backend.h"

/* ---- for tests ---- */
/* Opens the backend "emu" with the options of kg_device_test_opts. */
kg_status kg_emu_open(const struct kg_backend **be, struct kg_err *err) KG_GUEST;

enum kg_emu_schedule {
    KG_EMU_ROUND_ROBIN, /* each thread in turn runs to its next barrier */
    KG_EMU_FORWARD,     /* the first thread that can run, runs */
    KG_EMU_BACKWARD,    /* the last thread that can run, runs; last block first */
    KG_EMU_SCHEDULES
};
void kg_emu_schedule(enum kg_emu_schedule o) KG_GUEST;

/* Simulates the loss of the device after n more launches: all later ones fail until the
 * next call. n < 0: the device works.   returns the number of launches so far */
int64_t kg_emu_lose(int64_t n) KG_GUEST;

/* Sets the clock of kg_dev_seconds; NULL, the default: always 0. */
void kg_emu_clock(double (*seconds)(void)) KG_GUEST;

/* Sets KG_DEV_CUDA_ROOT, where kg_blas_find searches; the default does not exist. */
void kg_emu_cuda(const char *root) KG_GUEST;

/* Whether kg_dev_done was called after the last launch, copy or clear. Each operation
 * must call it before it returns, because only then are launch errors reported. */
bool kg_emu_is_asked(void) KG_GUEST;

/* Sets what kg_dev_hoppers returns: multiprocessors with wgmma, by default 3; 0: a device
 * without wgmma. */
void kg_emu_hoppers(int n) KG_GUEST;

/* Whether wgmma rounds sums after eight factors, so its bits differ from those of kg_mma;
 * by default it does not. */
void kg_emu_eights(bool yes) KG_GUEST;

/* Number of wgmma products computed so far, each counted once per thread. */
int64_t kg_emu_products(void) KG_GUEST;

/* Whether kg_dev_record_end succeeds; by default it does. */
void kg_emu_records(bool possible) KG_GUEST;

/* ---- replacements of CUDA (emu_dev.h) ---- */
struct kg_emu_dim {
    unsigned x, y, z;
};
extern struct kg_emu_dim kg_emu_thread; /* of the running fiber */
extern struct kg_emu_dim kg_emu_block;

/* Lanes of a warp; maximum bytes that a lane passes to one exchange. */
enum { KG_EMU_WARP = 32, KG_EMU_SHOWN = 48 };

/* Runs run(arg) in `threads` threads of every block; arg has `bytes` bytes. After a
 * fault, launches do nothing until kg_dev_done has reported the fault. */
void kg_emu_launch(const char *name, struct kg_emu_dim grid, unsigned threads,
                   void (*run)(void *), void *arg, size_t bytes);
/* Checks a pointer argument of a kernel: a host pointer is a fault. */
void kg_emu_argument(const char *name, const void *p);
/* Registers an argument of the next launch. The kernel can access only buffers that
 * registered arguments point into. */
void kg_emu_lend(const void *argument, size_t bytes);
void kg_emu_barrier(int line);
/* Exchanges up to KG_EMU_SHOWN bytes per lane within a warp. `mask` must have all lanes.
 * The last lane to arrive calls together(shown), if not NULL, before any lane continues.
 * returns the warp's bytes, KG_EMU_SHOWN per lane, valid until the next exchange */
const char *kg_emu_exchange(unsigned mask, const void *mine, size_t bytes,
                            void (*together)(char *shown), int line);
/* One lane's operands of kg_mma. */
struct kg_emu_parts {
    float d[4];
    uint32_t a[4];
    uint32_t b[2];
};
/* kg_mma for a whole warp: collects the matrices from what all lanes have shown,
 * multiplies them, and distributes the result. */
void kg_emu_mma(char *shown);
/* The block's shared memory of this name. */
void *kg_emu_shared(const void *name, size_t bytes);
/* kg_emu_ask requests dynamic shared memory for the next launch; kg_emu_asked returns the
 * memory of the current block. */
void kg_emu_ask(const char *name, size_t bytes, size_t most);
void *kg_emu_asked(void);
/* Faults unless `row` is aligned to sixteen bytes. */
void kg_emu_row(const void *row, int line);
/* As in dev.h. The wait for a group reads the bytes of its copies. */
void kg_emu_copy(void *to, const void *from, int bytes, int line);
void kg_emu_copies_end(void);
void kg_emu_copies_wait(int n);

/* As in hopper.h. kg_emu_matrix: the contents of a struct kg_boxes. kg_emu_factors: a
 * struct kg_factors_at with its template parameter. */
struct kg_emu_matrix {
    const uint16_t *data;
    int64_t rows, cols, stride;
    int rows_of_box, cols_of_box;
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
                    bool adds, int line);
/* As above, with `a` in the thread's registers. */
void kg_emu_product_left(float *d, int cols, const uint32_t a[4], struct kg_emu_factors b,
                         bool adds, int line);
void kg_emu_products_end(void);
void kg_emu_products_wait(int n, int line);

extern struct kg_traffic kg_dev_traffic; /* copies of put and get; defined in memory.cu */
/* As in dev.h. */
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
/* A copy owns its host memory until kg_dev_wait for a later mark. Until then, a
 * destination holds bytes of 0xff; if a source has changed, the wait faults. Host memory
 * that is not page-locked, or is freed before the wait, is a fault at once. */
void kg_dev_put_later(void *to, const void *from, uint64_t bytes);
void kg_dev_get_later(void *to, const void *from, uint64_t bytes);
void kg_dev_mark(uint64_t mark);
void kg_dev_wait(uint64_t mark);
bool kg_dev_reached(uint64_t mark); /* true; completes copies, as kg_dev_wait */
void kg_dev_copy(void *to, const void *from, uint64_t bytes);
void kg_dev_zero(void *to, uint64_t bytes);

/* As in dev.h. A record holds launches with copies of their arguments. While recording,
 * operations on memory, also on the host's, are faults. */
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
