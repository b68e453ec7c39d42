"""The tools of an MCP server for `kedge train`, with the standard library alone.

    kedge train recipe.yaml task.name=environment episode.env=external \
        episode.command="python3 examples/env_mcp.py 'python3 my_mcp_server.py'"

Each episode starts the server, which speaks MCP over stdio, and gives its tools to the policy, whose
chat template must know tools. MCP has no reward: it is 1 if the last answer holds the ground truth.
"""
import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from subprocess import DEVNULL, PIPE, Popen


def call(mcp, method, **params):  # one at a time; between request and response come notifications
    print(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}),
          file=mcp.stdin, flush=True)
    for message in map(json.loads, mcp.stdout):
        if "result" in message or "error" in message:  # which the policy reads, too
            return message.get("result") or {"content": [{"text": message["error"]["message"]}]}
    raise EOFError("the MCP server has ended")


def play(task, mcp):
    call(mcp, "initialize", protocolVersion="2025-11-25", capabilities={},
         clientInfo={"name": "kedge", "version": "1"})
    print('{"jsonrpc": "2.0", "method": "notifications/initialized"}', file=mcp.stdin, flush=True)
    tools = [{"type": "function", "function": {"name": t["name"], "parameters": t["inputSchema"]}}
             for t in call(mcp, "tools/list")["tools"]]
    messages = [{"role": "user", "content": task["prompt"]}]
    while messages[-1]["role"] != "assistant":
        body = json.dumps({"messages": messages, "tools": tools}).encode()
        request = urllib.request.Request(task["url"] + "/chat/completions", body,
                                         {"Authorization": "Bearer " + task["key"]})
        messages.append(json.load(urllib.request.urlopen(request))["choices"][0]["message"])
        for use in messages[-1].get("tool_calls") or []:
            got = call(mcp, "tools/call", name=use["function"]["name"],
                       arguments=json.loads(use["function"]["arguments"]))
            text = "\n".join(part.get("text", "") for part in got["content"])
            messages.append({"role": "tool", "tool_call_id": use["id"], "content": text})
    return float(task["ground_truth"] in (messages[-1]["content"] or ""))


def episode(task):
    report = {"episode": task["episode"]}
    try:
        with Popen(sys.argv[1], shell=True, text=True, stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as mcp:
            try:
                report["reward"] = play(task, mcp)
            finally:
                mcp.kill()
    except Exception as error:  # no verdict: kedge counts it, and goes on
        report["status"] = repr(error)[:200]
    print(json.dumps(report) + "\n", end="", flush=True)  # in one piece


with ThreadPoolExecutor(16) as threads:
    threads.map(episode, map(json.loads, sys.stdin))
