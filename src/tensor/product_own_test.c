/* Own products and attention on a device where wgmma and mma.sync add in different ways:
 * wgmma is not used, and the backend says so. This is a process of its own, because a
 * process tries a device once. */
#include "tensor/attention_testing.h"

static struct kg_err err;

static void an_instruction_with_other_bits_is_not_used(void **state)
{
    enum { ROWS = 200, COLS = 136, K = 40 };
    char text[320];

    (void)state;
    kg_emu_eights(true);
    struct kg_mat a = matrix(KG_BF16, ROWS, K), b = matrix(KG_BF16, COLS, K);
    struct kg_mat c = matrix(KG_F32, ROWS, COLS);
    const int64_t tried = kg_emu_products();

    assert_true(tried > 0);
    backend()->describe(text, sizeof text);
    if (!strstr(text, "; not by wgmma: other bits of NT ") || strstr(text, "NT 0 ") ||
        strstr(text, "NN 0 ") || strstr(text, "TN 0 "))
        fail_msg("expected other bits of each kind, found \"%s\"", text);
    assert_int_equal(kg_op_matmul(backend(), c, a, b, KG_MATMUL_NT, false, &err), KG_OK);
    assert_true(kg_emu_products() == tried);
    buffer_free(a.data);
    buffer_free(b.data);
    buffer_free(c.data);
}

static void nor_is_it_for_attention(void **state)
{
    struct problem p = {KG_BF16,  .heads = 2,  .kv_heads = 1,
                        .hd = 64, .n_seqs = 1, .lengths = {200}};
    const int64_t tried = kg_emu_products();
    struct answer out;
    char text[320];

    (void)state;
    backend()->describe(text, sizeof text);
    if (!strstr(text, "; attention not by wgmma: other bits of ") ||
        strstr(text, "other bits of 0 ") || strstr(text, " and 0 in"))
        fail_msg("expected other bits of heads of 64 and 128, found \"%s\"", text);
    problem_init(&p);
    out = whole(&p);
    assert_true(kg_emu_products() == tried);
    answer_release(&out);
    problem_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_instruction_with_other_bits_is_not_used),
        cmocka_unit_test(nor_is_it_for_attention)};

    if (!use_backend("emu"))
        return 0;
    setenv("KEDGE_TEST_PRODUCTS", "own", 1);
    return RUN_OPENING_EMULATION(tests);
}
