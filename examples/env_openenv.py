"""An OpenEnv environment (pip install openenv) for `kedge train`, which runs as a server.

    kedge train recipe.yaml task.name=environment episode.env=external \
        episode.command="python3 examples/env_openenv.py http://127.0.0.1:8000 message text"

Of an action the environment reads the field `message`, of an observation the policy sees `text`. A
record's extra_info is passed to reset, such as {"seed": 7}. Each episode is a session of its own,
over the server's websocket, and its reward the sum of the steps'. docs/environments.md
"""
import json
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from openenv.core import GenericEnvClient

server, action, observation = sys.argv[1:]


def ask(task, messages):
    request = urllib.request.Request(
        task["url"] + "/chat/completions", json.dumps({"messages": messages}).encode(),
        {"Authorization": "Bearer " + task["key"]})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]


def play(task):
    reward, steps, messages = 0.0, 0, [{"role": "user", "content": task["prompt"]}]
    with GenericEnvClient(base_url=server).sync() as env:
        result = env.reset(**(task["extra_info"] or {}))
        while not result.done:
            if seen := str(result.observation.get(observation) or ""):
                messages.append({"role": "user", "content": seen})
            try:
                messages.append(ask(task, messages))
            except urllib.error.HTTPError as error:  # the budget of turns or tokens is used up
                if b"context_length_exceeded" in error.read():
                    break
                raise
            result = env.step({action: messages[-1]["content"]})
            reward += result.reward or 0
            steps += 1
    return {"reward": reward, "metrics": {"steps": steps}}


def episode(task):
    try:
        report = play(task)
    except Exception as error:  # no verdict: kedge counts it, and goes on
        report = {"status": repr(error)[:200]}
    with lock:
        print(json.dumps({"episode": task["episode"], **report}), flush=True)


lock = threading.Lock()
with ThreadPoolExecutor(32) as threads:
    for line in sys.stdin:
        threads.submit(episode, json.loads(line))
