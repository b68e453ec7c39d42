"""Writes tests/data/gguf/greedy.jsonl: for each architecture a config.json and adapters, whose files in GGUF
tests/llama_cpp_test writes, hashes of these files, and 20 prompts with 64 greedy tokens of llama.cpp in fp32 (cache in
F32), without and with the adapters. Prompts are those in which the likeliest token always leads by more than rounding
can change: in log-probs by 2e-4, for Gemma by 6e-3, because llama.cpp takes GELU from a table of fp16 there.
And tests/data/gguf/chats.jsonl: files with a tokenizer and a chat template, conversations, and 64 greedy tokens of
llama.cpp after each, rendered and encoded by what the file has.
Usage: make_llama_cpp.py build/release/test/tests/llama_cpp_test chats|greedy .. (needs llama-cpp-python 0.3.36)."""

import json
import subprocess
import sys
import tempfile

import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
PROMPTS, NEW = 20, 64
BASE = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=10000.0,
            tie_word_embeddings=False, eos_token_id=2, bos_token_id=1)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1, mlp_only_layers=[])
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
ALL = dict(r=3, lora_alpha=6)
RSLORA = dict(r=4, lora_alpha=6, use_rslora=True)
PATTERNS = dict(r=2, lora_alpha=3, rank_pattern={"q_proj": 4, "down_proj": 3}, alpha_pattern={"o_proj": 5, "k_proj": 1.5})
ATTENTION = dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
GELU = dict(hidden_activation="gelu_pytorch_tanh", head_dim=16, query_pre_attn_scalar=16, tie_word_embeddings=True)

# name, model_type, fields beside BASE, adapters
CASES = [
    ("llama", "llama", {}, PATTERNS),
    ("llama_3", "llama", dict(rope_scaling=LLAMA3, head_dim=16, tie_word_embeddings=True), ALL),
    ("llama_linear", "llama", dict(rope_scaling=dict(rope_type="linear", factor=3.0), attention_bias=False), None),
    ("llama_yarn", "llama", dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)), None),
    ("mistral", "mistral", dict(sliding_window=None, head_dim=16), RSLORA),
    ("mixtral", "mixtral", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=None), ALL),
    ("qwen2", "qwen2", dict(tie_word_embeddings=True), RSLORA),
    ("qwen2_moe", "qwen2_moe", dict(EXPERTS, shared_expert_intermediate_size=40), ATTENTION),
    ("qwen3", "qwen3", dict(head_dim=16), PATTERNS),
    ("qwen3_moe", "qwen3_moe", dict(EXPERTS, head_dim=16, norm_topk_prob=True), ALL),
    ("gemma2", "gemma2", dict(GELU, sliding_window=16, attn_logit_softcapping=20.0, final_logit_softcapping=15.0), ALL),
    ("gemma3", "gemma3_text", dict(GELU, num_hidden_layers=7, sliding_window=16, rope_local_base_freq=1000.0), ALL),
    ("phi3", "phi3", dict(sliding_window=None, pad_token_id=0), ALL),
    ("phi3_longrope", "phi3", dict(sliding_window=None, pad_token_id=0, original_max_position_embeddings=256,
                                   max_position_embeddings=256,
                                   rope_scaling=dict(type="longrope", short_factor=[1.0, 1.1, 1.3, 1.7],
                                                     long_factor=[1.1, 2.0, 5.0, 21.5])), None),
    ("granite", "granite", dict(attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.7,
                                logits_scaling=2.0), RSLORA),
    ("olmo2", "olmo2", {}, ALL),
    ("olmoe", "olmoe", dict(num_experts=4, num_experts_per_tok=2, num_key_value_heads=4), ATTENTION),
    ("smollm3", "smollm3", dict(num_hidden_layers=5, no_rope_layers=[1, 1, 1, 0, 1], pad_token_id=0), ALL),
]


def lines():
    for name, kind, fields, lora in CASES:
        line = dict(name=name, config={**BASE, "model_type": kind, **fields})
        if lora:
            line["lora"] = dict(peft_type="LORA", target_modules="all-linear") | lora
        yield line


def write(path, made):
    with open(path, "w") as out:
        out.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in made)


class Greedy:
    def __init__(self, path, lora=None):
        self.llama = Llama(path, n_ctx=256, n_batch=256, type_k=0, type_v=0, flash_attn=False, logits_all=True,
                           lora_path=lora, n_threads=1, verbose=False)

    def complete(self, prompt):
        """The tokens, and by how much the likeliest leads at least."""
        ids, lead = list(prompt), np.inf
        self.llama.reset()
        self.llama.eval(ids)
        for i in range(NEW):
            row = self.llama.scores[self.llama.n_tokens - 1]
            second, first = np.sort(row)[-2:]
            lead = min(lead, first - second)
            ids.append(int(row.argmax()))
            if i < NEW - 1:
                self.llama.eval(ids[-1:])
        return ids[len(prompt):], lead


def text(ids):
    return "".join(LETTERS[i] for i in ids)


def answer(line, where):
    models = [Greedy(f"{where}/{line['name']}.gguf")]
    if "lora" in line:
        models.append(Greedy(f"{where}/{line['name']}.gguf", f"{where}/{line['name']}.lora.gguf"))
    need = 6e-3 if "gemma" in line["name"] else 2e-4
    rng = np.random.default_rng(len(line["name"]))
    prompts, answers = [], [[], []]
    while len(prompts) < PROMPTS:
        prompt = [int(i) for i in rng.integers(3, 64, rng.integers(1, 25))]
        found = [m.complete(prompt) for m in models]
        if min(lead for _, lead in found) < need:
            continue
        prompts.append(text(prompt))
        for kept, (ids, _) in zip(answers, found):
            kept.append(text(ids))
    line["prompts"], line["completions"] = prompts, answers[0]
    if "lora" in line:
        line["lora_completions"] = answers[1]
    print(line["name"], answers[0][0], answers[1][:1], flush=True)


# ---- chats ----

IM = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
INST = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
        "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %}"
        "{{ raise_exception('expected a user or an assistant') }}{% endif %}{% endfor %}")
INDENTED = """{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}
        {{- 'System: ' + m.content + '\n' }}
    {%- else %}
        {{- m.role | capitalize + ':' }} {{ m.content }}
    {%- endif %}
{% endfor %}
Assistant:"""
ROLES = dict(u="user", a="assistant", s="system")
TALKS = [("u", ["Hello there"]), ("u", ["2 + 2 = ?\n\n  What is it?"]), ("uau", ["Hi", "Hello!", " Count to 10. "]),
         ("uau", ["Grüße, 世界 🙂", "ok </s> <|im_end|>", "don't"]), ("su", ["Be kind.", "{{ x }} 1234567"]),
         ("suau", ["", "a", "b\n", "\tc"])]
MODELS = [("small", dict(model_type="qwen2", vocab_size=600, eos_token_id=597, bos_token_id=None)),
          ("spm", dict(model_type="llama", vocab_size=620))]


def chat_lines():
    for tokenizer, fields in MODELS:
        for form, template in (("im", IM), ("inst", INST), ("indented", INDENTED)):
            chats = [dict(prompt=[dict(role=ROLES[r], content=c) for r, c in zip(*talk)])
                     for talk in TALKS if "s" not in talk[0] or template is not INST]
            yield dict(name=f"{tokenizer}_{form}", config={**BASE, **fields, "max_position_embeddings": 256},
                       tokenizer=tokenizer, template=template, chats=chats)


def answer_chats(line, where):
    model = Greedy(f"{where}/{line['name']}.gguf")
    llama = model.llama
    # without the key llama.cpp takes id 11 for one
    bos, eos = (llama._model.token_get_text(int(llama.metadata[key])) if (key := f"tokenizer.ggml.{name}_token_id")
                in llama.metadata else "" for name in ("bos", "eos"))
    render = Jinja2ChatFormatter(llama.metadata["tokenizer.chat_template"], eos, bos)
    for chat in line["chats"]:
        text = render(messages=chat["prompt"]).prompt
        chat["ids"], lead = model.complete(llama.tokenize(text.encode(), add_bos=False, special=True))
        print(line["name"], lead, chat["ids"], flush=True)
        if lead < 1e-4:
            sys.exit(f"{line['name']}: expected a clear lead at every token; change the conversation {chat['prompt']}")


def make(path, made, answer_line):
    write(path, made)
    with tempfile.TemporaryDirectory() as where:
        done = subprocess.run([sys.argv[1], path, where], check=True, capture_output=True, text=True)
        for line, hashes in zip(made, done.stdout.splitlines()):
            line["hashes"] = hashes
            answer_line(line, where)
    write(path, made)


for name, made, answer_line in (("chats", chat_lines, answer_chats), ("greedy", lines, answer)):
    if name in sys.argv[2:]:
        make(f"tests/data/gguf/{name}.jsonl", list(made()), answer_line)
