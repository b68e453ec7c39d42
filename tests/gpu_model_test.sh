#!/bin/bash
# The model of the times of kernels (tools/gpu_model.c): what it records are kedge's launches, and a wrong flag is named.
. tests/harness.sh
model=$(dirname "$0")/../../gpu-model

"$model" --shape 135M --decode 1 --context 16 >"$work/decode"
launches() { sed -n "s/^$1  *\([0-9]*\) .*/\1/p" "$work/decode"; }
# 30 layers of 9 launches, as model/device_test counts them; the ids, the embedding, the last norm, the head and the drawing
pass "a layer of a decode step is nine launches" [ "$(($(launches step) - $(launches "rows moved") - $(launches head) - $(launches drawing)))" = $((30 * 9 + 2)) ]
pass "every kernel takes time" awk '/%/ && $0 !~ /^(decode|kernel)/ { n++; for (i = 2; i <= NF && $i !~ /%/; i++); if ($(i - 1) <= 0) bad = 1 } END { exit bad || n < 8 }' "$work/decode"
pass "and it is called predicted" grep -q "on H200: predicted, unmeasured" "$work/decode"
# wrong FOUND FLAG...
wrong() {
    found=$1
    shift
    ! "$model" "$@" 2>"$work/said" && [ "$(wc -l <"$work/said")" = 1 ] && grep -q "found '$found'" "$work/said"
}
pass "an unknown shape is named" wrong 9B --shape 9B
pass "and a batch of none" wrong 0 --decode 0
pass "and an unknown flag" wrong --speed --speed
exit $((failures > 0))
