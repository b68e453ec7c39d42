"""A run of `kedge train` again, by a loop of one's own through Tinker's API: the same bits.

    kedge serve --model MODEL --name base --train checkpoints --dtype fp32 &
    python3 examples/tinker_replay.py RUN MODEL_NAME LORA_RANK > path-of-the-checkpoint

RUN has a dump of each step (rollouts/step-NNNNNN.jsonl.zst): what was sampled, and its advantages. Each is
sent as one forward_backward, with the run's own loss and optimizer. docs/tinker.md says which keys of a
recipe this can follow. Needs tinker 0.38.0 and zstandard; TINKER_BASE_URL is the server, TINKER_API_KEY its
key or any that begins with tml-.
"""
import io
import json
import sys
from pathlib import Path

import numpy as np
import tinker
import zstandard
from tinker import types

RUN, NAME, RANK = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
LOSS, CONFIG = "ppo-clip", {  # a row of algo.surrogate, and keys of a recipe
    "algo.clip_low": 0.2, "algo.clip_high": 0.2}
ADAM = types.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01,
                        grad_clip_norm=1.0)


def datum(line):
    """All tokens but the last are the input, all but the first the targets; prompts have no loss."""
    tokens, model = line["tokens"], [s == "m" for s in line["source"]]
    logp = [x or 0.0 for x in line["logp"]]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": [x if m else 0.0 for x, m in zip(logp, model)][1:],
            "advantages": [line["advantage"] if m else 0.0 for m in model][1:],
            "mask": np.array(model[1:], dtype=np.float32),
        })


def read(path):
    with open(path, "rb") as file:
        text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8")
        lines = [json.loads(line) for line in text]
    # kedge makes no update where nothing has an advantage
    return [datum(line) for line in lines] if any(line["advantage"] for line in lines) else []


client = tinker.ServiceClient()
training = client.create_lora_training_client(base_model=NAME, rank=RANK, seed=1).result()
for dump in sorted(RUN.glob("rollouts/step-*.jsonl.zst")):
    if not (batch := read(dump)):
        continue
    # both are on their way before the first is done: the server keeps their order
    loss = training.forward_backward(batch, LOSS, CONFIG)
    step = training.optim_step(ADAM)
    print(dump.name, loss.result().metrics["loss:sum"], step.result().metrics, file=sys.stderr)
print(training.save_state("replayed").result().path)
