"""An environment with two tools, for ./run agent-demo: what do two things cost together in a shop?

    7: kat + lim                    the question, a shop and two things
    look kat    -> 23               a tool that knows the prices of the shop
    add 23 41   -> 64               a tool that adds
    say 64                          ends the episode; the reward is 1 if it is right

Prices are different in every shop, so that they cannot be learned: the policy has to ask.
"""
import json
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32


def use(shop, word):
    if word[0] == "look" and len(word) == 2:
        return str(10 + crc32((shop + word[1]).encode()) % 40)
    if word[0] == "add" and len(word) == 3 and word[1].isdecimal() and word[2].isdecimal():
        return str(int(word[1]) + int(word[2]))
    return "?"


def play(ask, question):
    shop, first, _, second = question.replace(":", "").split()
    truth = use(shop, ["add", use(shop, ["look", first]), use(shop, ["look", second])])
    messages = [{"role": "user", "content": question}]
    for tools in range(6):
        answer = ask(messages)
        word = answer["content"].split() or [""]
        if word[0] == "say":
            return {"reward": float(word[1:] == [truth]), "metrics": {"tools": tools}}
        messages += [answer, {"role": "user", "content": use(shop, word)}]
    return {"reward": 0.0, "metrics": {"tools": 6}}


def episode(line):
    task = json.loads(line)

    def ask(messages):
        request = urllib.request.Request(
            task["url"] + "/chat/completions", json.dumps({"messages": messages}).encode(),
            {"Authorization": "Bearer " + task["key"]})
        return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

    try:
        report = play(ask, task["prompt"])
    except Exception as error:  # without a verdict, unless the budget of turns or tokens is used up
        full = getattr(error, "code", 0) == 400 and b"context_length_exceeded" in error.read()
        report = {"reward": 0.0} if full else {"status": repr(error)}
    with lock:
        print(json.dumps({"episode": task["episode"], **report}), flush=True)


lock = threading.Lock()
with ThreadPoolExecutor(32) as threads:
    for line in sys.stdin:
        threads.submit(episode, line)
