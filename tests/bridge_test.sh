#!/bin/bash
# docs/search-at-scale.md as it stands: its commands from a corpus to an index that is served, and the two bridges to other
# engines in front of a stand-in that answers as those engines' documentation says.
. tests/harness.sh
[ -x ./kedge ] || skip_all bridge_test "./kedge is not built"
command -v python3 >/dev/null || skip_all bridge_test "there is no python3"
command -v curl >/dev/null || skip_all bridge_test "there is no curl"
encoder=$PWD/tests/data/encoder/bert
top=$PWD
export PYTHONDONTWRITEBYTECODE=1 KEDGE=$top/kedge
pids=
trap 'kill $pids 2>/dev/null; rm -rf "$work"' EXIT

seq 0 59 | while read -r i; do
    set -- cat dog mat house king play ran red sat
    shift $((i % 7))
    echo "{\"id\": \"$i\", \"contents\": \"\\\"title $i\\\"\\nthe $1 $2 $i on the mat\"}"
done >"$work/wiki-18.jsonl"
printf '{"query": "king and cat %s"}\n' 1 2 3 4 5 6 7 8 >"$work/questions.jsonl"

# ---- the commands of the page ----
# those of a section, indented by four spaces
commands_of() { sed -n "/^## $1\$/,/^## /s/^    //p" docs/search-at-scale.md; }

# a server's port is known when it listens
wait_for_port() {
    for _ in $(seq 200); do
        port=$(sed -n 's|.*127\.0\.0\.1:\([0-9]*\)/retrieve.*|\1|p' "$1" 2>/dev/null | head -1)
        [ -n "$port" ] && return 0
        sleep 0.1
    done
    cat "$1"
    return 1
}

# run_page SECTION LINES: its commands, at least so many lines
run_page() {
    port=
    rm -f "$work/log"
    mkdir -p "$work/bin"
    ln -sf "$top/kedge" "$work/bin/kedge"
    cd "$work" && PATH=$work/bin:$PATH
    # the test's encoder has 24 tokens
    (cd "$top" && commands_of "$1") |
        sed "s|intfloat/e5-base-v2|$encoder|g; s| --max-tokens 256||; s|\$corpus/wiki-18.jsonl.gz|wiki-18.jsonl|" >"$work/commands"
    [ "$(wc -l <"$work/commands")" -ge "$2" ] || { echo "too few commands"; return 1; }
    while read -r line; do
        line=$(echo "$line" | sed "s|--port 8000|--port 0|; s|127.0.0.1:8000|127.0.0.1:$port|; s|--seconds [0-9]*|--seconds 0.2|")
        case $line in
        # ask the hub; need a model (tests/recipes_test.c has the recipe's plan)
        kedge\ pull* | wiki=* | cat* | corpus=* | kedge\ train*) continue ;;
        *\&) eval "${line%&} 2>'$work/log' &" && pids="$pids $!" && wait_for_port "$work/log" || return 1 ;;
        *) eval "$line" </dev/null >"$work/said" 2>&1 || { echo "$line:"; cat "$work/said"; return 1; } ;;
        esac
    done <"$work/commands"
    cd "$top" || return 1
}
pass "the page's commands, from a corpus to a server" run_page 'On kedge' 5
cd "$top" || exit 1

# what Search-R1's index holds: a flat one of FAISS, of the passages in their order
made_elsewhere() {
    sed 's/"id": "[0-9]*", "contents"/"text"/' "$work/wiki-18.jsonl" |
        ./kedge embed -m "$encoder" --as passage --passage-prefix 'passage: ' --npy "$work/v.npy" || return 1
    python3 - "$work" <<'P'
import struct, sys
rows = open(sys.argv[1] + "/v.npy", "rb").read()[128:]
assert len(rows) == 60 * 8 * 4
head = b"IxFI" + struct.pack("<iqqqBiQ", 8, 60, 1 << 20, 1 << 20, 1, 0, len(rows) // 4)
open(sys.argv[1] + "/e5_Flat.index", "wb").write(head + rows)
P
}
pass "a flat index that was made elsewhere" made_elsewhere
cp "$work/wiki.db" "$work/embedded.db"
pass "the page's commands, from the published index to a server" run_page 'On kedge: the published index' 9
cd "$top" || exit 1
pass "the index is the one that is embedded here" cmp "$work/embedded.db" "$work/wiki.db"

# ---- a stand-in for Qdrant and for OpenSearch ----
cat >"$work/engine.py" <<'P'
import json, re, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
texts = [json.loads(x) for x in open(sys.argv[1])]
made, points, down = {}, {}, sys.argv[2] == "down"
class H(BaseHTTPRequestHandler):
    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status); self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
    def result(self, what): self.answer(200, {"result": what, "status": "ok", "time": 0.001})
    def do_PUT(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/collections/wiki":
            made.update(body["vectors"])
            assert made["distance"] == "Dot" and made["datatype"] == "float16" and made["size"] == 8, made
            return self.result(True)
        assert self.path == "/collections/wiki/points?wait=true", self.path
        for p in body["points"]:
            assert isinstance(p["id"], int) and len(p["vector"]) == made["size"] and p["id"] not in points
            points[p["id"]] = p
        self.result({"operation_id": 0, "status": "completed"})
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if down: return self.answer(503, {"status": {"error": "overloaded"}})
        if self.path == "/_msearch":
            assert self.headers["Content-Type"] == "application/x-ndjson" and body.endswith(b"\n")
            lines = [json.loads(x) for x in body.splitlines()]
            return self.answer(200, {"took": 1, "responses": [self.match(h, q) for h, q in zip(lines[::2], lines[1::2])]})
        if self.path == "/collections/wiki/points/count": return self.result({"count": len(points)})
        assert self.path == "/collections/wiki/points/query/batch", self.path
        self.result([{"points": self.nearest(s)} for s in json.loads(body)["searches"]])
    def nearest(self, s):
        assert s["with_payload"] is True
        dot = lambda p: sum(a * b for a, b in zip(p["vector"], s["query"]))
        best = sorted(points.values(), key=lambda p: (-dot(p), p["id"]))[:s["limit"]]
        return [{"id": p["id"], "version": 0, "score": dot(p), "payload": p["payload"]} for p in best]
    def match(self, head, q):
        if head != {"index": "wiki"}: return {"error": {"type": "index_not_found_exception"}, "status": 404}
        words = q["query"]["match"]["contents"].split()
        score = lambda t: sum(w in re.split(r"\W+", t["contents"]) for w in words)
        best = sorted(texts, key=lambda t: -score(t))[:q["size"]]
        return {"hits": {"hits": [{"_id": t["id"], "_score": score(t), "_source": t} for t in best]}, "status": 200}
    def log_message(self, *a): pass
s = HTTPServer(("127.0.0.1", 0), H)
print(s.server_port, flush=True)
s.serve_forever()
P
# start NAME COMMAND...: in the background, what it says in $work/NAME
start() {
    log=$work/$1
    shift
    "$@" >"$log" 2>&1 &
    pids="$pids $!"
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
engine_of() { # NAME HOW: its address in $engine
    start "$1" python3 "$work/engine.py" "$work/wiki-18.jsonl" "$2"
    for _ in $(seq 100); do [ -s "$work/$1" ] && break; sleep 0.1; done
    engine=http://127.0.0.1:$(cat "$work/$1")
}
# bridge NAME COMMAND...: behind it a port; waits until it listens, in $port
bridge() {
    port=$(free_port)
    start "$@" "$port"
    for _ in $(seq 100); do curl -s -o /dev/null "http://127.0.0.1:$port/" && return 0; sleep 0.1; done
    cat "$work/$1"
    return 1
}
# retrieve BODY: the answer in $work/body; succeeds on 200
retrieve() { curl -sS --fail-with-body -o "$work/body" -H 'Content-Type: application/json' -d "$1" "http://127.0.0.1:$port/retrieve" 2>/dev/null; }
ids() { grep -o '"id": *"[0-9]*"' "$1" | tr -d ' '; }

engine_of engine up
up=$engine

loaded() {
    python3 examples/qdrant_bridge.py load "$up" wiki "$encoder" <"$work/wiki-18.jsonl" >"$work/a" 2>&1
    grep -qx "60 passages in wiki" "$work/a" || { cat "$work/a"; return 1; }
}
pass "a corpus goes into Qdrant with kedge's vectors" loaded

# the bridge finds what kedge's own exact search over the same vectors finds, in its order
as_kedge() {
    ./kedge search index --dense "$encoder" --query-prefix 'query: ' --passage-prefix 'passage: ' "$work/wiki-18.jsonl" "$work/own.db" >/dev/null 2>&1 &&
        ./kedge search query "$work/own.db" --kind dense --dense "$encoder" --topk 2 <"$work/questions.jsonl" >"$work/own" || return 1
    bridge qdrant python3 examples/qdrant_bridge.py serve "$up" wiki "$encoder" || return 1
    retrieve "{\"topk\": 2, \"return_scores\": true, \"queries\": [$(sed 's/{"query": //; s/}$//' "$work/questions.jsonl" | paste -sd,)]}" || { cat "$work/body"; return 1; }
    ids "$work/body" >"$work/a"
    [ "$(wc -l <"$work/a")" = 16 ] && ids "$work/own" | diff - "$work/a"
}
pass "Qdrant behind /retrieve finds what kedge finds" as_kedge

# what a run sends and reads is what the bridge reads and sends
asked_by_kedge() { ./kedge search bench "http://127.0.0.1:$port/retrieve" "$work/questions.jsonl" --seconds 0.5 >"$work/a" 2>&1 || { cat "$work/a"; return 1; }; }
pass "kedge reads its answers" asked_by_kedge

says_what_it_has() {
    curl -sS "http://127.0.0.1:$port/health" >"$work/body" && grep -qF '"kind": "dense", "passages": 60' "$work/body"
}
pass "Qdrant's bridge says what it has" says_what_it_has
malformed() {
    for body in 'x' '{}' '[]' '{"queries": "cat"}' '{"queries": [1]}' '{"queries": ["cat"], "topk": "x"}'; do
        [ "$(curl -sS -o "$work/body" -w '%{http_code}' -d "$body" "http://127.0.0.1:$port/retrieve")" = 400 ] &&
            grep -qF '"detail": "expected {' "$work/body" || { echo "$body"; cat "$work/body"; return 1; }
    done
}
pass "and refuses what is malformed with 400" malformed

# by what a server finds is not for who asks it
finds_as_started() {
    ./kedge search bench "http://127.0.0.1:$port/retrieve" "$work/questions.jsonl" --kind dense --dense "$encoder" >"$work/a" 2>&1 && return 1
    grep -qF "which has its own search options: expected neither --kind nor --dense" "$work/a"
}
pass "--kind and --dense are refused with a server" finds_as_started

by_words() {
    bridge words python3 examples/retrieve_bridge.py "$up" wiki || return 1
    retrieve '{"queries": ["king 4", "sat"], "topk": 1, "return_scores": true}' &&
        grep -qF '"score": 2' "$work/body" && grep -qF '"id": "4"' "$work/body" || { cat "$work/body"; return 1; }
    retrieve '{"queries": ["king 4"], "topk": 1}' && grep -qF '{"result": [[{"id": "4", "contents": ' "$work/body"
}
pass "OpenSearch behind /retrieve" by_words
pass "which refuses what is malformed with 400, too" malformed

engine_of broken down
fails_as_asked() { # COMMAND...
    bridge failing "$@" || return 1
    retrieve '{"queries": ["cat"]}' && return 1
    grep -qF '{"detail": "HTTP Error 503' "$work/body" || { cat "$work/body"; return 1; }
}
pass "an engine that is down is told as such, by Qdrant's" fails_as_asked python3 examples/qdrant_bridge.py serve "$engine" wiki "$encoder"
pass "and by OpenSearch's" fails_as_asked python3 examples/retrieve_bridge.py "$engine" wiki
told_how() { # a bridge without its words
    python3 "examples/$1" serve >"$work/a" 2>&1 && return 1
    grep -q "^usage: $1 " "$work/a" && ! grep -q Traceback "$work/a" || { cat "$work/a"; return 1; }
}
pass "Qdrant's bridge without words says its usage" told_how qdrant_bridge.py
pass "and OpenSearch's" told_how retrieve_bridge.py
no_index() {
    bridge other python3 examples/retrieve_bridge.py "$up" other && ! retrieve '{"queries": ["cat"]}' &&
        grep -qF index_not_found "$work/body"
}
pass "an index that is not there" no_index
no_encoder() {
    bridge none python3 examples/qdrant_bridge.py serve "$up" wiki no/such && ! retrieve '{"queries": ["cat"]}' &&
        grep -qF 'kedge pull no/such' "$work/body"
}
pass "an encoder that is not there" no_encoder

exit $((failures > 0))
