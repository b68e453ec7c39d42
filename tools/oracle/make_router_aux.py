#!/usr/bin/env python3
"""The loss that evens the load of experts on the golden models, by transformers and torch in fp32 on a CPU.

    python tools/oracle/make_router_aux.py [tests/data/reference]

load_balancing_loss_func of the class's own module, over the logits of all routers for both sequences of reference.json as
one batch without padding. Each folder of a model with experts gets router_aux.safetensors: `loss`, and its gradient by
the name in the checkpoint for every router, the embeddings and the first q_proj. Logits are made here from what comes
into a router: what modules return as theirs has been through a softmax in some releases. Development only.
"""
import importlib
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

NAMES = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe")
KEPT = ("embed_tokens.weight", "layers.0.self_attn.q_proj.weight")


def routers(model, tensors):
    """(name of the weight in the checkpoint, module) of every router, layer by layer."""
    found = []
    for i, layer in enumerate(model.model.layers):
        block = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
        names = [n for n in tensors if n.startswith(f"model.layers.{i}.") and n.endswith((".mlp.gate.weight",
                                                                                         "_moe.gate.weight"))]
        found += [(n, block.gate) for n in names]
    return found


def loss_of(model, gates, seqs):
    logits = [[] for _ in gates]
    hooks = [g.register_forward_hook(
        lambda module, args, _, to=to: to.append(
            torch.nn.functional.linear(args[0].reshape(-1, module.weight.shape[1]), module.weight)))
        for (_, g), to in zip(gates, logits)]
    for s in seqs:
        model(input_ids=torch.tensor([s]))
    for h in hooks:
        h.remove()
    module = importlib.import_module(type(model).__module__)
    experts = gates[0][1].weight.shape[0]
    return module.load_balancing_loss_func(tuple(torch.cat(to) for to in logits), experts,
                                           model.config.num_experts_per_tok)


def make(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with open(os.path.join(folder, "reference.json")) as f:
        seqs = json.load(f)["sequences"]
    gates = routers(model, load_file(os.path.join(folder, "model.safetensors")))
    loss = loss_of(model, gates, seqs)
    loss.backward()
    out = {"loss": loss.detach().reshape(1)}
    out.update({n: g.weight.grad.contiguous() for n, g in gates})
    out.update({n: p.grad.contiguous() for n, p in model.named_parameters() if n.endswith(KEPT)})
    save_file(out, os.path.join(folder, "router_aux.safetensors"))
    os.chmod(os.path.join(folder, "router_aux.safetensors"), 0o644)
    print(folder, loss.item())


def main():
    torch.set_num_threads(1)
    out = sys.argv[1] if len(sys.argv) > 1 else "tests/data/reference"
    for name in NAMES:
        make(os.path.join(out, name))


if __name__ == "__main__":
    main()
