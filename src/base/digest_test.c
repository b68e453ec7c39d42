/* Tests of digests: the standard's examples, and input in pieces of every length. */
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void is(enum kg_digest_kind kind, const char *bytes, size_t n,
               const char *expected)
{
    char text[KG_DIGEST_TEXT];
    struct kg_digest d;

    kg_digest_begin(&d, kind);
    kg_digest_put(&d, bytes, n);
    kg_digest_end(text, &d);
    assert_string_equal(text, expected);
}

static void examples_of_the_standard(void **state)
{
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";

    (void)state;
    is(KG_SHA1, "abc", 3, "a9993e364706816aba3e25717850c26c9cd0d89d");
    is(KG_SHA1, two, strlen(two), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    is(KG_SHA1, "", 0, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    is(KG_SHA256, "abc", 3,
       "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    is(KG_SHA256, two, strlen(two),
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    is(KG_SHA256, "", 0,
       "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void a_million_letters(void **state)
{
    char *a = malloc(1000000);

    (void)state;
    assert_non_null(a);
    memset(a, 'a', 1000000);
    is(KG_SHA1, a, 1000000, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    is(KG_SHA256, a, 1000000,
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(a);
}

/* Every length around a block, split at every position. */
static void pieces_are_the_whole(void **state)
{
    char bytes[150], whole[KG_DIGEST_TEXT], parts[KG_DIGEST_TEXT];
    struct kg_digest d;

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * i);
    for (int k = 0; k < 2; k++)
        for (size_t n = 0; n <= sizeof bytes; n++)
            for (size_t cut = 0; cut <= n; cut++) {
                kg_digest_begin(&d, (enum kg_digest_kind)k);
                kg_digest_put(&d, bytes, n);
                kg_digest_end(whole, &d);
                kg_digest_begin(&d, (enum kg_digest_kind)k);
                kg_digest_put(&d, bytes, cut);
                kg_digest_put(&d, bytes + cut, n - cut);
                kg_digest_end(parts, &d);
                assert_string_equal(whole, parts);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples_of_the_standard),
        cmocka_unit_test(a_million_letters),
        cmocka_unit_test(pieces_are_the_whole),
    };

    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
