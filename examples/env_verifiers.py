"""An environment of verifiers 0.4 (pip install verifiers uv) for `kedge train`.

    python3 examples/env_verifiers.py TASKSET --data > train.jsonl
    kedge train recipe.yaml data.train=train.jsonl task.name=environment episode.env=external \
        episode.command="python3 examples/env_verifiers.py TASKSET"

TASKSET is an installed package with a verifiers Taskset, played by verifiers' `null` harness: a chat
with the task's tools. Each episode is one slot of the environment that load_environment makes. Its
model is the policy, and its reward the trace's. docs/environments.md
"""
import asyncio
import json
import os
import sys

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment

env = load_environment(vf.SingleAgentEnvConfig(
    taskset={"id": sys.argv[1]},
    agent={"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}))
tasks = list(env.taskset)


async def episode(told):
    os.environ["KEDGE_KEY"] = told["key"]  # the same for the whole run
    policy = vf.ModelContext(model=told["model"], client=vf.EvalClientConfig(
        base_url=told["url"], api_key_var="KEDGE_KEY"))
    report = {"episode": told["episode"]}
    try:
        [slot] = env.slots(tasks[told["extra_info"]["task"]])
        played = await env.run_slot(slot, policy)
        if played.ok:
            [trace] = played.traces
            report["reward"] = trace.reward
            report["metrics"] = {k: v for k, v in trace.metrics.items() if isinstance(v, float)}
        else:
            errors = played.errors + [e for trace in played.traces for e in trace.errors]
            report["status"] = "; ".join(f"{e.type}: {e.message}" for e in errors)[-200:]
    except Exception as error:  # no verdict: kedge counts it, and goes on
        report["status"] = repr(error)[:200]
    print(json.dumps(report), flush=True)


async def main():
    async with env.serving(), asyncio.TaskGroup() as playing:
        while line := await asyncio.to_thread(sys.stdin.readline):
            playing.create_task(episode(json.loads(line)))


if sys.argv[2:] == ["--data"]:
    for i, task in enumerate(tasks):
        print(json.dumps({"prompt": task.data.prompt_text, "extra_info": {"task": i}}))
else:
    asyncio.run(main())
