#!/usr/bin/env python3
"""Golden data of the model's forward, backward and optimizer, by transformers and torch in fp32 on a CPU.

    python tools/oracle/make_reference.py tests/data/reference [NAME ...]

For each architecture it writes a folder with
    config.json, model*.safetensors[.index.json]   a tiny checkpoint with random weights
    reference.json      the two token sequences, the mean NLL, ten AdamW losses and gradient norms
    logits.safetensors  logits.0 and logits.1, one row for each position of each sequence
    grads.safetensors   the gradient of the mean NLL with respect to every tensor, by its name
Development only: nothing here is needed to build, run or test kedge.
"""
import json
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GraniteConfig, LlamaConfig, MistralConfig,
                          MixtralConfig, Olmo2Config, OlmoeConfig, Phi3Config, Qwen2Config, Qwen2MoeConfig, Qwen3Config,
                          Qwen3MoeConfig, SmolLM3Config)

from reference_models import EAGER, by_expert

V, D, F, L = 128, 32, 72, 2
LENGTHS = (7, 70)
STEPS = 10
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
CLIP = 1.0

COMMON = dict(
    vocab_size=V, hidden_size=D, intermediate_size=F, num_hidden_layers=L, max_position_embeddings=256,
    bos_token_id=1, eos_token_id=2, use_cache=True,
)
# name -> (config, dtype of the file, shard size)
MODELS = {
    "qwen2": (Qwen2Config(num_attention_heads=2, num_key_value_heads=1, rope_theta=1e6, rms_norm_eps=1e-6,
                          tie_word_embeddings=True, **COMMON), torch.bfloat16, "1GB"),
    "qwen3": (Qwen3Config(num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_theta=1e6,
                          rms_norm_eps=1e-6, tie_word_embeddings=True, **COMMON), torch.float32, "1GB"),
    "llama": (LlamaConfig(num_attention_heads=4, num_key_value_heads=2, rope_theta=5e5, rms_norm_eps=1e-5,
                          tie_word_embeddings=False,
                          rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                            high_freq_factor=4.0, original_max_position_embeddings=32),
                          **COMMON), torch.float32, "60KB"),
}
# Smaller, for families whose own part is what is looked at.
SMALL = dict(COMMON, vocab_size=48, hidden_size=16, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, pad_token_id=None)
SLIDING, FULL = "sliding_attention", "full_attention"
FAMILIES = {
    "mistral": MistralConfig(sliding_window=9, **SMALL),
    "qwen2_window": Qwen2Config(use_sliding_window=True, sliding_window=5, max_window_layers=2, tie_word_embeddings=True,
                                **SMALL),
    "llama_bias": LlamaConfig(attention_bias=True, mlp_bias=True, **SMALL,
                              rope_scaling=dict(rope_type="linear", factor=3.0)),
    "llama_yarn": LlamaConfig(rope_theta=5e5, **SMALL,
                              rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "qwen3_bias": Qwen3Config(head_dim=6, attention_bias=True, **SMALL,
                              rope_scaling=dict(rope_type="dynamic", factor=2.0)),
    "smollm3": SmolLM3Config(no_rope_layer_interval=2, **SMALL),
    "olmo2": Olmo2Config(**SMALL),
    "granite": GraniteConfig(embedding_multiplier=6.0, residual_multiplier=0.3, attention_multiplier=0.2,
                             logits_scaling=3.0, attention_bias=True, **SMALL),
    "phi3": Phi3Config(sliding_window=20, **SMALL),
    "phi3_longrope": Phi3Config(partial_rotary_factor=0.75, original_max_position_embeddings=128, tie_word_embeddings=True,
                                rope_scaling=dict(type="longrope", short_factor=[1.0, 1.3, 1.7],
                                                  long_factor=[1.1, 5.0, 21.5]),
                                **dict(SMALL, num_attention_heads=2, num_key_value_heads=1)),
    "gemma2": Gemma2Config(head_dim=8, query_pre_attn_scalar=12, sliding_window=13, attn_logit_softcapping=5.0,
                           final_logit_softcapping=4.0, **SMALL),
    "gemma3_text": Gemma3TextConfig(head_dim=8, query_pre_attn_scalar=12, sliding_window=13, attention_bias=True,
                                    layer_types=[SLIDING, FULL, SLIDING], **SMALL),
    "qwen3_moe": Qwen3MoeConfig(head_dim=6, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12,
                                norm_topk_prob=True, mlp_only_layers=[1], **SMALL),
    "qwen2_moe": Qwen2MoeConfig(num_experts=5, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=False,
                                shared_expert_intermediate_size=24, **SMALL),
    "mixtral": MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **dict(SMALL, intermediate_size=12)),
    "olmoe": OlmoeConfig(num_experts=6, num_experts_per_tok=3, norm_topk_prob=False,
                         **dict(SMALL, intermediate_size=12)),
    "qwen3_moe_window": Qwen3MoeConfig(head_dim=6, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=10,
                                       norm_topk_prob=False, decoder_sparse_step=2, attention_bias=True,
                                       use_sliding_window=True, sliding_window=6,
                                       **dict(SMALL, num_attention_heads=3, num_key_value_heads=1)),
    "qwen2_moe_window": Qwen2MoeConfig(num_experts=3, num_experts_per_tok=1, moe_intermediate_size=10, norm_topk_prob=False,
                                       shared_expert_intermediate_size=9, qkv_bias=False, use_sliding_window=True,
                                       sliding_window=3, max_window_layers=2, tie_word_embeddings=True, **SMALL),
}
MODELS.update({name: (config, torch.float32, "1GB") for name, config in FAMILIES.items()})


def randomise(model, generator):
    """Weights of order one in effect, with norms and biases away from their trivial values."""
    middle = 0.0 if model.config.model_type.startswith("gemma") else 1.0  # gemma's multiply by 1 + w
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("norm.weight"):
                p.copy_(middle + 0.2 * noise)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            else:
                p.copy_(0.15 * noise)


def mean_nll(model, seqs):
    total, count = 0.0, 0
    for s in seqs:
        ids = torch.tensor([s])
        logits = model(input_ids=ids).logits[0]
        logp = torch.log_softmax(logits[:-1].float(), dim=-1)
        total = total - logp.gather(1, ids[0, 1:, None]).sum()
        count += len(s) - 1
    return total / count


def save_logits(model, seqs, path):
    with torch.no_grad():
        rows = {f"logits.{i}": model(input_ids=torch.tensor([s])).logits[0].float().contiguous()
                for i, s in enumerate(seqs)}
    save_file(rows, path)


def save_grads(model, seqs, path):
    model.zero_grad()
    loss = mean_nll(model, seqs)
    loss.backward()
    rows = {}
    for name, p in model.named_parameters():
        rows.update(by_expert(name, p.grad.contiguous()))
    save_file(rows, path)
    return loss.item()


def train(model, seqs):
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = mean_nll(model, seqs)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
    losses.append(mean_nll(model, seqs).item())
    return losses, norms


def make(name, out):
    config, dtype, shard = MODELS[name]
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(20 + len(name) + ord(name[-1]))
    model = AutoModelForCausalLM.from_config(config).float().eval()
    randomise(model, generator)
    folder = os.path.join(out, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **EAGER).eval()
    seqs = [torch.randint(0, config.vocab_size, (n,), generator=generator).tolist() for n in LENGTHS]
    save_logits(model, seqs, os.path.join(folder, "logits.safetensors"))
    loss = save_grads(model, seqs, os.path.join(folder, "grads.safetensors"))
    losses, norms = train(model, seqs)
    with open(os.path.join(folder, "reference.json"), "w") as f:
        json.dump({"sequences": seqs, "nll": loss, "losses": losses, "grad_norms": norms}, f)
        f.write("\n")
    for file in os.listdir(folder):
        os.chmod(os.path.join(folder, file), 0o644)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    out = sys.argv[1] if len(sys.argv) > 1 else "tests/data/reference"
    for name in sys.argv[2:] or MODELS:
        make(name, out)


if __name__ == "__main__":
    main()
