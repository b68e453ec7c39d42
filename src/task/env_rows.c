/* What can be said of a search environment, for recipes and suites: one table, so that a
 * key is in both or in neither and means the same.
 */
#include "task/env.h"

#define AT(field) KG_OPT_AT(struct kg_env_opts, field)
const struct kg_opt_row kg_env_search_rows[] = {
    {"search.where", AT(retriever), "", 0, 0, NULL,
     "env search: an index file, or http://HOST:PORT/retrieve", true},
    {"search.kind", AT(how.kind), "bm25", 0, 0, "bm25|dense|hybrid",
     "by what an index finds: words, vectors of an encoder, or both; what a server is "
     "expected to find by",
     false, "episode.env=search"},
    {"search.model", AT(how.model), "", 0, 0, NULL,
     "kind dense, hybrid: folder of the encoder that the index was made with, or "
     "ORG/NAME of the hub; of a server --dry-run says what it needs",
     true, "episode.env=search"},
    {"search.passages", AT(how.passages), "0", 0, UINT32_MAX, NULL,
     "passages that the index or the server is expected to have; 0: any number", false,
     "episode.env=search"},
    {"search.vectors", AT(how.vectors), "fp16", 0, 0, "fp16|int8",
     "kind dense, hybrid: a number of a vector in memory, 2 bytes or 1; int8 looks at "
     "what may be among the best once more in the file (results do not depend on it)",
     true, "episode.env=search&search.kind=dense,hybrid"},
    {"search.fusion", AT(how.fusion), "rank", 0, 0, "rank|score",
     "kind hybrid: two rankings become one by places (reciprocal rank) or by scores",
     false, "episode.env=search&search.kind=hybrid"},
    {"search.weight", AT(how.weight), "0.5", 0, 1, NULL,
     "kind hybrid: of the vectors' ranking, the words' has the rest", false,
     "episode.env=search&search.kind=hybrid"},
    {"search.topk", AT(topk), "3", 1, 1000, NULL, "passages for a query", false,
     "episode.env=search"},
    {"search.when_down", AT(stop_when_down), "stop", 0, 0, "observe|stop",
     "a retriever that stays down stops the run (training: behind its last whole step), "
     "or is told to the model and counted (training: episode/failed)",
     true, "episode.env=search"},
    {"search.timeout_ms", AT(timeout_ms), "30000", 1, 3.6e6, NULL,
     "time limit of one request to the retriever", true, "episode.env=search"},
    {"search.tries", AT(tries), "4", 1, 1000, NULL, "tries before it counts as down",
     true, "episode.env=search"},
    {0},
};
