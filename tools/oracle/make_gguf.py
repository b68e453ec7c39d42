"""Writes tests/data/gguf: quants.gguf has, for every type that kedge reads, a tensor of random blocks, and beside it
NAME.f32, what the `gguf` package makes of them; and `weights`, with the blocks NAME.of that it makes of those, and
`weights_k` with the blocks of Q4_K and Q6_K that ggml_quantize_chunk of llama-cpp-python makes, which the package
leaves out. texts.jsonl has 2,000 nasty texts, vocab.gguf a byte-level BPE trained on them, and tokens.jsonl hashes of
what llama-cpp-python makes of them with it, for every name of a pre-tokenizer; for tekken and gpt-4o, which llama.cpp
simplifies, of what HuggingFace's tokenizers makes with the models' own patterns.
Usage: make_gguf.py (needs gguf 0.19, llama-cpp-python 0.3.36, tokenizers 0.23 and numpy)."""

import ctypes
import hashlib
import json
import os
import tempfile
import unicodedata

import llama_cpp
import numpy as np
import tokenizers
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter, dequantize, quantize
from gguf.constants import GGML_QUANT_SIZES
from llama_cpp import Llama

TYPES = [T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL,
         T.IQ4_XS, T.MXFP4]
# where a block has its halves: their exponents are kept in the range of weights
HALVES = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.F16: [0]}


def blocks(rng, kind):
    values, size = GGML_QUANT_SIZES[kind]
    n = 512 // values
    x = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in HALVES.get(kind, []):
        scale = (rng.standard_normal(n) * 10.0 ** rng.integers(-7, 1, n)).astype(np.float16)
        x[:, at : at + 2] = scale.view(np.uint8).reshape(n, 2)
    if kind == T.BF16:
        x[:, 1] = x[:, 1] & 0x80 | 0x3F
    if kind == T.MXFP4:
        x[0, 0], x[1, 0], x[2, 0] = 0, 1, 2
        x[3:, 0] = rng.integers(100, 140, n - 3)
    return x.reshape(2, -1)


def ggml_blocks(x, kind):
    """What llama.cpp's quantiser makes of rows without an importance matrix."""
    quantise = ctypes.CDLL(os.path.dirname(llama_cpp.__file__) + "/lib/libggml-base.so").ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    quantise.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + 3 * [ctypes.c_int64] + [ctypes.c_void_p]
    values, size = GGML_QUANT_SIZES[kind]
    out = np.zeros((len(x), x.shape[1] // values * size), np.uint8)
    assert quantise(int(kind), x.ctypes.data, out.ctypes.data, 0, *x.shape, None) == out.size
    return out


def k_weights():
    """Rows of the kinds where the search for a scale can go another way."""
    rng = np.random.default_rng(4)
    n = rng.standard_normal
    rows = [n(256) * 0.02, n(256) * 1e-3, n(256) ** 3, np.abs(n(256)), -np.abs(n(256)), np.round(n(256) * 8) / 8,
            np.zeros(256), np.full(256, 0.3), np.full(256, -0.3), n(256) * np.repeat(rng.integers(0, 2, 8), 32),
            n(256) * np.repeat(10.0 ** rng.integers(-7, 1, 16), 16), n(256) * 1e-9, n(256) * 1e-20, n(256) * 3e4,
            np.linspace(-1, 1, 256), np.eye(256)[100] * 5]
    return np.stack(rows).astype(np.float32)


PRES = ["gpt-2", "olmo", "phi-2", "smollm", "starcoder", "refact", "command-r", "codeshell", "qwen2", "deepseek-r1-qwen",
        "llama-bpe", "falcon3", "dbrx", "smaug-bpe", "tekken", "gpt-4o"]
COMPOSING = ["qwen2", "deepseek-r1-qwen"]  # characters first, as Qwen's tokenizer does; llama.cpp leaves it out
# patterns of the models' own tokenizers, and whether a word that is a token ignores merges; llama.cpp has \\p{M} in none
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r"[^\r\n\p{L}\p{N}]?%s*%s+%s|[^\r\n\p{L}\p{N}]?%s+%s*%s|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
OWN = {"tekken": (CASED % (UPPER, LOWER, "", UPPER, LOWER, "") + r"\p{N}" + REST, True),
       "gpt-4o": (CASED % (UPPER, LOWER, SHORT, UPPER, LOWER, SHORT) + r"\p{N}{1,3}" + REST, False)}
STRINGS = 2000


def fragments(rng):
    """Words, contractions, numbers, white space, punctuation, code, and characters of every category of Unicode."""
    kinds = {}
    for c in map(chr, range(0x20, 0x1FB00)):
        kinds.setdefault(unicodedata.category(c), []).append(c)
    del kinds["Cs"], kinds["Cn"]  # what a later Unicode assigns, programs know or not
    words = ["Hello", "the", "iPhone", "URLParser", "x", "naïve", "ÀÉ", "straße", "ǅ", "ﬁ", "日本語", "русский", "हिन्दी", "ไทย",
             "한국어", "مرحبا", "e\u0301", "A\u030a", "\u1100\u1161", "🙂", "👍🏽", "👩\u200d👩\u200d👧", "½", "Ⅷ", "²", "٣"]
    marks = ["'s", "'S", "'re", "'LL", "'d", "'ve", "’s", "'", "''", "'x", ".", "...", ",", "!?", "/", "//", "_", "__", "-",
             "--", "=", "+=", "{", "}\n", "(", ")", "$", "#", "@", "\\", "“", "”", "<|x|>", "</s>", "[INST]"]
    numbers = ["1", "22", "333", "4444", "55555", "3.14", "1,000", "0x1F", "1e-5", "٣٤", "１２"]
    spaces = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u200b",
              "\u2028", "\x0b", "\x0c", "\x85", "\x1c", "\ufeff"]
    pools = [words, marks, numbers, spaces, spaces, words]

    def one():
        if rng.random() < 0.2:
            chars = kinds[list(kinds)[rng.integers(len(kinds))]]
            return chars[rng.integers(len(chars))]
        pool = pools[rng.integers(len(pools))]
        return pool[rng.integers(len(pool))]
    return one


def nasty():
    rng = np.random.default_rng(5)
    one = fragments(rng)
    return ["", " "] + ["".join(one() for _ in range(rng.integers(1, 12))) for _ in range(STRINGS - 2)]


def vocab(texts):
    """Tokens and merges that cross every border that a pre-tokenizer can set, so that each border shows."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=1400, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(m) for m in model["merges"]]


def write_vocab(path, pre, tokens, merges):
    w = GGUFWriter(path, "llama")
    for key, value in [("block_count", 1), ("context_length", 64), ("embedding_length", 32),
                       ("feed_forward_length", 64), ("attention.head_count", 2), ("vocab_size", len(tokens))]:
        w.add_uint32("llama." + key, value)
    w.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types([1] * len(tokens))
    w.add_token_merges(merges)
    w.add_add_bos_token(False)
    w.add_tensor("token_embd.weight", np.zeros((len(tokens), 18), np.uint8), raw_dtype=T.Q4_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_cpp_ids(path, pre, texts):
    llama = Llama(path, vocab_only=True, verbose=False)
    given = [unicodedata.normalize("NFC", t) for t in texts] if pre in COMPOSING else texts
    return [llama.tokenize(t.encode(), add_bos=False, special=False) for t in given]


def own_ids(pre, tokens, merges, texts):
    pattern, ignores = OWN[pre]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
        {t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges], ignore_merges=ignores))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return [tokenizer.encode(t).ids for t in texts]


def hashes(ids):
    """Of each hundred texts the SHA-1 of their ids as int32, with -1 after each text."""
    return [hashlib.sha1(np.array(sum((i + [-1] for i in ids[at : at + 100]), []), np.int32).tobytes()).hexdigest()
            for at in range(0, len(ids), 100)]


def tokens():
    texts = nasty()
    with open("tests/data/gguf/texts.jsonl", "w") as out:
        out.writelines(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
    made = vocab(texts)
    write_vocab("tests/data/gguf/vocab.gguf", "gpt-2", *made)
    with open("tests/data/gguf/tokens.jsonl", "w") as out, tempfile.TemporaryDirectory() as work:
        for pre in PRES:
            write_vocab(work + "/x.gguf", pre, *made)
            ids = own_ids(pre, *made, texts) if pre in OWN else llama_cpp_ids(work + "/x.gguf", pre, texts)
            out.write(json.dumps({"pre": pre, "hashes": hashes(ids)}) + "\n")


def main():
    rng = np.random.default_rng(3)
    w = GGUFWriter("tests/data/gguf/quants.gguf", "llama")
    w.add_uint32("llama.block_count", 1)
    for kind in TYPES:
        x = blocks(rng, kind)
        w.add_tensor(kind.name, x, raw_dtype=kind)
        w.add_tensor(kind.name + ".f32", dequantize(x, kind).astype(np.float32))
    weights = (rng.standard_normal((4, 256)) * 0.1).astype(np.float32)
    weights[1, :32] = 0
    weights[2] = np.round(weights[2] * 64) / 64  # ties
    w.add_tensor("weights", weights)
    for kind in (T.Q8_0, T.Q4_0):
        w.add_tensor(kind.name + ".of", quantize(weights, kind), raw_dtype=kind)
    weights = k_weights()
    w.add_tensor("weights_k", weights)
    for kind in (T.Q4_K, T.Q6_K):
        w.add_tensor(kind.name + ".of", ggml_blocks(weights, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    tokens()


main()
