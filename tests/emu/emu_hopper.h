/* hopper.h for a C++ compiler, executed by emu_async.c. Included by hopper.h. */
#ifndef KG_EMU_HOPPER_H
#define KG_EMU_HOPPER_H

enum { KG_HOPPER = 1 };
#define __grid_constant__
#define KG_LAUNCH_HOPPER(bytes, kernel, grid, threads, ...)                              \
    (kg_emu_ask(#kernel, bytes, KG_HOPPER_MOST),                                         \
     KG_LAUNCH(kernel, grid, threads, __VA_ARGS__))

static inline void kg_barrier_init(struct kg_barrier *b, int arrivals)
{
    kg_emu_barrier_init(b, arrivals);
}
static inline void kg_barriers_end(void) {}
static inline void kg_barrier_arrive(struct kg_barrier *b, int line = __builtin_LINE())
{
    kg_emu_barrier_arrive(b, 0, line);
}
static inline void kg_barrier_expect(struct kg_barrier *b, int bytes,
                                     int line = __builtin_LINE())
{
    kg_emu_barrier_arrive(b, bytes, line);
}
/* A wait that would never end is a fault. */
static inline bool kg_barrier_wait(struct kg_barrier *b, int parity, int,
                                   int line = __builtin_LINE())
{
    kg_emu_barrier_wait(b, parity, line);
    return true;
}

static inline void kg_box_later(void *to, const struct kg_boxes *boxes, int row, int col,
                                struct kg_barrier *b, int line = __builtin_LINE())
{
    struct kg_emu_matrix from;

    memcpy(&from, boxes, sizeof from);
    kg_emu_box((char *)to, &from, row, col, b, line);
}

static inline int kg_box_place(int r, int c) { return r * 2 * KG_BOX + (c ^ r % 8) * 16; }
static inline void kg_write_later(void *to, const uint32_t part[4],
                                  int line = __builtin_LINE())
{
    kg_emu_write(to, part, line);
}
static inline void kg_writes_end(void) { kg_emu_writes_end(); }

struct kg_factors_at {
    const char *at;
    int block, eight;
};
static inline struct kg_factors_at kg_factors_at(const void *at, int block, int eight)
{
    return {(const char *)at, block, eight};
}
static inline struct kg_factors_at kg_factors_after(struct kg_factors_at f, int bytes)
{
    return {f.at + bytes, f.block, f.eight};
}
template <typename T> static inline T kg_same(T x) { return x; }
/* All lanes of a warp must call each of these. */
static inline void kg_products_begin(int line = __builtin_LINE())
{
    __syncwarp(line);
    kg_emu_products_begin();
}
static inline void kg_products_end(int line = __builtin_LINE())
{
    __syncwarp(line);
    kg_emu_products_end();
}
template <int N> static inline void kg_products_wait(int line = __builtin_LINE())
{
    __syncwarp(line);
    kg_emu_products_wait(N, line);
    __syncwarp(line); /* no lane continues before all have waited */
}
template <int N, bool A_COLUMNS, bool B_COLUMNS>
static inline void kg_multiply_later(float d[N / 2], struct kg_factors_at a,
                                     struct kg_factors_at b, bool adds = true,
                                     int line = __builtin_LINE())
{
    __syncwarp(line);
    kg_emu_product(d, N, {a.at, a.block, a.eight, A_COLUMNS},
                   {b.at, b.block, b.eight, B_COLUMNS}, adds, line);
}

template <int N, bool B_COLUMNS>
static inline void kg_multiply_later(float d[N / 2], const uint32_t a[4],
                                     struct kg_factors_at b, bool adds = true,
                                     int line = __builtin_LINE())
{
    kg_emu_product_left(d, N, a, {b.at, b.block, b.eight, B_COLUMNS}, adds, line);
}
template <int N> static inline void kg_sums_are_there(float *) {}
template <int N> static inline void kg_left_is_there(uint32_t *) {}

template <int N> static inline void kg_registers_fewer(void) { __syncwarp(); }
template <int N> static inline void kg_registers_more(void) { __syncwarp(); }

#endif
