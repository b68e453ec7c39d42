"""An environment for `kedge train` that is one Python function, with the standard library alone.

    kedge train recipe.yaml episode.env=external task.name=environment \
        episode.command="python3 examples/env_function.py"

play(ask, task) is the environment: ask(messages) is a turn of the policy, task the record of the
data file, and the result the reward. Here the policy has two tries at a question. Episodes are
played by several threads, because kedge answers those turns together. docs/environments.md
"""
import json
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor


def play(ask, task):
    messages = [{"role": "user", "content": task["prompt"]}]
    for reward in (1.0, 0.5):
        answer = ask(messages)
        if answer["content"].strip() == task["ground_truth"]:
            return reward
        messages += [answer, {"role": "user", "content": "That is wrong. Try again."}]
    return 0.0


def episode(line):
    task = json.loads(line)

    def ask(messages):
        request = urllib.request.Request(
            task["url"] + "/chat/completions",
            json.dumps({"messages": messages}).encode(),
            {"Authorization": "Bearer " + task["key"], "Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)["choices"][0]["message"]

    report = {"episode": task["episode"], "status": "ok"}
    try:
        report["reward"] = play(ask, task)
    except Exception as error:  # the episode has no verdict: kedge counts it, and goes on
        report["status"] = repr(error)
    with lock:
        print(json.dumps(report), flush=True)


lock = threading.Lock()
with ThreadPoolExecutor(16) as threads:
    for line in sys.stdin:
        threads.submit(episode, line)
