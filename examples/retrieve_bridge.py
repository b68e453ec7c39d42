#!/usr/bin/env python3
"""POST /retrieve (Search-R1's protocol) in front of Elasticsearch or OpenSearch.

usage: retrieve_bridge.py ENGINE_URL INDEX [PORT]      e.g. retrieve_bridge.py http://127.0.0.1:9200 wiki 8000

One _msearch for each request. Needs nothing but Python.
"""
import json
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if len(sys.argv) not in (3, 4):
    sys.exit(__doc__)
ENGINE, INDEX = sys.argv[1].rstrip("/"), sys.argv[2]
PORT = int(sys.argv[3]) if len(sys.argv) > 3 else 8000


def search(queries, topk):
    lines = []
    for query in queries:
        lines.append(json.dumps({"index": INDEX}))
        lines.append(json.dumps({"size": topk, "query": {"match": {"contents": query}}}))
    request = urllib.request.Request(
        ENGINE + "/_msearch",
        ("\n".join(lines) + "\n").encode(),
        {"Content-Type": "application/x-ndjson"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        responses = json.load(answer)["responses"]
    for response in responses:
        if "error" in response:
            raise RuntimeError(json.dumps(response["error"])[:500])
    return [response["hits"]["hits"] for response in responses]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        try:
            asked = json.loads(body)
            if not isinstance(asked["queries"], list) or not all(isinstance(q, str) for q in asked["queries"]):
                raise ValueError("queries are no list of strings")
            topk = int(asked.get("topk") or 3)
        except Exception as error:
            return self.reply(400, {"detail": f"expected {{\"queries\": [\"..\"]}}: {error!r}"})
        try:
            lists = search(asked["queries"], topk)
        except Exception as error:
            return self.reply(502, {"detail": str(error)})
        document = lambda hit: {"id": hit["_id"], "contents": hit["_source"]["contents"]}
        if asked.get("return_scores"):
            result = [[{"document": document(h), "score": h["_score"]} for h in hits] for hits in lists]
        else:
            result = [[document(h) for h in hits] for hits in lists]
        self.reply(200, {"result": result})

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
