"""An MCP server over stdio with one tool, as the package mcp 1.30 and 2.0 answer: their responses to
initialize, tools/list and tools/call, a notification before one, and an unknown tool's error."""
import json
import sys

TOOL = {"name": "price", "description": "The price of a thing.", "inputSchema": {
    "type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]}}
for line in sys.stdin:
    message = json.loads(line)
    params = message.get("params", {})
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        reply["result"] = {"protocolVersion": params["protocolVersion"],
                           "capabilities": {"tools": {"listChanged": False}},
                           "serverInfo": {"name": "shop", "version": "1"}}
    elif message["method"] == "tools/list":
        reply["result"] = {"tools": [TOOL]}
    elif params["name"] != "price":
        reply["error"] = {"code": -32602, "message": "Unknown tool: " + params["name"]}
    else:
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message",
                          "params": {"level": "info", "data": "asked"}}), flush=True)
        price = {"kat": "23", "lim": "41"}.get(params["arguments"]["thing"])
        reply["result"] = {"content": [{"type": "text", "text": price or "no such thing"}],
                           "isError": price is None}
    print(json.dumps(reply), flush=True)
