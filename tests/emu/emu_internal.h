/* Interface between the fibers (emu.c) and asynchronous operations (emu_async.c). */
#ifndef KG_EMU_INTERNAL_H
#define KG_EMU_INTERNAL_H

#include "emu/emu.h"

enum { KG_EMU_THREADS = 1024 /* of a block */ };

/* Ends the block with a fault of the running thread. */
_Noreturn void kg_emu_blame(const char *fmt, ...) KG_PRINTF(1, 2);

/* The running thread sleeps until another thread wakes it. */
void kg_emu_sleep(int line);
void kg_emu_wake(unsigned thread);

/* emu.c calls _begin before a block starts, _end when a thread of it ends. */
void kg_emu_async_begin(unsigned threads);
void kg_emu_async_end(unsigned thread);
/* Number of boxes of the block that no thread waited for. */
int kg_emu_boxes_left(void);

#endif
