/* Element types: names, rounding, and conversion of every 16-bit pattern and back. */
#include "tensor/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct kg_err err;

static void names_are_parsed_and_unknown_ones_list_the_valid(void **state)
{
    (void)state;
    for (int i = 0; i < KG_DTYPE_COUNT; i++) {
        const struct kg_dtype_traits *t = kg_dtype_traits((enum kg_dtype)i);
        enum kg_dtype a;
        enum kg_dtype b;
        assert_int_equal(kg_dtype_parse(&a, t->name, &err), KG_OK);
        assert_int_equal(kg_dtype_parse(&b, t->safetensors_name, &err), KG_OK);
        assert_true(a == (enum kg_dtype)i && b == a);
    }
    enum kg_dtype t;
    assert_int_equal(kg_dtype_parse(&t, "fp8", &err), KG_EINVAL);
    assert_non_null(strstr(err.message, "bf16"));
    assert_non_null(strstr(err.message, "\"fp8\""));
}

static void every_bf16_comes_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f;
        uint16_t in = (uint16_t)h;
        uint16_t out;
        assert_int_equal(kg_dtype_convert(&f, KG_F32, &in, KG_BF16, 1, &err), KG_OK);
        assert_int_equal(kg_dtype_convert(&out, KG_BF16, &f, KG_F32, 1, &err), KG_OK);
        if (isnan(f))
            assert_true((out & 0x7fffu) > 0x7f80u);
        else
            assert_int_equal(in, out);
    }
}

static void rounding_to_bf16_is_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(kg_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(kg_f32_to_bf16(0x1.01p0f), 0x3f80); /* a tie, down to even */
    assert_int_equal(kg_f32_to_bf16(0x1.03p0f), 0x3f82); /* a tie, up to even */
    assert_int_equal(kg_f32_to_bf16(0x1.010002p0f), 0x3f81);
    assert_int_equal(kg_f32_to_bf16(0x1.fffffep127f), 0x7f80);
    assert_int_equal(kg_f32_to_bf16(-0.0f), 0x8000);
}

/* The mean over all 65,536 draws is the value, exactly. */
static void drawn_rounding_has_the_value_as_its_mean(void **state)
{
    static const float values[] = {1.0f,           1 + 0x1p-23f, -0x1.234566p5f,
                                   0x1.7fffep-90f, 0x1p-149f,    -0x1.5p-130f,
                                   0x1.fefffep127f};
    static const float kept[] = {0.0f, -0.0f, -1.5f, 0x1p-133f, 0x1.fep127f, INFINITY};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double sum = 0;
        for (uint32_t draw = 0; draw < 65536; draw++)
            sum += (double)kg_bf16_to_f32(
                kg_f32_to_bf16_drawn(values[i], (uint16_t)draw));
        assert_true(isinf(sum) ? values[i] > 0x1.fep127f
                               : sum == 65536 * (double)values[i]);
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        for (uint32_t draw = 0; draw < 65536; draw++)
            assert_int_equal(kg_f32_to_bf16_drawn(kept[i], (uint16_t)draw),
                             kg_f32_to_bf16(kept[i]));
    assert_true(isnan(kg_bf16_to_f32(kg_f32_to_bf16_drawn(NAN, 0xffff))));
    assert_int_equal(kg_f32_to_bf16_drawn(-0x1.fffffep127f, 0), 0xff7f);
    assert_int_equal(kg_f32_to_bf16_drawn(-0x1.fffffep127f, 0xffff), 0xff80);
}

static void every_fp16_is_read_by_its_definition(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t in = (uint16_t)h;
        float f;
        assert_int_equal(kg_dtype_convert(&f, KG_F32, &in, KG_F16, 1, &err), KG_OK);
        int exponent = (int)(h >> 10 & 31);
        double fraction = (double)(h & 1023) / 1024;
        double want = exponent ? ldexp(1 + fraction, exponent - 15)
                               : ldexp(fraction, -14);
        if (exponent == 31)
            want = fraction > 0 ? (double)NAN : HUGE_VAL;
        want = h >> 15 ? -want : want;
        if (isnan(want))
            assert_true(isnan(f));
        else
            assert_true((double)f == want && !signbit(f) == !signbit(want));
    }
}

static void fp16_to_bf16_rounds_and_nothing_becomes_fp16(void **state)
{
    (void)state;
    unsigned char odd[3] = {0, 0x01, 0x3c}; /* 1 + 2^-10 at an odd address */
    uint16_t h;
    float one = 1;
    assert_int_equal(kg_dtype_convert(&h, KG_BF16, odd + 1, KG_F16, 1, &err), KG_OK);
    assert_int_equal(h, 0x3f80);
    assert_int_equal(kg_dtype_convert(&h, KG_F16, &one, KG_F32, 1, &err), KG_EDTYPE);
    assert_int_equal(kg_dtype_convert(&h, KG_F16, odd + 1, KG_F16, 1, &err), KG_OK);
    assert_int_equal(h, 0x3c01);
}

/* torch 2.15: torch.tensor(x, dtype=float64).to(float32) and .to(bfloat16), which rounds
 * twice. */
static void fp64_is_rounded_as_torch_does(void **state)
{
    static const struct {
        double x;
        uint32_t f32;
        uint16_t bf16;
    } rows[] = {
        {0x1.999999999999ap-4, 0x3dcccccd, 0x3dcd},
        {0x1.5555555555555p-2, 0x3eaaaaab, 0x3eab},
        {-0x1.4000000000000p+1, 0xc0200000, 0xc020},
        {0x1.0000010000000p+0, 0x3f800000, 0x3f80},
        {0x1.0000010001000p+0, 0x3f800001, 0x3f80},
        {0x1.0100000000000p+0, 0x3f808000, 0x3f80},
        {0x1.0100000400000p+0, 0x3f808000, 0x3f80},
        {0x1.0300000000000p+0, 0x3f818000, 0x3f82},
        {0x1.fffffe54daff8p+127, 0x7f7fffff, 0x7f80},
        {0x1.ffffff514a7bcp+127, 0x7f800000, 0x7f80},
        {-0x1.78287f49c4a1dp+129, 0xff800000, 0xff80},
        {0x1.6d601ad376ab9p-150, 0x00000001, 0x0000},
        {0x1.ff868bf4d956ap-151, 0x00000000, 0x0000},
        {0x1.16c262777579cp-133, 0x000116c2, 0x0001},
        {0x1.0000000000000p-150, 0x00000000, 0x0000},
        {0x1.0000035afe535p-150, 0x00000001, 0x0000},
        {0x1.ffb480a5accd5p-15, 0x387fda40, 0x3880},
        {0x1.ffc0000000000p+15, 0x477fe000, 0x4780},
    };
    unsigned char odd[1 + sizeof(double)]; /* as in a mapped file */
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t f32;
        uint16_t bf16;
        memcpy(odd + 1, &rows[i].x, sizeof rows[i].x);
        assert_int_equal(kg_dtype_convert(&f32, KG_F32, odd + 1, KG_F64, 1, &err), KG_OK);
        assert_int_equal(kg_dtype_convert(&bf16, KG_BF16, odd + 1, KG_F64, 1, &err),
                         KG_OK);
        if (f32 != rows[i].f32 || bf16 != rows[i].bf16)
            fail_msg("%a: found %08x and %04x", rows[i].x, f32, bf16);
        assert_int_equal(kg_dtype_convert(odd, KG_F64, &f32, KG_F32, 1, &err), KG_EDTYPE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_parsed_and_unknown_ones_list_the_valid),
        cmocka_unit_test(every_bf16_comes_back),
        cmocka_unit_test(rounding_to_bf16_is_to_nearest_even),
        cmocka_unit_test(drawn_rounding_has_the_value_as_its_mean),
        cmocka_unit_test(every_fp16_is_read_by_its_definition),
        cmocka_unit_test(fp16_to_bf16_rounds_and_nothing_becomes_fp16),
        cmocka_unit_test(fp64_is_rounded_as_torch_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
