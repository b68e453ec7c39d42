#!/bin/sh
# tools/gpu-check without a GPU: its parts on the CPU, what a failing program and a part without time do to it, and the bundle
# in a folder of its own with none of this machine's environment.
. tests/harness.sh

[ -x ./kedge ] || skip_all gpu-check "./kedge is not built"
out=$work/results
mkdir "$out"
check() { OUT="$out" tools/gpu-check --small "$@"; }
# result NAME: of a row, as the table has it
result() { awk -F ' *[|] *' -v name="$1" '$2 == name { print $3 }' "$out/gpu.md"; }
# as an array of one object, which kedge reads
json_is_read() { { printf '['; cat "$out/gpu.json"; printf ']'; } >"$work/array.json" && ./kedge data head "$work/array.json" >/dev/null; }

# whole, of test programs that this test wrote
fake() { # NAME, then what it says; the last word is its status
    mkdir -p "$work/programs/$(dirname "$1")"
    printf '#!/bin/sh\n%s\n' "$2" >"$work/programs/$1_test"
    chmod +x "$work/programs/$1_test"
}
for p in $(tools/gpu-check --list); do fake "${p%_test}" 'echo "[       OK ] a_test"'; done
KEDGE_GPU_CHECK_TESTS=$work/programs
export KEDGE_GPU_CHECK_TESTS

# ---- where a busy machine may be too slow ----------------------------------------------------------------------------
# unhurried NAME SECONDS COMMAND: a test of a command that is given seconds and ends with 2 where they were too few. It has four
# times as many then; are these too few, the test is skipped for the reason in $work/why.
unhurried() {
    "$3" "$2" >"$work/out" 2>&1
    ended=$?
    if [ $ended -eq 2 ]; then
        "$3" $((4 * $2)) >"$work/out" 2>&1
        ended=$?
    fi
    case $ended in
    0) ok "$1" ;;
    2) skipped "$1" "$(cat "$work/why")" ;;
    *) failed "$1" "$(cat "$work/out")" ;;
    esac
}
# in_time PART SECONDS: whether all of the part was done in them, else 2
in_time() {
    [ "$(result "$1")" = "out of time" ] || return 0
    echo "$1 is not done where the parts have $2 s: $(awk -F ' *[|] *' '$3 == "out of time" { printf "%s%s", n++ ? ", " : "", $2 }' "$out/gpu.md")" \
        >"$work/why"
    return 2
}

few=0
in_few() {
    few=$((few + 1))
    echo "not in $1 s" >"$work/why"
    return "$(echo "$ends" | cut -d ' ' -f $few)"
}
said_of() { (ends=$1 && unhurried x 5 in_few) | tr '\n' ';'; }
too_few_is_no_pass() {
    [ "$(said_of "0")" = "[       OK ] x;" ] && [ "$(said_of "2 0")" = "[       OK ] x;" ] &&
        [ "$(said_of "2 2")" = "skip: not in 20 s;[  SKIPPED ] x;" ] && said_of "1 0" | grep -q FAILED && said_of "2 1" | grep -q FAILED
}
pass "too few seconds are tried again, and no pass" too_few_is_no_pass
# training does not get on: neither the part that counts its steps nor the one that measures them is done, and nothing FAILED
training_is_slow() {
    printf '#!/bin/sh\n[ "$1" != train ] || exec sleep 100\nexec ./kedge "$@"\n' >"$work/slow"
    chmod +x "$work/slow"
    KEDGE_GPU_CHECK_PROGRAM=$work/slow check --device cpu --parts whole,bench --seconds 12 || return 1
    for part in whole bench; do
        in_time $part 12
        [ $? -eq 2 ] && grep -q "^$part is not done where the parts have 12 s: " "$work/why" || return 1
    done
}
pass "training that does not get on is out of time, and not FAILED" training_is_slow

all_is_well() { # seconds
    check --device cpu --parts start,whole --seconds "$1" || return 1
    in_time whole "$1" || return
    if grep -q '| kill -9 and resume | skipped .*it ended before it was killed' "$out/gpu.md"; then
        echo "the run ended before it was killed, twice" >"$work/why"
        return 2
    fi
    [ "$(result whole)" = ok ] && [ "$(result mismatch/first_update_max)" = ok ] && [ "$(result 'kill -9 and resume')" = ok ] &&
        [ "$(result train/reward)" = ok ] && json_is_read || return 1
}
unhurried "a model is compared, trained, killed and resumed" 200 all_is_well

one_fails() {
    fake tensor/head 'echo "[       OK ] a_test"; echo "[  FAILED  ] b_test"; exit 1'
    fake tensor/op 'kill -SEGV $$'
    check --device cpu --parts values && return 1
    grep -q '| tensor/head | FAILED | 1 passed, 1 failed, 0 skipped |.*b_test' "$out/gpu.md" &&
        [ "$(result tensor/op)" = FAILED ] && [ "$(result values)" = FAILED ] && [ "$(result tensor/matmul)" = ok ] &&
        [ -s "$out/gpu.log" ] && json_is_read
}
pass "a program that fails is status 1, and the others run" one_fails

# A kernel breaks the context of its process: what comes after it fails, too, and alone does not. The first that does is
# seen again below a sanitizer, once in all.
broken='case "${KEDGE_TEST_ONLY:-}" in
"") echo "[       OK ] a_test"; for t in b_test c_test d_test; do echo "[  FAILED  ] $t"; done
    echo "[  FAILED  ] 3 test(s), listed below:"; for t in b_test c_test d_test; do echo "[  FAILED  ] $t"; done; exit 3 ;;
b_test | d_test) echo "[  FAILED  ] $KEDGE_TEST_ONLY"; exit 1 ;;
*) echo "[       OK ] $KEDGE_TEST_ONLY" ;;
esac'
each_by_itself() {
    fake tensor/head "$broken"
    fake tensor/op "$broken"
    mkdir -p "$work/sanitized"
    cat >"$work/sanitized/compute-sanitizer" <<'END'
#!/bin/sh
echo "========= Invalid __global__ write of size 4 bytes"
echo "=========     at product(kg_mat)+0x120 in product.cu:77"
exec "$@"
END
    chmod +x "$work/sanitized/compute-sanitizer"
    PATH=$work/sanitized:$PATH check --device cpu --parts values --seconds 60 && return 1
    [ "$(result 'tensor/head: b_test alone')" = FAILED ] && [ "$(result 'tensor/head: c_test alone')" = ok ] &&
        [ "$(result 'tensor/head: d_test alone')" = FAILED ] && [ "$(result 'tensor/op: b_test alone')" = FAILED ] &&
        [ "$(grep -c '^| compute-sanitizer: ' "$out/gpu.md")" -eq 1 ] &&
        grep -q '^| compute-sanitizer: b_test | measured |.*Invalid __global__ write.*product.cu:77' "$out/gpu.md" &&
        grep -q 'product.cu:77' "$out/gpu.log" && json_is_read
}
pass "tests that fail are run one by one, and the first below a sanitizer" each_by_itself
fake tensor/head 'echo "[       OK ] a_test"'
fake tensor/op 'echo "[       OK ] a_test"'

# The same device and products in each process, or --resume would refuse its own run.
named_alike() {
    printf '#!/bin/sh\n[ "$1" != doctor ] || echo "device: cuda, products: cublas 13.1.0, plans $(wc -c <"$0.$KEDGE_TEST_CHANGES")"\n%s\n' \
        '[ "$KEDGE_TEST_CHANGES" = no ] || echo >>"$0.yes"' >"$work/names"
    chmod +x "$work/names" && : >"$work/names.no" && : >"$work/names.yes"
    KEDGE_TEST_CHANGES=no KEDGE_GPU_CHECK_PROGRAM=$work/names check --device cpu --parts start &&
        [ "$(result 'two processes name the same products')" = ok ] || return 1
    KEDGE_TEST_CHANGES=yes KEDGE_GPU_CHECK_PROGRAM=$work/names check --device cpu --parts start && return 1
    grep -q '| two processes name the same products | FAILED |.*plans 1; device: .*plans 2' "$out/gpu.md"
}
pass "two processes that name other products are a failure" named_alike

# Makers, each in a process of its own: a program that says who made its products.
each_maker() {
    fake tensor/matmul '[ "$KEDGE_TEST_PRODUCTS" = own ] && echo "[  FAILED  ] b_test" && exit 1; echo "[       OK ] a_test"'
    check --device emu --parts values --seconds 60 && return 1
    [ "$(result 'tensor/matmul, products exact')" = ok ] && [ "$(result 'tensor/matmul, products own')" = FAILED ] &&
        [ "$(result 'tensor/op, products own')" = ok ] && [ "$(result 'tensor/matmul, products own: b_test alone')" = FAILED ] &&
        json_is_read
}
pass "operations are tried with each maker of products" each_maker
fake tensor/matmul 'echo "[       OK ] a_test"'

# A program whose records are its scores only where the host draws: the row without `draw` is the one that holds.
heals() {
    cat >"$work/programs/kedge" <<'END'
#!/bin/sh
case $1 in
new) for last; do :; done && mkdir -p "$last" && echo >"$last/model.safetensors" && exit 0 ;;
esac
off=0.5
case $KEDGE_TEST_PRODUCTS${KEDGE_TEST_WITHOUT:-} in exact | *draw*) off=0.25 ;; esac
while read -r line; do
    [ "$1" != score ] || { echo '{"logprobs": [null, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25]}' && continue; }
    for i in 1 2; do printf '{"ids": [1, 2, 3, 4, 5], "logprobs": [0.25, 0.25, 0.25, 0.25, %s]}\n' $off; done
done
END
    chmod +x "$work/programs/kedge"
    check --device emu --parts fallbacks --seconds 60 && return 1
    [ "$(result 'decode = score, products exact')" = ok ] && [ "$(result 'decode = score, products own')" = FAILED ] &&
        [ "$(result 'decode = score, products own, without replay')" = FAILED ] &&
        [ "$(result 'decode = score, products own, without draw')" = ok ] &&
        [ "$(result 'decode = score, products own, without copies')" = FAILED ] &&
        [ "$(result 'decode = score, products own, without wgmma')" = FAILED ] &&
        [ "$(result 'decode = score, products own, without attention')" = FAILED ] &&
        [ "$(result 'decode = score, products own, without replay,draw,copies,wgmma')" = ok ] &&
        [ -z "$(result 'decode = score, products exact, without draw')" ] && json_is_read
}
pass "what does not hold is tried without each thing that it may be" heals

# ---- what is read ---------------------------------------------------------------------------------------------------
refused() { # what it says, a sed of gpu.json
    sed "$2" "$out/gpu.json" >"$work/other.json"
    tools/gpu-read "$work/other.json" >"$work/page" 2>"$work/err" && return 1
    grep -q -F "$1" "$work/err" || { cat "$work/err" && return 1; }
}
read_by_schema() {
    check --device emu --parts probes,values --seconds 60 && tools/gpu-read "$out/gpu.json" | cmp - "$out/gpu.md" || return 1
    refused "other.json:1: expected '{\"schema\": 1, ', found {\"schema\": 2" '1s/"schema": 1/"schema": 2/' &&
        refused "expected '\"driver\": ', found \"river\"" '1s/"driver"/"river"/' &&
        refused "expected a number of failed, found \"0\"" '1s/"failed": 0/"failed": "0"/' &&
        refused "expected 1 rows that FAILED, as the first line says, found 0" '1s/"failed": 0/"failed": 1/' &&
        refused "other.json:2: expected one of ok|FAILED|out of time|nothing ran, found fine" '2s/"result": "[a-z]*"/"result": "fine"/' &&
        refused "expected a number of seconds, found null" '2s/"seconds": [0-9]*/"seconds": null/' &&
        refused "other.json:3: expected one of ok|FAILED|measured" '3s/"result": "[a-z]*"/"result": "good"/' &&
        refused "expected '\"unit\": ', found \"bound\"" '3s/"unit": "[^"]*", //' &&
        refused "expected a text of note, found 7" '3s/"note": "[^"]*"/"note": 7/' &&
        refused "expected ]} at the end, found nothing" '$d' &&
        refused "expected the end of the line, found ," '2s/$/,/' &&
        refused "expected the end of the file, found more" '$amore' || return 1
    tools/gpu-read "$work/none.json" 2>"$work/err" && return 1
    grep -q "expected a file of gpu-check, found no $work/none.json" "$work/err"
}
pass "gpu-read takes what gpu-check writes, and nothing else" read_by_schema
becomes_a_page() {
    printf '# Results\n\nSome text.\n\n## Another card, driver 1\n\nkept\n' >"$work/page.md"
    tools/gpu-read "$out/gpu.json" "$work/page.md" && tools/gpu-read "$out/gpu.json" "$work/page.md" || return 1
    [ "$(grep -c '^## ' "$work/page.md")" -eq 2 ] && grep -q '^kept$' "$work/page.md" &&
        sed '1,/^kept$/d' "$work/page.md" | sed 1d | cmp - "$out/gpu.md"
}
pass "and puts it into a page, once for a device" becomes_a_page

one_is_slow() {
    fake tensor/head 'echo "[       OK ] a_test"; sleep 100'
    fake tensor/op 'echo "[       OK ] a_test"'
    check --device cpu --parts values,torch --seconds 4 && [ "$(result values)" = "out of time" ] &&
        [ "$(result tensor/head)" = "out of time" ] && [ "$(result model/rows)" = "out of time" ] && [ -n "$(result torch)" ] &&
        [ "$(result "product against PyTorch's")" = skipped ] && json_is_read
}
pass "a part without time is marked, and the next runs" one_is_slow
fake tensor/head 'echo "[       OK ] a_test"'

# a digit of the third answer of kedge score is another: the part ends, and so does the script, with 1
one_bit_differs() {
    cat >"$work/score" <<'END'
#!/bin/sh
[ "$1" != doctor ] || exit 0
[ "$1" = score ] || exec ./kedge "$@"
echo >>"$KEDGE_TEST_SCORES"
./kedge "$@" | if [ "$(wc -l <"$KEDGE_TEST_SCORES")" -eq 3 ]; then sed '1s/1/2/'; else cat; fi
END
    chmod +x "$work/score"
    : >"$work/scores"
    KEDGE_TEST_SCORES=$work/scores KEDGE_GPU_CHECK_PROGRAM=$work/score check --device cpu --parts bits --seconds 200 && return 1
    grep -q '| repeats of kedge score | FAILED | 1 equal .*repeat 2 differs' "$out/gpu.md" && [ "$(result bits)" = FAILED ] &&
        [ "$(result 'decode = score, other batches, chunked prefill')" = ok ] && [ "$(result model/slab)" = ok ] && json_is_read
}
pass "a bit that differs is status 1, and the others run" one_bit_differs

# the programs themselves, those that end in a second or two
real=$(cd "$(dirname "$0")/.." && pwd)
brief="tensor/backend tensor/head_set model/slab train/lane_sum"
emulates() {
    for p in $brief; do ln -sf "$real/${p}_test" "$work/programs/${p}_test"; done
    check --device emu --parts ops,bits,whole --seconds 200 || return 1
    for p in $brief; do
        grep -q "| $p | ok | [1-9][0-9]* passed, 0 failed, 0 skipped |" "$out/gpu.md" || return 1
    done
    [ "$(result ops)" = ok ] && [ "$(result bits)" = ok ] && [ "$(result whole)" = ok ] && [ "$(result tests/bits)" = skipped ] && json_is_read
}
if ! echo | ${CC:-cc} -x c++ -fsyntax-only - >/dev/null 2>&1; then
    skipped "operations, models and training run on emulated kernels" "no C++ compiler with __builtin_setjmp"
elif [ ! -x "$real/train/lane_sum_test" ]; then
    skipped "operations, models and training run on emulated kernels" "this test was built alone"
else
    pass "operations, models and training run on emulated kernels" emulates
fi
for p in $brief; do rm -f "$work/programs/${p}_test" && fake "$p" 'echo "[       OK ] a_test"'; done

emulation() {
    fake model/kv "echo \"expected one of cpu, cuda, far, found 'emu'\"; exit 1"
    check --device emu --parts bits,whole,bench,plans && [ "$(result model/kv)" = "not there" ] && [ "$(result model/slab)" = ok ] &&
        [ "$(result plans)" = "nothing ran" ]
}
pass "what the emulation cannot do is said" emulation

benches() { # seconds
    check --device cpu --parts bench --seconds "$1" || return 1
    in_time bench "$1" || return
    [ "$(result bench)" = ok ] && [ "$(result 'ceiling: multiply-adds fp32 in registers')" = measured ] &&
        [ "$(result 'run of the small shape: train')" = measured ] && json_is_read || return 1
}
unhurried "benchmarks are rows, or said to be missing" 20 benches

# of a program whose products are a tenth slower pinned, and a step 4 %
exactness() {
    cat >"$work/program" <<'END'
#!/bin/sh
fast=
case " $* " in *" --unpinned "*) fast=yes ;; esac
rate() { echo "{\"name\": \"$1\", \"best\": ${fast:+$3}${fast:-$2}, \"median\": 1e9, \"unit\": \"GFLOP/s\"}" | sed 's/yes//'; }
case "$1 $2" in
"bench ops")
    rate "product, 64 rows, W 100 x 200" 100e9 125e9
    rate "product, 64 rows, W 300 x 200" 100e9 100e9
    rate "adamw, 4 weights" 1e9 1e9
    ;;
"bench decode") rate "decode 0.5B shape, batch 64" 90e9 ${fast:+99e9} ;;
"bench train") rate "train 0.5B shape, 8 x 256 tokens" 50e9 52e9 ;;
esac
END
    chmod +x "$work/program"
    KEDGE_GPU_CHECK_PROGRAM=$work/program check --device cpu --parts exactness --seconds 60
    grep -q '^| exactness: product, 64 rows, W 100 x 200 | measured | 125.0 % of the unpinned time |.*target: at most 110 %' "$out/gpu.md" &&
        grep -q '^| exactness: products, all of the above | measured | 105.3 % .*target: at most 110 %' "$out/gpu.md" &&
        grep -q '^| exactness: decode 0.5B shape, batch 64 | measured | 110.0 % .*target: at most 110 %' "$out/gpu.md" &&
        grep -q '^| exactness: train 0.5B shape, 8 x 256 tokens | measured | 104.0 % .*target: at most 105 %' "$out/gpu.md" &&
        ! grep -q 'exactness: adamw' "$out/gpu.md" && json_is_read
}
pass "what pinned plans cost is a row of each product, of decoding and of a step" exactness
# of a program that says what the plans of two weights are
plan_classes() {
    mkdir "$work/blas" && : >"$work/blas/libcublasLt.so.13"
    fake tensor/plan_class 'echo "[       OK ] a_test"
printf "plans: 7B o, 64 rows\\t5 of 17\\tid 66, tile 20\\nplans: 7B k, 64 rows\\t1 of 9\\tid 3\\n"'
    KEDGE_GPU_CHECK_BLAS=$work/blas check --device emu --parts exactness --seconds 60
    grep -q '^| plans of 7B o, 64 rows | measured | 5 of 17 members |.*| id 66, tile 20 |' "$out/gpu.md" &&
        [ "$(result 'plans of 7B k, 64 rows')" = measured ] && [ "$(result 'tensor/plan_class, products cublas')" = ok ] && json_is_read
}
pass "plans of weights are rows" plan_classes
no_free_choice() {
    check --device cpu --parts exactness --seconds 20
    [ "$(result 'kedge bench ops')" = "not there" ] && [ "$(result 'exactness: products, decode, whole step')" = skipped ]
}
pass "where plans are not pinned, exactness is not measured" no_free_choice

# of a process whose CUPTI this test made: a step of 40 us has a kernel embed and 22 us of work
trace() {
    headers=$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")/../include
    mkdir -p "$work/cupti"
    ${CC:-cc} -shared -fPIC -DLIBRARY -I"$headers" -o "$work/cupti/libcupti.so.13" tests/gpu_trace_trial.c &&
        ${CC:-cc} -I"$headers" -o "$work/traced" tests/gpu_trace_trial.c -ldl || return 1
    printf '#!/bin/sh\n[ "$2" = train ] || exec "%s" "$CUDA_INJECTION64_PATH"\necho "no such row" >&2; exit 1\n' "$work/traced" >"$work/program"
    chmod +x "$work/program"
    LD_LIBRARY_PATH=$work/cupti KEDGE_GPU_CHECK_PROGRAM=$work/program check --device cpu --parts trace --seconds 60
    for batch in 1 64; do
        grep -q "^| trace, 0.5B shape, batch $batch | measured | 40.0 us a step |.*| 4.0 launches, the device is busy for 55.0 %" "$out/gpu.md" &&
            grep -q "^| trace, 0.5B shape, batch $batch: attention<64,1,0> | measured | 10.0 us a step |.*| 1.0 launches, 25.0 %" "$out/gpu.md" &&
            grep -q "^| trace, 0.5B shape, batch $batch: copy down | measured | 5.0 us a step " "$out/gpu.md" &&
            grep -q "^| trace, 0.5B shape, batch $batch: embed | measured | 2.0 us" "$out/gpu.md" || return 1
    done
    grep -q "^| trace, 0.5B shape, 8 | skipped | .*no such row" "$out/gpu.md" && json_is_read
}
if [ -f build/release/gpu_trace.so ] && command -v "${CC:-cc}" >/dev/null; then
    pass "a step is taken apart into its kernels" trace
else
    skipped "a step is taken apart into its kernels" "no build/release/gpu_trace.so (make cuda, with CUPTI's headers), or no compiler"
fi

# a python3 whose attention takes 4/5 of the time, and a product of kedge's as long as its own
beside() {
    mkdir -p "$work/path"
    cat >"$work/path/python3" <<'END'
#!/bin/sh
say() { printf 'torch: %s\tmeasured\t%s\t%s\t-\tfake\n' "$@"; }
case " $* " in
*" generate "*) echo "no transformers" >&2 && exit 1 ;;
*" products attention head optimizer layer "*)
    say "attention forward, head size 8" 250 GFLOP/s
    say "adamw, 4 weights" 2 GB/s
    say "x W^T, 64 rows, W 100 x 200" 0.0256 ms
    ;;
esac
END
    chmod +x "$work/path/python3"
    cat >"$work/program" <<'END'
#!/bin/sh
rate() { echo "{\"name\": \"$1\", \"best\": $2, \"median\": 1e9, \"unit\": \"$3\"}"; }
[ "$1 $2" = "bench ops" ] || exit 0
rate "product, 64 rows, W 100 x 200" 100e9 GFLOP/s
rate "attention forward, head size 8" 200e9 GFLOP/s
rate "adamw, 4 weights" 4e9 GB/s
END
    chmod +x "$work/program"
    PATH=$work/path:$PATH KEDGE_GPU_CHECK_PROGRAM=$work/program check --device cpu --parts exactness,torch --seconds 60
    grep -q "^| product against PyTorch's, 64 rows, W 100 x 200 | measured | 100 % of its time |.*0.0256 ms, 0.0256 ms" "$out/gpu.md" &&
        grep -q "^| against PyTorch's: attention forward, head size 8 | measured | 125 % of its time |.*200 GFLOP/s, 250 GFLOP/s" "$out/gpu.md" &&
        grep -q "^| against PyTorch's: adamw, 4 weights | measured | 50 % of its time |" "$out/gpu.md" &&
        grep -q '^| torch: generate | skipped |.*no transformers' "$out/gpu.md" && json_is_read
}
pass "operations are rows against PyTorch's of the same shapes" beside

plans() {
    check --device cpu --parts plans --seconds 150 && [ "$(result 'plan toy: memory planned')" = measured ] &&
        [ "$(result 'plan toy: train')" = measured ] && [ "$(result 'plan toy: mismatch/first_update_max')" = ok ] && json_is_read
}
pass "a shape of random weights is planned and trained" plans

wrong_words() {
    for words in "--device gpu" "--parts start,end" "--seconds soon" "--seconds" "more"; do
        # shellcheck disable=SC2086
        check $words 2>"$work/err" && return 1
        [ $? -eq 2 ] && [ -s "$work/err" ] || return 1
    done
}
pass "words that it does not know are refused" wrong_words

# ---- the bundle -----------------------------------------------------------------------------------------------------
unset KEDGE_GPU_CHECK_TESTS
built=$(cd "$(dirname "$0")/.." && pwd)
case $built in
*/build/release/test) ;;
*)
    skipped "the bundle" "it is made of build/release"
    exit $((failures > 0))
    ;;
esac
command -v xz >/dev/null || {
    skipped "the bundle" "no xz here"
    exit $((failures > 0))
}
bundle() {
    tools/gpu-bundle "$work/bundle" --no-cuda --tests tensor/backend_test && mkdir "$work/elsewhere" &&
        tar -C "$work/elsewhere" -xf "$work/bundle.tar.xz" && rm -rf "$work/bundle"
}
pass "a bundle is made" bundle
runs_elsewhere() {
    cd "$work/elsewhere/bundle" || return 1
    # all but the C and C++ libraries are the bundle's
    LD_LIBRARY_PATH=$PWD/lib ldd kedge | grep '=>' | grep -v "$PWD/lib/" | grep -v -E 'lib(c|m|stdc\+\+|gcc_s|dl|rt|pthread|resolv)\.so' && return 1
    # the programs that this bundle was made without are missed, no other
    env -i PATH=/usr/bin:/bin OUT="$out" ./run gpu-check --device cpu --small --parts start,ops --seconds 60 && return 1
    [ "$(result start)" = ok ] && [ "$(result tensor/backend)" = ok ] && [ "$(result tensor/scan)" = FAILED ]
}
pass "a bundle runs in another folder, with an empty environment" runs_elsewhere
exit $((failures > 0))
