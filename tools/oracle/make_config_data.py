"""tests/data/configs: config.json files as the present transformers writes them, and rotary frequencies.

rope.jsonl rows: {"config": config.json object, "inv_freq": [float32 values]} by transformers' modeling_rope_utils.
"""
import json
import os
import tempfile

import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
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


def main():
    written_by_transformers()
    with open(ROOT + "rope.jsonl", "w") as f:
        for config, rope in rope_rows():
            f.write(json.dumps(dict(config=saved(config), inv_freq=rope.inv_freq.tolist())) + "\n")
    print("transformers", transformers.__version__)


if __name__ == "__main__":
    main()
