/* A request's key is compared with every key and to the last byte, so that timing does
 * not reveal a match. */
#include "net/http_keys.h"

#include "base/file.h"

enum { MAX_FILE_BYTES = 1 << 20 };
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

static bool same_key(const char *found, const char *key)
{
    size_t n = strlen(found);
    size_t key_n = strlen(key);
    volatile unsigned differ = n != key_n;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)found[i] ^ (unsigned char)key[i % key_n];
    return differ == 0;
}

int kg_http_keys_find(const struct kg_http_key *list, size_t n, const char *found)
{
    int which = -1;
    for (size_t i = 0; i < n; i++)
        which = same_key(found, list[i].key) ? (int)i : which;
    return which;
}

static bool is_name(const char *name)
{
    const size_t n = strlen(name);
    return n > 0 && n <= KG_HTTP_NAME_BYTES && kg_char_in(LETTERS, name[0]) &&
           n == strspn(name, LETTERS "0123456789-_");
}

/* Only visible ASCII characters: a header can carry them. */
static bool is_key(const char *key)
{
    const size_t n = strlen(key);
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return false;
    return n >= KG_HTTP_LEAST_KEY_BYTES;
}

/* Cuts the next word off the line.   returns "" at the end */
static char *next_word(char **line)
{
    char *word = *line + strspn(*line, " \t\r");
    char *end = word + strcspn(word, " \t\r");
    *line = end + (*end != '\0');
    *end = '\0';
    return word;
}

static kg_status take_line(struct kg_http_keys *keys, char *line, struct kg_err *err)
{
    struct kg_http_key k = {.name = next_word(&line)};
    if (k.name[0] == '\0' || k.name[0] == '#')
        return KG_OK;
    k.key = next_word(&line);
    if (!is_name(k.name) || !is_key(k.key) || *next_word(&line) != '\0')
        return kg_fail(err, KG_EFORMAT,
                       "expected NAME KEY: a name of 1 to %d letters, digits, - and _, a "
                       "letter first, and a key of at least %d visible characters",
                       KG_HTTP_NAME_BYTES, KG_HTTP_LEAST_KEY_BYTES);
    if (keys->n == KG_HTTP_USERS)
        return kg_fail(err, KG_EFORMAT, "expected at most %d users, found more",
                       KG_HTTP_USERS);
    for (size_t i = 0; i < keys->n; i++)
        if (strcasecmp(keys->list[i].name, k.name) == 0)
            return kg_fail(err, KG_EFORMAT,
                           "expected a different name for each user, found '%s' twice",
                           k.name);
    const int same = kg_http_keys_find(keys->list, keys->n, k.key);
    if (same >= 0)
        return kg_fail(
            err, KG_EFORMAT,
            "expected a different key for each user, found the key of '%s' also at '%s'",
            keys->list[same].name, k.name);
    keys->list[keys->n++] = k;
    return KG_OK;
}

kg_status kg_http_keys_read(struct kg_http_keys *keys, const char *path,
                            struct kg_err *err)
{
    *keys = (struct kg_http_keys){.n = 0};
    KG_TRY(kg_file_read_secret(&keys->text, path, MAX_FILE_BYTES, err));
    char *line = keys->text.data;
    if (strlen(kg_str_text(&keys->text)) != keys->text.len) /* a NUL hides users */
        return kg_fail(err, KG_EFORMAT, "%s: expected lines of text, found a NUL", path);
    for (int number = 1; line; number++) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        if (take_line(keys, line, err) != KG_OK)
            return kg_err_prefix(err, "%s line %d", path, number);
        line = end ? end + 1 : NULL;
    }
    if (keys->n > 0)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "%s: expected a line NAME KEY, found none", path);
}

void kg_http_keys_release(struct kg_http_keys *keys)
{
    if (keys->text.data)
        explicit_bzero(keys->text.data, keys->text.len);
    kg_str_release(&keys->text);
    *keys = (struct kg_http_keys){.n = 0};
}
