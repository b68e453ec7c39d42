#!/bin/sh
# Memory that ends: every size of address space, and the n-th request of the whole process, whichever library makes it.
# What runs into it ends with status 1 and one line that says so, never by a signal. Run from the top of the tree.
# shellcheck disable=SC3045 # dash and bash have both limits
set -u
. tests/harness.sh
told="$work/err"

[ -x ./kedge ] || skip_all memory "./kedge is not built"
data=tests/data/verl_digit_llama
export GOMP_SPINCOUNT=300 OMP_NUM_THREADS=2 # as the program sets the first, which starts it anew
ulimit -c 0

generate() { ./kedge generate --model $data --max-tokens 3 3; }
train() {
    rm -rf "$work/run"
    ./kedge train model.path=$data task.name=digits data.train=$data/train.jsonl rollout.prompts=2 rollout.samples=2 \
        rollout.max_tokens=4 train.steps=1 run.dir="$work/run"
}

# ended_well STATUS WHERE: 0, or 1 with one line of an error; 127 is the loader's, which has no room for the libraries
ended_well() {
    [ "$1" -eq 0 ] && return 0
    lines=$(grep -c -e '^kedge [a-z]*: ' -e '^libgomp: [A-Z]' -e 'error while loading shared libraries' "$work/err")
    [ "$1" -eq 1 ] && [ "$lines" -eq 1 ] && return 0
    [ "$1" -eq 127 ] && [ "$lines" -eq 1 ] && return 0
    echo "$2: expected status 1 and one line, found status $1 and:"
    return 1
}
# sizes COMMAND STEP: from 50 MB to the first that is enough, STEP KiB at a time
sizes() {
    kib=51200
    while [ "$kib" -lt 1500000 ]; do
        (ulimit -v "$kib" && "$1") >/dev/null 2>"$work/err"
        status=$?
        ended_well "$status" "$1 in $kib KiB" || return 1
        [ "$status" -eq 0 ] && return 0
        kib=$((kib + $2))
    done
    echo "$1 never had enough"
    return 1
}
# requests COMMAND FIRST RUNS: the n-th fails, RUNS of them spread from FIRST to the last
requests() {
    KEDGE_FAIL_COUNT=$work/count LD_PRELOAD=$work/fail.so "$1" >/dev/null 2>"$work/err" || return 1
    last=$(cat "$work/count") n=$2
    step=$(((last - n) / $3 + 1))
    while [ "$n" -le "$last" ]; do
        KEDGE_FAIL_NTH=$n LD_PRELOAD=$work/fail.so "$1" >/dev/null 2>"$work/err"
        ended_well $? "$1, request $n of $last" || return 1
        n=$((n + step))
    done
}
started() { KEDGE_FAIL_COUNT=$work/count LD_PRELOAD=$work/fail.so ./kedge --version >/dev/null 2>&1 && first=$(cat "$work/count"); }

pass "generate ends in a line in every size of memory" sizes generate 3001
pass "train ends in a line in every size of memory" sizes train 9001
if ${CC:-cc} -shared -fPIC -o "$work/fail.so" tests/fail_nth.c -ldl >"$work/err" 2>&1 && started; then
    pass "a request that fails before main ends in a line or not at all" requests generate 1 20
    pass "a request of generate that fails ends in a line" requests generate "$first" 150
    pass "a request of train that fails ends in a line" requests train "$first" 100
else
    skipped "requests that fail" "the library that fails them cannot be built or preloaded: $(tail -1 "$work/err")"
fi
exit $((failures > 0))
