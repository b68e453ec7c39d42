"""tests/data/configs: config.json files as the present transformers writes them, and rotary frequencies.

    python tools/oracle/make_config_data.py [families | rope | public]      one of them alone

families.jsonl rows: {"name": folder, "config": config.json object}: of every family one or two, the layout of release 5.
public.jsonl rows: {"name", "source", "config": as a public repository shows it}, to which "read" is added: what transformers'
    class makes of it. untyped.jsonl rows: the same of rope objects without a type and of sizes alone.
rope.jsonl rows: {"config": config.json object, "inv_freq": [float32 values]} by transformers' modeling_rope_utils.
"""
import json
import os
import sys
import tempfile

import transformers
from transformers import (Gemma2Config, Gemma3TextConfig, GraniteConfig, LlamaConfig, MistralConfig, MixtralConfig, Olmo2Config,
                          OlmoeConfig, Phi3Config, Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, SmolLM3Config)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

ROOT = "tests/data/configs/"
SIZES = dict(hidden_size=256, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, intermediate_size=96,
             vocab_size=320)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)


def saved(config):
    with tempfile.TemporaryDirectory() as d:
        config.save_pretrained(d)
        return json.load(open(os.path.join(d, "config.json")))


def written_by_transformers():
    for cls in (Qwen2Config, Qwen3Config, LlamaConfig, MistralConfig):
        extra = {LlamaConfig: dict(rope_parameters=LLAMA3), MistralConfig: dict(sliding_window=None)}.get(cls, {})
        config = cls(**SIZES, bos_token_id=3, eos_token_id=[1, 2], dtype="bfloat16", **extra)
        config.architectures = [cls.__name__.replace("Config", "ForCausalLM")]
        folder = ROOT + "transformers_" + config.model_type
        os.makedirs(folder, exist_ok=True)
        json.dump(saved(config), open(folder + "/config.json", "w"), indent=1)


def rope_rows():
    for theta in (10000.0, 500000.0, 1000000.0, 5000000.0):
        for head_dim in (16, 64, 128):
            config = Qwen3Config(**SIZES, head_dim=head_dim, rope_parameters=dict(rope_type="default", rope_theta=theta))
            yield config, Qwen3RotaryEmbedding(config)
    for factor, low, high, original in ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (4.0, 0.5, 7.0, 1024)):
        for head_dim in (64, 128):
            rope = dict(LLAMA3, factor=factor, low_freq_factor=low, high_freq_factor=high,
                        original_max_position_embeddings=original)
            config = LlamaConfig(**SIZES, head_dim=head_dim, rope_parameters=rope)
            yield config, LlamaRotaryEmbedding(config)
    for part in (1.0, 0.75):  # the heads and positions of Phi-3.5-mini and Phi-4-mini
        config = phi3(part, 96, max_position_embeddings=131072, original_max_position_embeddings=4096)
        yield config, Phi3RotaryEmbedding(config)


def phi3(part, head_dim=64, **extra):
    sizes = dict(SIZES, hidden_size=SIZES["num_attention_heads"] * head_dim)
    pairs = range(int(head_dim * part) // 2)
    return Phi3Config(**sizes, partial_rotary_factor=part, bos_token_id=1, eos_token_id=2, pad_token_id=0, **extra,
                      rope_scaling=dict(rope_type="longrope", short_factor=[1 + 0.037 * i for i in pairs],
                                        long_factor=[1 + 1.3 * i for i in pairs]))


def families():
    moe = dict(SIZES, num_experts_per_tok=2, moe_intermediate_size=8)
    two = dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
               sliding_attention=dict(rope_type="default", rope_theta=1e4))
    return dict(
        qwen2=Qwen2Config(use_sliding_window=True, sliding_window=8, max_window_layers=1, **SIZES),
        qwen3=Qwen3Config(**SIZES),
        llama=LlamaConfig(rope_parameters=LLAMA3, **SIZES),
        llama_dynamic=LlamaConfig(rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=1e4), **SIZES),
        llama_yarn=LlamaConfig(rope_parameters=dict(rope_type="yarn", factor=4.0, rope_theta=1e4,
                                                    original_max_position_embeddings=512), **SIZES),
        mistral=MistralConfig(**SIZES), smollm3=SmolLM3Config(pad_token_id=0, **SIZES), olmo2=Olmo2Config(**SIZES),
        granite=GraniteConfig(**SIZES), phi3=Phi3Config(pad_token_id=0, **SIZES),
        phi3_longrope=phi3(0.75, original_max_position_embeddings=1024), gemma2=Gemma2Config(**SIZES),
        gemma3_text=Gemma3TextConfig(**SIZES), gemma3_two=Gemma3TextConfig(rope_parameters=two, **SIZES),
        qwen3_moe=Qwen3MoeConfig(num_experts=4, **moe), mixtral=MixtralConfig(**SIZES),
        qwen2_moe=Qwen2MoeConfig(num_experts=4, shared_expert_intermediate_size=8, **moe),
        olmoe=OlmoeConfig(num_experts=4, **dict(SIZES, num_experts_per_tok=2)))


def write_families():
    with open(ROOT + "families.jsonl", "w") as f:
        for name, config in families().items():
            cls = type(config).__name__.replace("TextConfig", "Config")
            config.architectures, config.dtype = [cls.replace("Config", "ForCausalLM")], "bfloat16"
            config.bos_token_id, config.eos_token_id = 1, 2
            f.write(json.dumps(dict(name=name, config=saved(config))) + "\n")


def read(config):
    """What the class has, of what bears on its forward."""
    c = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(json.loads(json.dumps(config)))
    rope = c.rope_parameters
    rope = rope.get("full_attention", rope)
    return dict(rope_theta=float(rope["rope_theta"]), rope_type=rope["rope_type"], kv_heads=c.num_key_value_heads,
                head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads, eps=c.rms_norm_eps,
                tied=c.tie_word_embeddings,
                windows=sum(t == "sliding_attention" for t in getattr(c, "layer_types", None) or []))


def write_public():
    rows = [json.loads(line) for line in open(ROOT + "public.jsonl")]
    with open(ROOT + "public.jsonl", "w") as f:
        for row in rows:
            if "refused" not in row or "ignore" in row:
                row["read"] = read(row["config"])
            f.write(json.dumps(row) + "\n")
    ropes = [dict(rope_parameters=dict(rope_theta=5000.0)), dict(rope_parameters={}), dict(rope_scaling={}),
             dict(rope_scaling={}, rope_theta=7000.0), dict(rope_parameters=None, rope_theta=7000.0)]
    with open(ROOT + "untyped.jsonl", "w") as f:
        for name, config in families().items():
            plain = {k: v for k, v in saved(config).items() if not k.startswith("rope_") and k != "layer_types"}
            sizes = {k: v for k, v in plain.items() if k in SIZES or "expert" in k or "moe" in k or k == "model_type"}
            for rope in ropes + [None] if "_" not in name.replace("_moe", "").replace("_text", "") else []:
                row = dict(plain if rope is not None else sizes, num_hidden_layers=6 if name == "gemma3_text" else 3, bos_token_id=1, eos_token_id=2,
                           **(rope or {}))
                other = name == "gemma3_text" and rope and rope.get("rope_parameters")  # a base beside its two, that nothing reads
                f.write(json.dumps(dict(name=name, config=row, **(dict(refused="rope_parameters is") if other
                                                                  else dict(read=read(row))))) + "\n")


def main():
    only = sys.argv[1:]
    if only in ([], ["public"]):
        write_public()
    if only == ["public"]:
        return
    if only != ["rope"]:
        write_families()
    if not only:
        written_by_transformers()
    if only == ["families"]:
        return
    with open(ROOT + "rope.jsonl", "w") as f:
        for config, rope in rope_rows():
            f.write(json.dumps(dict(config=saved(config), inv_freq=rope.inv_freq.tolist())) + "\n")
    print("transformers", transformers.__version__)


if __name__ == "__main__":
    main()
