#!/usr/bin/env python3
"""POST /retrieve (Search-R1's protocol) in front of Qdrant, with vectors by `kedge embed`.

usage: qdrant_bridge.py load  ENGINE_URL COLLECTION MODEL < corpus.jsonl    {"id", "contents"} a line
       qdrant_bridge.py serve ENGINE_URL COLLECTION MODEL [PORT]

e.g. qdrant_bridge.py serve http://127.0.0.1:6333 wiki intfloat/e5-base-v2 8000. Needs nothing but Python and kedge.
Environment: KEDGE (kedge), QUERY_PREFIX ("query: "), PASSAGE_PREFIX ("passage: ").
"""
import itertools, json, os, subprocess, sys, threading, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if len(sys.argv) not in (5, 6) or sys.argv[1] not in ("load", "serve"):
    sys.exit(__doc__)
MODE, ENGINE, COLLECTION, MODEL = sys.argv[1], sys.argv[2].rstrip("/"), sys.argv[3], sys.argv[4]
PREFIX = {"query": os.environ.get("QUERY_PREFIX", "query: "), "passage": os.environ.get("PASSAGE_PREFIX", "passage: ")}
ONE_AT_A_TIME = threading.Lock()  # an encoder takes all cores


def ask(method, path, body):
    request = urllib.request.Request(f"{ENGINE}/collections/{COLLECTION}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["result"]


def embed(texts, side):
    command = [os.environ.get("KEDGE", "kedge"), "embed", "-m", MODEL, "--as", side, f"--{side}-prefix", PREFIX[side]]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    with ONE_AT_A_TIME:
        done = subprocess.run(command, input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-500:])
    return [json.loads(line)["vector"] for line in done.stdout.splitlines()]


def load():
    passages, n = map(json.loads, sys.stdin), 0
    while chunk := list(itertools.islice(passages, 1024)):
        vectors = embed([p["contents"] for p in chunk], "passage")
        if n == 0:
            ask("PUT", "", {"vectors": {"size": len(vectors[0]), "distance": "Dot", "datatype": "float16", "on_disk": True}})
        ask("PUT", "/points?wait=true", {"points": [
            {"id": n + i, "vector": v, "payload": {"id": str(p["id"]), "contents": p["contents"]}}
            for i, (p, v) in enumerate(zip(chunk, vectors))]})
        n += len(chunk)
    print(f"{n} passages in {COLLECTION}")


class Handler(BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", -1  # head and body in one packet

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):  # what a run with search.passages asks
        if self.path != "/health":
            return self.reply(404, {"detail": f"expected POST /retrieve or GET /health, found GET {self.path}"})
        try:
            n = ask("POST", "/points/count", {"exact": True})["count"]
        except Exception as error:
            return self.reply(502, {"detail": str(error)})
        self.reply(200, {"status": "ok", "kind": "dense", "passages": n})

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
            found = ask("POST", "/points/query/batch", {"searches": [
                {"query": vector, "limit": topk, "with_payload": True}
                for vector in embed(asked["queries"], "query")]})
            hits = [[{"document": p["payload"], "score": p["score"]} for p in one["points"]] for one in found]
        except Exception as error:
            return self.reply(502, {"detail": str(error)})
        self.reply(200, {"result": hits if asked.get("return_scores") else [[h["document"] for h in one] for one in hits]})

    def log_message(self, *args):
        pass


if MODE == "load":
    load()
else:
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[5]) if len(sys.argv) > 5 else 8000), Handler).serve_forever()
