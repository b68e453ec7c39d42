"""The models of tests/data/reference, for the oracles that compute more with them."""
import json
import os

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


def is_older():
    return transformers.__version__.startswith("4.")


# plain code, in the order of the formulas
EAGER = dict(attn_implementation="eager", **({} if is_older() else dict(experts_implementation="eager")))


def by_expert(name, tensor):
    """Names and tensors of the file. Newer releases hold the experts of a layer in two tensors, where files have them one by one."""
    layer, fused, side = name.rpartition(".experts.")
    if not fused:
        return {name: tensor}
    out = {}
    for e, t in enumerate(tensor):
        parts = zip(("gate_proj", "up_proj"), t.chunk(2)) if side == "gate_up_proj" else [(side, t)]
        out.update({f"{layer}.experts.{e}.{part}.weight": w.contiguous() for part, w in parts})
    return out


def config_of(folder):
    """Folders that transformers 5 wrote, as 4 reads them too."""
    config = AutoConfig.from_pretrained(folder)
    with open(os.path.join(folder, "config.json")) as f:
        rope = json.load(f).get("rope_parameters")
    if rope and is_older():
        config.rope_theta = rope["rope_theta"]
        config.rope_scaling = None if rope["rope_type"] == "default" else \
            {k: v for k, v in rope.items() if k != "rope_theta"}
    return config


def load(folder):
    """The model in fp32, and the two sequences; its NLL is that of reference.json."""
    model = AutoModelForCausalLM.from_pretrained(folder, config=config_of(folder), dtype=torch.float32, **EAGER).eval()
    with open(os.path.join(folder, "reference.json")) as f:
        known = json.load(f)
    with torch.no_grad():
        nll = -torch.cat([log_probs(model, s) for s in known["sequences"]]).mean().item()
    if abs(nll - known["nll"]) > 1e-5:
        raise SystemExit(f"{folder}: expected an NLL of {known['nll']}, found {nll}")
    return model, known["sequences"]


def log_probs(model, seq, first=1, temperature=1.0):
    """Of tokens `first` and those behind it; in double from fp32 logits."""
    ids = torch.tensor([seq])
    logits = model(input_ids=ids).logits[0, first - 1:-1].float() / temperature
    return torch.log_softmax(logits.double(), dim=-1).gather(1, ids[0, first:, None])[:, 0]
