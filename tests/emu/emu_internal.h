/* What the fibers (emu.c), and what they do not wait for (emu_async.c), have of each
 * other. */
#ifndef KG_EMU_INTERNAL_H
#define KG_EMU_INTERNAL_H

#include "emu/emu.h"

enum { KG_EMU_THREADS = 1024 /* of a block */ };

/* Ends the block with a fault of the thread that runs. */
_Noreturn void kg_emu_blame(const char *fmt, ...) KG_PRINTF(1, 2);

/* The thread that runs goes on when another one wakes it. */
void kg_emu_sleep(int line);
void kg_emu_wake(unsigned thread);

/* Before a block, and when a thread of it is done. */
void kg_emu_async_begin(unsigned threads);
void kg_emu_async_end(unsigned thread);
/* Boxes that nobody waited for. */
int kg_emu_boxes_left(void);

#endif
