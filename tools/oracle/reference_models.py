"""The models of tests/data/reference, for the oracles that compute more with them."""
import json
import os

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


def config_of(folder):
    """Folders that transformers 5 wrote, as 4 reads them too."""
    config = AutoConfig.from_pretrained(folder)
    with open(os.path.join(folder, "config.json")) as f:
        rope = json.load(f).get("rope_parameters")
    if rope and transformers.__version__.startswith("4."):
        config.rope_theta = rope["rope_theta"]
        config.rope_scaling = None if rope["rope_type"] == "default" else \
            {k: v for k, v in rope.items() if k != "rope_theta"}
    return config


def load(folder):
    """The model in fp32, and the two sequences; its NLL is that of reference.json."""
    model = AutoModelForCausalLM.from_pretrained(folder, config=config_of(folder), dtype=torch.float32,
                                                 attn_implementation="eager").eval()
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
