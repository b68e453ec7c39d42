/* Tests of the hash: it depends on every bit of the input, its length and the order of
 * its words.
 */
#include "base/hash.h"

#include "base/folder_testing.h"

enum { BYTES = 163 };

static void fill(unsigned char bytes[BYTES])
{
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 37 + 11);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void assert_all_differ(uint64_t *hashes, size_t n)
{
    qsort(hashes, n, sizeof *hashes, by_value);
    for (size_t i = 1; i < n; i++)
        assert_true(hashes[i] != hashes[i - 1]);
}

static void changes_with_every_bit(void **state)
{
    static uint64_t hashes[BYTES * 8 + 1];
    unsigned char bytes[BYTES];

    (void)state;
    fill(bytes);
    for (int bit = 0; bit < BYTES * 8; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        hashes[bit] = kg_hash_bytes(bytes, BYTES);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    hashes[BYTES * 8] = kg_hash_bytes(bytes, BYTES);
    assert_all_differ(hashes, BYTES * 8 + 1);
}

static void changes_with_the_length_even_of_zeros(void **state)
{
    static const unsigned char zeros[BYTES];
    uint64_t hashes[BYTES + 1];

    (void)state;
    for (size_t n = 0; n <= BYTES; n++)
        hashes[n] = kg_hash_bytes(zeros, n);
    assert_all_differ(hashes, BYTES + 1);
}

static void changes_when_words_change_places(void **state)
{
    enum { WORDS = 12 };
    uint64_t words[WORDS], hashes[WORDS * (WORDS - 1) / 2 + 1];
    size_t n = 0;

    (void)state;
    for (int i = 0; i < WORDS; i++)
        words[i] = (uint64_t)i * i + 1;
    hashes[n++] = kg_hash_bytes(words, sizeof words);
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < i; j++) {
            uint64_t held[WORDS];

            memcpy(held, words, sizeof held);
            held[i] = words[j];
            held[j] = words[i];
            hashes[n++] = kg_hash_bytes(held, sizeof held);
        }
    assert_all_differ(hashes, n);
}

/* Builds read manifests that other builds wrote, so the function must never change. */
static void stays_the_function_that_manifests_were_written_with(void **state)
{
    unsigned char bytes[BYTES];

    (void)state;
    fill(bytes);
    assert_true(kg_hash_bytes("", 0) == 0xe821a9cc1f06a6e9u);
    assert_true(kg_hash_bytes("kedge", 5) == 0xe3bc16b1ca082e43u);
    assert_true(kg_hash_bytes(bytes, BYTES) == 0xa71c17bb91294cf8u);
}

static void hashes_a_file_as_its_bytes(void **state)
{
    unsigned char bytes[BYTES];
    uint64_t hash, n;

    (void)state;
    fill(bytes);
    assert_int_equal(kg_file_write_atomic(in_dir("x"), bytes, BYTES, &err), KG_OK);
    assert_int_equal(kg_hash_file(&hash, &n, in_dir("x"), &err), KG_OK);
    assert_int_equal(n, BYTES);
    assert_true(hash == kg_hash_bytes(bytes, BYTES));
    assert_int_equal(kg_file_remove_tree(in_dir("x"), &err), KG_OK);
    assert_int_equal(kg_hash_file(&hash, &n, in_dir("x"), &err), KG_ENOTFOUND);
}

/* The file is longer than one read of 4 MiB. */
static void hashes_a_large_file_as_its_bytes(void **state)
{
    const size_t n = ((size_t)8 << 20) + 21;
    unsigned char *bytes = malloc(n);
    uint64_t hash, found;

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(i * 37 + i / 4099);
    for (size_t cut = 0; cut <= 21; cut += 7) {
        assert_int_equal(kg_file_write_atomic(in_dir("large"), bytes, n - cut, &err),
                         KG_OK);
        assert_int_equal(kg_hash_file(&hash, &found, in_dir("large"), &err), KG_OK);
        assert_int_equal(found, n - cut);
        assert_true(hash == kg_hash_bytes(bytes, n - cut));
    }
    free(bytes);
}

/* The check value of the CRC catalogue, and the test vectors of RFC 3720. */
static void crc32c_is_the_published_one(void **state)
{
    unsigned char bytes[32];

    (void)state;
    assert_int_equal(kg_hash_crc32c("", 0), 0);
    assert_int_equal(kg_hash_crc32c("123456789", 9), 0xe3069283u);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(kg_hash_crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(kg_hash_crc32c(bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(kg_hash_crc32c(bytes, 32), 0x46dd794eu);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)(31 - i);
    assert_int_equal(kg_hash_crc32c(bytes, 32), 0x113fdb5cu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_with_every_bit),
        cmocka_unit_test(changes_with_the_length_even_of_zeros),
        cmocka_unit_test(changes_when_words_change_places),
        cmocka_unit_test(stays_the_function_that_manifests_were_written_with),
        cmocka_unit_test(crc32c_is_the_published_one),
        cmocka_unit_test_setup_teardown(hashes_a_file_as_its_bytes, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(hashes_a_large_file_as_its_bytes, make_dir,
                                        remove_dir),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
