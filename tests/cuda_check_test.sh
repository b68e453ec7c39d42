#!/bin/sh
# tools/cuda-check fails where it has to: a kernel that spills registers, one whose numbers are not the table's, and the reverse. No
# compiler runs: what ptxas says is the test's own, and so is the table, in a copy of what the tool reads.
. tests/harness.sh

mkdir -p "$work/tree/tools" "$work/tree/src/tensor/cuda" "$work/tree/tests/data" "$work/tree/build/cuda"
cp tools/cuda-check "$work/tree/tools/"
: >"$work/tree/src/tensor/cuda/norm.cu"
printf '#!/bin/sh\necho "Cuda compilation tools, release 13.0, V%s"\n' 13.0.88 >"$work/nvcc"
chmod +x "$work/nvcc"
# ptxas REGISTERS SPILLS [ARCHITECTURES]: what it says of a kernel, for sm_80 and sm_90a if none are given
ptxas() {
    for arch in ${3:-sm_80 sm_90a}; do
        cat <<END
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'norm' for '$arch'
ptxas info    : Function properties for norm
    0 bytes stack frame, $2 bytes spill stores, 0 bytes spill loads
ptxas info    : Used $1 registers, used 1 barriers, 2048 bytes smem
END
    done >"$work/tree/build/cuda/norm.ptxas"
}
check() { NVCC=$work/nvcc "$work/tree/tools/cuda-check" build "$@"; }
command -v c++filt >/dev/null || skip_all cuda_check "no c++filt here (binutils)"

equal() {
    ptxas 32 0 && check --write && check && grep -qx 'norm norm sm_90a: 32, 2048, 0, 0' "$work/tree/tests/data/cuda_resources.txt"
}
pass "what the table has passes" equal
some() {
    ptxas 48 0 sm_120 && ! check >"$work/said" && grep -q '^> norm norm sm_120: 48' "$work/said" && check --write && check &&
        ptxas 32 0 && check && ptxas 32 0 "sm_80" && check && [ "$(grep -c '^norm' "$work/tree/tests/data/cuda_resources.txt")" -eq 3 ]
}
pass "of the table only architectures that were built are compared, and written" some
spills() {
    ptxas 32 8 && check >"$work/said" && return 1
    cat "$work/said"
    grep -q '^norm norm sm_80: 32, 2048, 0, 8$' "$work/said"
}
pass "a spill fails, and names the kernel" spills
known() {
    table=$work/tree/tests/data/cuda_resources.txt
    ptxas 32 0 && check --write && sed -i 's/\(.*sm_80: 32, 2048, 0\), 0$/\1, 8/; s/\(.*sm_90a: 32, 2048, 0\), 0$/\1, 8/' "$table" &&
        ptxas 32 8 && check && check --write && check && ptxas 32 16 && ! check --write >/dev/null && ptxas 32 0 && check --write
}
pass "one that the table has does not" known
more() {
    ptxas 40 0 && check >"$work/said" && return 1
    cat "$work/said"
    grep -q '^> norm norm sm_80: 40, 2048, 0, 0$' "$work/said"
}
pass "other numbers than the table's fail" more
in_turn() {
    ptxas 32 0
    echo "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to a call in 'norm'" \
        >>"$work/tree/build/cuda/norm.ptxas"
    check >"$work/said" && return 1
    cat "$work/said"
    grep -q 'C7510.*norm' "$work/said"
}
pass "products of four warps that wait for each other fail" in_turn
another_nvcc() {
    sed -i 's/13.0.88/13.1.5/' "$work/nvcc"
    ptxas 40 0 && check | grep -q '2 kernels without new spills; their numbers are not compared' || return 1
    ptxas 40 8 && ! check
}
pass "by another nvcc numbers are not compared, but spills fail" another_nvcc
exit $((failures > 0))
