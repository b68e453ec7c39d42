/* The Modelfile for a GGUF file in Ollama, with FROM, TEMPLATE and PARAMETER stop.
 *
 * Ollama uses Go's templates. The texts around messages are found by rendering probe
 * conversations with the chat template, so no table of model families is needed.
 */
#ifndef KG_GGUF_OLLAMA_H
#define KG_GGUF_OLLAMA_H

#include "base/status.h"
#include "base/str.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

struct kg_ollama {
    const char *from; /* the GGUF file, for FROM */
    const struct kg_chat_template *chat;
    const struct kg_tokenizer *tok;
    const int32_t *eos; /* (n_eos) end tokens */
    size_t n_eos;
    int64_t now_s; /* time for chat templates; 0: the clock */
};

/* Appends the text of a Modelfile. A date in the chat template becomes fixed text. If the
 * template has no system messages, the Modelfile puts them before the first user message.
 * Each of the two logs a warning.
 * errors: EUNSUPPORTED (a chat template that does not write messages between fixed
 * texts), those of rendering */
kg_status kg_ollama_modelfile(struct kg_str *out, const struct kg_ollama *o,
                              struct kg_err *err) KG_MUST_CHECK;

#endif
