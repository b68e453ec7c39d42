/* Fetching models and data sets from the hub into the cache that data/hub.h describes.
 *
 * HF_ENDPOINT names the hub (default https://huggingface.co). HF_TOKEN, or the file
 * HF_TOKEN_PATH, or HF_HOME/token, is who asks; it is told to the endpoint's own origin
 * and to no other that an answer sends the client to. With HF_HUB_OFFLINE=1 or
 * TRANSFORMERS_OFFLINE=1 nothing is asked. Proxies and certificates are those of the
 * environment (http_client.h).
 */
#ifndef KG_NET_HUB_H
#define KG_NET_HUB_H

#include "base/status.h"
#include "data/hub.h"

#include <stddef.h>
#include <stdint.h>

struct kg_hub_pull_opts {
    struct kg_hub_name name;
    /* Patterns of fnmatch over paths of files, '*' matching '/' too. None: of a model the
     * files that kedge reads (*.safetensors at its top, *.json, *.model, *.jinja,
     * merges.txt, vocab.txt), of a data set all, or name.file alone. Borrowed. */
    const char *const *include;
    size_t n_include;
    /* 0: what is usual; tests have others */
    int in_flight;       /* connections: 8 */
    uint64_t part_bytes; /* of a large file: 32 MiB */
    int stall_timeout_s; /* without a byte: 30 */
    int backoff_ms;      /* before a second try: 500 */
};

struct kg_hub_pulled {
    struct kg_path dir; /* the snapshot */
    char commit[41];
    size_t files;
    uint64_t bytes, fetched; /* of all files; over the network */
};

/* Fetch what is not there yet. A file is written beside its place and takes its name when
 * its length and its digest (SHA-256 of LFS, git's of others) are what the hub's list
 * says; links and refs come last. What was interrupted goes on where it was.
 * errors: NOTFOUND, EINVAL (asked to sign in: the line says where), EFORMAT (an answer
 * that is none of a hub, another length, another digest), EIO, ETIMEOUT, ENOSPACE,
 * EINTERRUPTED, ECONFLICT (another process pulls it) */
kg_status kg_hub_pull(struct kg_hub_pulled *out, const struct kg_hub_pull_opts *opts,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
