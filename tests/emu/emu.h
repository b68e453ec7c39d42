/* Device code without a device: the threads of a block as fibers of one host thread.
 *
 * A barrier or an exchange within a warp goes on with another fiber, in an order that is
 * one of three; a kernel without a race gives the same bits in all. What a device may
 * answer by anything at all is a fault here: a barrier that some threads never reach or
 * that is another one for some, a pointer of the host's, lanes that are not there, a copy
 * that nobody waits for. What a copy brings is NaN until it is waited for. Shared memory
 * begins as NaN in each block and ends where its page ends; device memory opens
 * to a kernel or a copy while it runs, as far as its arguments name it (tensor/pages.h).
 *
 * Linked into tests alone, and only where a C++ compiler is: elsewhere kg_emu_open is
 * NULL.
 */
#ifndef KG_EMU_H
#define KG_EMU_H

#ifdef __cplusplus
extern "C" {
#endif
#include "tensor/backend.h"

/* ---- for tests ---- */
/* The backend "emu", with products as kg_device_test_opts says. */
kg_status kg_emu_open(const struct kg_backend **be, struct kg_err *err) KG_GUEST;

enum kg_emu_schedule {
    KG_EMU_ROUND_ROBIN, /* every thread to its next barrier, by turns */
    KG_EMU_FORWARD,     /* the first warp as far as it gets, then the next */
    KG_EMU_BACKWARD,    /* from the last thread of the last block */
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

/* Whether records can be made, as they can at the start. */
void kg_emu_records(bool possible) KG_GUEST;

/* ---- for what stands in the place of CUDA (emu_dev.h) ---- */
struct kg_emu_dim {
    unsigned x, y, z;
};
extern struct kg_emu_dim kg_emu_thread; /* the fiber that runs */
extern struct kg_emu_dim kg_emu_block;

/* What a lane can show the others at a time. */
enum { KG_EMU_WARP = 32, KG_EMU_SHOWN = 48 };

/* run(arg) by `threads` threads of every block; arg is of so many bytes. After a fault
 * nothing is launched until it was told. */
void kg_emu_launch(const char *name, struct kg_emu_dim grid, unsigned threads,
                   void (*run)(void *), void *arg, size_t bytes);
/* A pointer among a kernel's arguments: a fault where it is the host's. */
void kg_emu_argument(const char *name, const void *p);
/* An argument of the launch that comes next: the buffers that it points into will be open
 * for it, and no others. */
void kg_emu_lend(const void *argument, size_t bytes);
void kg_emu_barrier(int line);
/* What the lanes of the warp show each other, KG_EMU_SHOWN bytes each; valid until the
 * next exchange. A mask is of all lanes. The lane that comes last calls together(shown)
 * before any goes on: what all would compute of it is computed once; NULL: nothing. */
const char *kg_emu_exchange(unsigned mask, const void *mine, size_t bytes,
                            void (*together)(char *shown), int line);
/* The block's memory of this name. */
void *kg_emu_shared(const void *name, size_t bytes);
/* For the launch that comes next; what each of its blocks has been given. */
void kg_emu_ask(const char *name, size_t bytes, size_t most);
void *kg_emu_asked(void);
/* A row of kg_fragments: a fault where it begins at no multiple of sixteen. */
void kg_emu_row(const void *row, int line);
/* As those of dev.h: bytes of sixteen are read when their group is waited for. */
void kg_emu_copy(void *to, const void *from, int bytes, int line);
void kg_emu_copies_end(void);
void kg_emu_copies_wait(int n);

extern struct kg_traffic kg_dev_traffic; /* of put and get; memory.cu has it */
/* As those of dev.h: from or to the host, or within the device. */
void *kg_dev_alloc(uint64_t bytes, const char *what, struct kg_err *err);
void kg_dev_spoil(void *memory, uint64_t bytes);
void kg_dev_free(void *memory);
kg_status kg_dev_memory(uint64_t *total, uint64_t *free, struct kg_err *err);
void kg_dev_put(void *to, const void *from, uint64_t bytes);
void kg_dev_get(void *to, const void *from, uint64_t bytes);
void *kg_dev_pin(uint64_t bytes, const char *what, struct kg_err *err);
void kg_dev_unpin(void *memory);
/* An error where `to` is not within memory of kg_dev_pin. */
void kg_dev_fetch(void *to, const void *from, uint64_t bytes);
/* The host's memory belongs to a copy until a mark behind it was waited for: what is got
 * stands there as bytes of 0xff until then, and what was changed meanwhile is a fault of
 * the wait; memory that is not page-locked, or is given back too early, one at once. */
void kg_dev_put_later(void *to, const void *from, uint64_t bytes);
void kg_dev_get_later(void *to, const void *from, uint64_t bytes);
void kg_dev_mark(uint64_t mark);
void kg_dev_wait(uint64_t mark);
bool kg_dev_reached(uint64_t mark); /* always: what it gives back is the host's then */
void kg_dev_copy(void *to, const void *from, uint64_t bytes);
void kg_dev_zero(void *to, uint64_t bytes);

/* As those of dev.h. A record has what was launched with copies of all arguments; memory,
 * the host's too, is no part of one: a fault. */
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

/* The first fault since it was asked last, as an error of `op`. */
kg_status kg_dev_done(const char *op, struct kg_err *err);

#ifdef __cplusplus
}
#endif
#endif
