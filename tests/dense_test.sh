#!/bin/bash
# Encoders from outside: `kedge embed`.
. tests/harness.sh
[ -x ./kedge ] || skip_all dense_test "./kedge is not built"
bert=tests/data/encoder/bert

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

pass "a decoder is no encoder" refuses 1 "model_type of an encoder: expected one of bert, roberta, xlm-roberta; found 'qwen2'" \
    ./kedge embed -m tests/data/models/synthetic_tiny_qwen2
pass "devices have none yet" refuses 1 "--device: expected cpu, found cuda: encoders have no kernels for devices yet" \
    ./kedge embed -m $bert --device cuda
pass "no folder" refuses 1 "config.json" ./kedge embed -m "$work/none.such"
pass "a decoder's command refuses an encoder" refuses 1 "architecture: expected one of" ./kedge inspect $bert

exit $((failures > 0))
