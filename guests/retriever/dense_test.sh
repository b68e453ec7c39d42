#!/bin/bash
# Encoders from outside: `kedge embed`, and `kedge search` by vectors.
. tests/harness.sh
[ -x ./kedge ] || skip_all dense_test "./kedge is not built"
bert=tests/data/encoder/bert
tested=$(dirname "$0")/../../kedge # on the backend that KEDGE_TEST_BACKEND names

# refuses STATUS WORDS COMMAND...: one line on stderr with these words
refuses() {
    wanted=$1 words=$2
    shift 2
    "$@" </dev/null >"$work/none" 2>"$work/said"
    found=$?
    [ "$found" = "$wanted" ] && grep -qF -- "$words" "$work/said" && [ "$(wc -l <"$work/said")" = 1 ] && return 0
    echo "expected status $wanted and '$words', found $found and: $(cat "$work/said")"
    return 1
}

# ---- kedge embed ----
sed 's/, "vector.*/}/' $bert/golden.jsonl >"$work/texts"

lines_are_texts() {
    ./kedge embed -m $bert <"$work/texts" >"$work/json" || return 1
    printf 'The cat sat on the mat.\na dog\n\n' | ./kedge embed -m $bert --lines >"$work/lines" || return 1
    head -3 "$work/json" | cmp - "$work/lines" && [ "$(wc -l <"$work/json")" = 6 ]
}
pass "a line of text is a text" lines_are_texts

one_by_one() {
    while read -r line; do echo "$line" | ./kedge embed -m $bert --threads 1 || return 1; done <"$work/texts" >"$work/single"
    cmp "$work/single" "$work/json"
}
pass "alone or together, on one thread or on all" one_by_one

prefixed() {
    echo '{"text": "a dog"}' | ./kedge embed -m $bert --as query --query-prefix 'the ' >"$work/a" || return 1
    echo '{"text": "the a dog"}' | ./kedge embed -m $bert | cmp - "$work/a"
}
pass "a prefix stands in front" prefixed
pass "of no text of another side" refuses 1 "--query-prefix: expected it together with --as query, found --as text" \
    ./kedge embed -m $bert --query-prefix 'the '

# 128 bytes of header, 6 rows of 8 floats
as_npy() {
    ./kedge embed -m $bert --npy "$work/v.npy" <"$work/texts" || return 1
    [ "$(stat -c %s "$work/v.npy")" = $((128 + 6 * 8 * 4)) ] && head -c 128 "$work/v.npy" | grep -qF "'shape': (6, 8), }" || return 1
    python3 -c 'import numpy' 2>/dev/null || return 0
    python3 - "$work" <<'P'
import json, sys, numpy
a = numpy.load(sys.argv[1] + "/v.npy")
b = numpy.array([json.loads(x)["vector"] for x in open(sys.argv[1] + "/json")], numpy.float32)
assert a.dtype == numpy.float32 and (a == b).all()
P
}
pass "vectors as a NumPy matrix" as_npy

nothing_half() {
    { cat "$work/texts"; echo '{"no": 1}'; } >"$work/bad"
    ./kedge embed -m $bert --npy "$work/half.npy" <"$work/bad" 2>"$work/said" && return 1
    grep -q "stdin line 7" "$work/said" && ! ls "$work"/half.npy* 2>/dev/null
}
pass "a bad line leaves no file of vectors" nothing_half

# stopped while it waits for a further line: what was written goes
stopped() {
    mkfifo "$work/pipe" || return 1
    ./kedge embed -m $bert --npy "$work/half.npy" <"$work/pipe" 2>"$work/said" &
    pid=$!
    exec 3>"$work/pipe"
    cat "$work/texts" >&3
    for _ in $(seq 100); do
        ls "$work"/half.npy.tmp-* >/dev/null 2>&1 && break
        sleep 0.05
    done
    ls "$work"/half.npy.tmp-* >/dev/null || return 1
    kill -TERM "$pid"
    wait "$pid"
    found=$?
    pid=
    exec 3>&-
    grep -q "half.npy: stopped by a signal, nothing written" "$work/said" && [ "$found" != 0 ] && ! ls "$work"/half.npy* 2>/dev/null
}
pass "a signal leaves no file of vectors" stopped

pass "a decoder is no encoder" refuses 1 "model_type of an encoder: expected one of bert, roberta, xlm-roberta; found 'qwen2'" \
    ./kedge embed -m tests/data/models/synthetic_tiny_qwen2
pass "a device is one that is known" refuses 1 "--device: expected cpu, cuda, cuda:N or auto, found 'gpu'" \
    ./kedge embed -m $bert --device gpu

# `far` is memory that the host cannot touch, as a device's
on_a_device() {
    KEDGE_TEST_BACKEND=far $tested embed -m $bert <"$work/texts" 2>"$work/said" | cmp - "$work/json" || return 1
    grep -q "on far, weights [0-9.]* kB, a pack of texts [0-9.]* kB, of .* that are free" "$work/said"
}
pass "on a device the same vectors, and the log says what they take" on_a_device
on_a_small_one() {
    KEDGE_TEST_BACKEND=far KEDGE_TEST_MEMORY=1500 $tested embed -m $bert <"$work/texts" 2>"$work/said" && return 1
    grep -q -- "--device: expected memory for weights ([0-9.]* kB) and a pack of texts ([0-9.]* kB), found 1.50 kB free on far" "$work/said"
}
pass "a device that is too small" on_a_small_one
pass "no folder" refuses 1 "config.json" ./kedge embed -m "$work/none.such"
pass "a decoder's command refuses an encoder" refuses 1 "architecture: expected one of" ./kedge inspect $bert

# ---- kedge search with vectors ----
seq 1 200 | while read -r i; do
    set -- cat dog mat house king play ran red sat
    shift $((i % 7))
    echo "{\"id\": $i, \"contents\": \"the $1 $2 $i on the mat\"}"
done >"$work/corpus"
seq 1 70 | while read -r i; do echo "{\"query\": \"king and cat $i\"}"; done >"$work/queries"

indexed() {
    ./kedge search index --dense $bert --query-prefix 'query: ' "$work/corpus" "$work/db" 2>/dev/null | grep -q "vectors of 8 numbers" &&
        ./kedge search check "$work/db" | grep -q "vectors of 8 numbers"
}
pass "an index has vectors beside its words" indexed
indexed_on_a_device() {
    KEDGE_TEST_BACKEND=far $tested search index --dense $bert --query-prefix 'query: ' "$work/corpus" "$work/far.db" >/dev/null 2>&1 &&
        cmp "$work/far.db" "$work/db"
}
pass "an index made on a device is the same file" indexed_on_a_device

# the same answers by the same passages, one query at a time or 64 in a pass, and from a server
kinds() {
    for kind in dense hybrid; do
        ./kedge search query "$work/db" --kind $kind --dense $bert --topk 5 <"$work/queries" >"$work/$kind" || return 1
        [ "$(grep -o '"id"' "$work/$kind" | wc -l)" = 350 ] || return 1
    done
    ./kedge search query "$work/db" --topk 5 <"$work/queries" >"$work/words" || return 1
    ! cmp -s "$work/dense" "$work/hybrid" && ! cmp -s "$work/words" "$work/hybrid"
}
pass "by words, by vectors, by both" kinds

by_bytes() {
    for kind in dense hybrid; do
        ./kedge search query "$work/db" --kind $kind --vectors int8 --dense $bert --topk 5 <"$work/queries" | cmp - "$work/$kind" || return 1
    done
}
pass "a byte a number finds what two bytes find" by_bytes

asked_on_a_device() {
    for kind in dense hybrid; do
        for code in fp16 int8; do
            KEDGE_TEST_BACKEND=far $tested search query "$work/db" --kind $kind --vectors $code --dense $bert --topk 5 <"$work/queries" 2>"$work/said" | cmp - "$work/$kind" || return 1
            grep -q "db: on far, vectors 0.000 GB, encoder 0.000 GB, queries and scores 0.0[0-9]* GB, of .* GB that are free" "$work/said" || return 1
        done
    done
}
pass "a device finds what the CPU finds, and the log says what it takes" asked_on_a_device
asked_on_a_small_one() {
    KEDGE_TEST_BACKEND=far KEDGE_TEST_MEMORY=1500 $tested search query "$work/db" cat --kind dense --dense $bert 2>"$work/said" && return 1
    grep -q "db: expected [0-9]* bytes on far, found 1500 free: 200 vectors of 8 numbers as " "$work/said"
}
pass "vectors that do not fit on a device" asked_on_a_small_one
pass "a device to ask on is one that is known" refuses 1 "--device: expected cpu, cuda, cuda:N or auto, found 'gpu'" \
    ./kedge search query "$work/db" cat --kind dense --dense $bert --device gpu
pass "a device to measure a pass on is one that is known" refuses 1 "--device: expected cpu, cuda, cuda:N or auto, found 'gpu'" \
    ./kedge bench search --device gpu
on_words() {
    ./kedge search query "$work/db" cat --device cpu 2>"$work/said" && return 1
    grep -q -- "--device: has an effect only with --dense" "$work/said"
}
pass "words have no device" on_words

# the table of docs/search.md: a setting of hybrid is chosen on one part of the questions and told of the other
split() {
    seq 1 70 | while read -r i; do echo "{\"id\": \"q$i\", \"question\": \"king and cat $i\", \"supporting_docs\": [\"$i\"]}"; done >"$work/asked"
    ./kedge search query "$work/db" --topk 100 <"$work/queries" >"$work/a" &&
        ./kedge search query "$work/db" --kind dense --dense $bert --topk 100 <"$work/queries" >"$work/b" || return 1
    tools/oracle/hybrid_split.py "$work/a" "$work/b" "$work/asked" >"$work/said" || return 1
    grep -q '^34 questions to choose on, 36 to report' "$work/said" && grep -q '^hybrid --fusion rank --weight 0.5: chosen on ' "$work/said" &&
        grep -q "^hybrid --fusion score --weight 0.1: .*reported 1.000 among 3" "$work/said" || { cat "$work/said"; return 1; }
}
if command -v python3 >/dev/null; then
    pass "a setting is chosen on other questions than it is told of" split
else
    skipped "a setting is chosen on other questions than it is told of" "python3 is not here"
fi
pass "without sentence-transformers nothing is compared with it" \
    sh -c "KEDGE_PYTHON=false tools/embed-compare $bert $work/corpus | grep -q '^skip: embed-compare: false has no sentence-transformers'"

# NAME=VALUE.. the environment; two workers, of one device too
served() {
    env "$@" $tested search serve "$work/db" --kind hybrid --dense $bert --workers 2 --port 0 2>"$work/log" &
    pid=$!
    for _ in $(seq 100); do
        port=$(sed -n 's|.*http://127.0.0.1:\([0-9]*\)/retrieve.*|\1|p' "$work/log" | head -1)
        [ -n "$port" ] && break
        sleep 0.1
    done
    [ -n "$port" ] || { cat "$work/log"; return 1; }
    { printf '{"topk": 5, "return_scores": true, "queries": ['
      sed 's/{"query": //; s/}$//' "$work/queries" | paste -sd,
      echo ']}'; } >"$work/request"
    curl -sf -H 'Content-Type: application/json' -d @"$work/request" "http://127.0.0.1:$port/retrieve" >"$work/answer"
    found=$?
    curl -sf "http://127.0.0.1:$port/health" >"$work/health"
    curl -sf "http://127.0.0.1:$port/metrics" >"$work/metrics"
    kill "$pid"
    wait "$pid"
    pid=
    [ "$found" = 0 ] || return 1
    grep -o '"score":[0-9.e-]*' "$work/answer" >"$work/a"
    tr -d ' ' <"$work/hybrid" | grep -o '"score":[0-9.e-]*' | cmp - "$work/a"
}
# the hashes of index and encoder are those that check prints
named() {
    ./kedge search check "$work/db" >"$work/a"
    for key in index encoder; do
        hash=$(sed -n "s/.*\"$key\": \"\([0-9a-f]\{16\}\)\".*/\1/p" "$work/health")
        [ -n "$hash" ] && grep -q "$hash" "$work/a" || { cat "$work/health" "$work/a"; return 1; }
    done
}
if command -v curl >/dev/null; then
    pass "a server finds what a query finds" served
    pass "without a device it has no bytes of one" grep -q '^kedge_search_device_bytes 0$' "$work/metrics"
    pass "a server on a device finds the same" served KEDGE_TEST_BACKEND=far
    pass "and says what it has there" grep -q '^kedge_search_device_bytes [1-9][0-9]*$' "$work/metrics"
    pass "a server says which index and encoder it has" named
else
    skipped "a server finds what a query finds" "curl is not here"
    skipped "a server says which index and encoder it has" "curl is not here"
fi

# ---- vectors that were made elsewhere ----
imported() {
    sed 's/"id": [0-9]*, "contents"/"text"/' "$work/corpus" | ./kedge embed -m $bert --npy "$work/given.npy" &&
        ./kedge search index --dense $bert --query-prefix 'query: ' --vectors-from "$work/given.npy" "$work/corpus" "$work/db3" >/dev/null 2>&1 &&
        cmp "$work/db" "$work/db3"
}
pass "an index of given vectors is the one that the encoder makes" imported
head -199 "$work/corpus" >"$work/fewer"
tac "$work/corpus" >"$work/turned"
pass "a vector too many" refuses 1 "given.npy: expected a vector of each of 199 passages, found 200" \
    ./kedge search index --dense $bert --vectors-from "$work/given.npy" "$work/fewer" "$work/db4"
pass "another order" refuses 1 "vector 1: expected the encoder's vector of passage 1" \
    ./kedge search index --dense $bert --vectors-from "$work/given.npy" "$work/turned" "$work/db4"
pass "another prefix" refuses 1 "vector 1: expected the encoder's vector of passage 1" \
    ./kedge search index --dense $bert --passage-prefix 'king: ' --vectors-from "$work/given.npy" "$work/corpus" "$work/db4"
pass "a graph is no flat index" refuses 1 "found IHNf: HNSW" \
    ./kedge search index --dense $bert --vectors-from tests/data/vectors/graph.index "$work/corpus" "$work/db4"
pass "a folder is no file of vectors" refuses 1 "tests/data/vectors: " \
    ./kedge search index --dense $bert --vectors-from tests/data/vectors "$work/corpus" "$work/db4"
pass "nothing is left of these" sh -c "! ls $work/db4*"
given_alone() {
    ./kedge search index --vectors-from "$work/given.npy" "$work/corpus" "$work/db4" 2>"$work/said" && return 1
    grep -q -- "--vectors-from: has an effect only with --dense" "$work/said"
}
pass "given vectors are an encoder's" given_alone
in_memory() { ./kedge search check "$work/db" | grep -qF "in memory 3.20 kB as fp16 or 3.20 kB as int8" || { ./kedge search check "$work/db"; return 1; }; }
pass "an index says what its vectors take in memory" in_memory

pass "another encoder is refused" refuses 1 "expected the encoder of its vectors" \
    ./kedge search query "$work/db" --kind dense --dense tests/data/encoder/xlm-roberta cat
pass "vectors need their encoder" refuses 1 "--dense: expected the folder of the encoder for --kind dense" \
    ./kedge search query "$work/db" --kind dense cat
cp -r tests/data/encoder/bert "$work/wide"
sed -i 's/"max_position_embeddings": 24/"max_position_embeddings": 20/' "$work/wide/config.json"
pass "other dimensions than the weights have" refuses 1 "expected 20 x 8 by config.json, found 2 dimensions, 24 x 8" \
    ./kedge search index --dense "$work/wide" --max-tokens 9 "$work/corpus" "$work/db2"
rm -r "$work/wide/1_Pooling" "$work/wide/modules.json"
pass "no word on pooling" refuses 1 "or --pooling mean or cls" \
    ./kedge search index --dense "$work/wide" "$work/corpus" "$work/db2"
pass "a decoder makes no vectors" refuses 1 "model_type of an encoder" \
    ./kedge search index --dense tests/data/models/synthetic_tiny_qwen2 "$work/corpus" "$work/db2"
pass "nothing is left of it" test ! -e "$work/db2"

exit $((failures > 0))
