"""Writes tests/data/gguf: quants.gguf has, for every type that kedge reads, a tensor of random blocks, and beside it
NAME.f32, what the `gguf` package makes of them; and `weights`, with the blocks NAME.of that it makes of those, and `weights_k` with the
blocks of Q4_K and Q6_K that ggml_quantize_chunk of llama-cpp-python makes, which the package leaves out. vocab.gguf has the tokens of tests/data/tokenizer/small; tokens.jsonl what
llama-cpp-python makes of texts with them, for every name of a pre-tokenizer. Usage: make_gguf.py (needs gguf 0.19,
llama-cpp-python 0.3.36 and numpy)."""

import ctypes
import json
import os
import tempfile

import llama_cpp
import numpy as np
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


PRES = ["gpt-2", "olmo", "smollm", "starcoder", "refact", "command-r", "codeshell", "qwen2", "deepseek-r1-qwen",
        "llama-bpe", "falcon3", "dbrx", "smaug-bpe", "tekken", "gpt-4o"]
# composed characters alone: Qwen's tokenizer composes first, which llama.cpp leaves out
TEXTS = ["Hello, world!", " leading", "trailing  ", "a  b   c", "line\nline\n\n  x", "tab\tand\r\n", "12345 1 22 333",
         "3.14159", "it's IT'S we'LL they'Re", "naïve über ÀÉ", "日本語のテキスト", "русский текст", "🙂👍🏽", "x=1;y+=2",
         "CamelCaseURLParser", "snake_case__x", "http://a.b/c?d=e&f#g", "...!!!???", "“quoted” – dash", "½ Ⅷ ²",
         "\u00a0\u3000spaces\u2003", "def f(x):\n    return x\n", "हिन्दी", "a/b//c\\d", ""]


def vocab(path, pre):
    model = json.load(open("tests/data/tokenizer/small/tokenizer.json"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    assert [model["vocab"][t] for t in tokens] == list(range(len(tokens)))
    w = GGUFWriter(path, "llama")
    for key, value in [("block_count", 1), ("context_length", 64), ("embedding_length", 32),
                       ("feed_forward_length", 64), ("attention.head_count", 2), ("vocab_size", len(tokens))]:
        w.add_uint32("llama." + key, value)
    w.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types([1] * len(tokens))
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    w.add_add_bos_token(False)
    w.add_tensor("token_embd.weight", np.zeros((len(tokens), 18), np.uint8), raw_dtype=T.Q4_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def tokens():
    with open("tests/data/gguf/tokens.jsonl", "w") as out, tempfile.TemporaryDirectory() as work:
        for pre in PRES:
            vocab(work + "/x.gguf", pre)
            llama = Llama(work + "/x.gguf", vocab_only=True, verbose=False)
            for text in TEXTS:
                ids = llama.tokenize(text.encode(), add_bos=False, special=False)
                out.write(json.dumps({"pre": pre, "text": text, "ids": ids}) + "\n")
    vocab("tests/data/gguf/vocab.gguf", "gpt-2")


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
