/* Fetches models and data sets from the hub into the cache that data/hub.h describes.
 *
 * HF_ENDPOINT names the hub (default https://huggingface.co). The key is HF_TOKEN, else
 * HUGGING_FACE_HUB_TOKEN, else the contents of the file HF_TOKEN_PATH or HF_HOME/token.
 * It is sent only to the endpoint's own origin, even after a redirect. HF_HUB_OFFLINE=1
 * or TRANSFORMERS_OFFLINE=1 forbids requests. Proxies and certificates come from the
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
    /* borrowed; fnmatch patterns over file paths; '*' also matches '/'. Ignored if
     * name.file is set. If empty: for a data set all files, for a model what kedge reads
     * (*.safetensors at its top, *.json, *.model, *.jinja, merges.txt, vocab.txt) */
    const char *const *include;
    size_t n_include;
    /* 0: the defaults below; tests set others */
    int in_flight;       /* files at once: 8 */
    int stall_timeout_s; /* seconds without data: 30 */
    int backoff_ms;      /* before the second try: 500 */
};

struct kg_hub_pulled {
    struct kg_path dir; /* the snapshot */
    char commit[41];
    size_t files;
    uint64_t bytes, fetched; /* of all files; received over the network */
};

/* Fetches the files that are missing. A file is written under another name and renamed
 * once its length and digest (SHA-256 for LFS, git's SHA-1 for others) match the hub's
 * list; links and refs are written last. An interrupted pull continues where it stopped.
 * errors: ENOTFOUND, EINVAL (sign-in needed: the message says where; offline),
 * EUNSUPPORTED (no safetensors), EFORMAT (not a hub's response, wrong length or digest),
 * EIO, ETIMEOUT, ENOSPACE, EINTERRUPTED, ECONFLICT (another process is pulling it) */
kg_status kg_hub_pull(struct kg_hub_pulled *out, const struct kg_hub_pull_opts *opts,
                      struct kg_err *err) KG_MUST_CHECK;

#endif
