#!/bin/sh
# The names that leave libkedge_cuda.so, whom its kernels are for, and what it says where a driver is missing, old or broken: drivers of a few lines, found as
# the loader finds one.
# The runtime speaks to a driver that has a device by tables of functions that are not published; so a number that is too high,
# a device without kernels, and what the host asks of a device that does all as late as it may, are shown with runtimes of the
# test's: the library's own objects, linked with them.
. tests/harness.sh

[ -x ./kedge ] || skip_all cuda_driver "./kedge is not built"
[ -f libkedge_cuda.so ] || skip_all cuda_driver "no libkedge_cuda.so: no nvcc where it was built"
exports_three_names() {
    nm -D --defined-only libkedge_cuda.so | awk '{ print $3 }' >"$work/names"
    cat "$work/names"
    [ "$(sed 's/@.*//' "$work/names" | sort | xargs)" = "kg_backend_cuda_about kg_cuda_plans kg_cuda_probe" ]
}
if command -v nm >/dev/null; then
    pass "three names leave the library" exports_three_names
else
    skipped "three names leave the library" "no nm here (binutils)"
fi
# of every file that has kernels: what its cubin was compiled for stands in it
has_architectures() {
    kernels=$(grep -l -E '^(static )?__global__|KG_LAUNCH' src/tensor/cuda/*.cu | grep -v -c _testing)
    for arch in sm_80 sm_90a; do
        n=$(grep -a -o -- "-arch $arch " libkedge_cuda.so | wc -l)
        echo "$arch: cubins of $n files, expected $kernels at least"
        [ "$n" -ge "$kernels" ] || return 1
    done
}
if grep -a -q -- '-arch sm_' libkedge_cuda.so; then
    pass "every kernel is there for both architectures" has_architectures
else
    skipped "every kernel is there for both architectures" "this nvcc does not write into cubins whom they are for"
fi
cc=${CC:-cc}
command -v "$cc" >/dev/null || skip_all cuda_driver "no C compiler: no driver can be made"

# driver NAME TEXT: a folder with a libcuda.so.1 of this C
driver() {
    mkdir "$work/$1"
    echo "$2" >"$work/$1/driver.c"
    "$cc" -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$work/$1/libcuda.so.1" "$work/$1/driver.c"
}
# says FOLDER WORDS: refused, in one line, by --device and by a recipe; told by --version
says() {
    export LD_LIBRARY_PATH="$1"
    ./kedge doctor --device cuda >"$work/said" 2>&1 && return 1
    [ "$(wc -l <"$work/said")" -eq 1 ] && grep -q -e "--device: cuda: $2" "$work/said" || return 1
    ./kedge train recipes/digits.yaml model.device=cuda run.dir="$work/run" >"$work/said" 2>&1 && return 1
    grep -q "model.device: cuda: $2" "$work/said" && [ ! -e "$work/run" ] || return 1
    ./kedge --version | grep -q "^cuda: none: $2"
}
auto_is_the_cpu() {
    LD_LIBRARY_PATH=$work/old ./kedge doctor --device auto >"$work/said" 2>&1 &&
        grep -q "device: cpu (cuda: expected a driver of CUDA" "$work/said"
}

driver old 'int cuDriverGetVersion(int *v) { *v = 11040; return 0; }'
pass "an old driver is refused by its version" says "$work/old" \
    'expected a driver of CUDA 1[0-9]*\.0 or newer that starts, found one of CUDA 11\.4'
# that starts with "no device"; what else it is asked for does nothing
driver bare '#include <string.h>
int cuDriverGetVersion(int *v) { *v = 99000; return 0; }
int cuInit(unsigned flags) { (void)flags; return 100; }
int cuGetExportTable(const void **t, const void *id) { (void)id; *t = 0; return 1; }
static int nothing(void) { return 0; }
int cuGetProcAddress_v2(const char *name, void **f, int version, unsigned long long flags, int *status)
{
    (void)version, (void)flags;
    *f = (void *)nothing;
    if (!strcmp(name, "cuInit")) *f = (void *)cuInit;
    if (!strcmp(name, "cuGetProcAddress")) *f = (void *)cuGetProcAddress_v2;
    if (!strcmp(name, "cuDriverGetVersion")) *f = (void *)cuDriverGetVersion;
    if (!strcmp(name, "cuGetExportTable")) *f = (void *)cuGetExportTable;
    if (status) *status = 0;
    return 0;
}'
pass "a driver without a device is said to have none" says "$work/bare" 'the driver has no device$'
driver mute 'int cuInit(unsigned flags) { return (int)flags; }'
pass "a driver without a version is refused" says "$work/mute" "cannot read the driver's version from libcuda"
mkdir "$work/text" && seq 100 >"$work/text/libcuda.so.1"
pass "a file that is no driver is named" says "$work/text" \
    "expected an NVIDIA driver, found none: .*$work/text/libcuda\.so\.1: invalid ELF header"
if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    skipped "no driver is said" "this machine has one"
else
    mkdir "$work/none"
    pass "no driver is said" says "$work/none" 'expected an NVIDIA driver, found none: libcuda\.so\.1: cannot open'
fi
pass "auto takes the CPU and says why" auto_is_the_cpu

# ---- one device of an old architecture ----
include=$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")/../include
build=build/release
# rest OBJECT: all that the library's objects ask of a runtime and the object has not does nothing
rest() {
    nm --defined-only "$1" | awk '{ print $3 }' | sort >"$work/has"
    nm -u "$build"/cuda/*.o | awk '$1 == "U" && $2 ~ /^(__)?cuda[A-Z]/ { print $2 }' | sort -u | grep -v -x -F -f "$work/has" |
        sed 's/.*/int &(void) { return 0; }/'
}
runtime() {
    cat >"$work/runtime.c" <<'END'
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
static const char *major(void) { return getenv("KEDGE_TEST_MAJOR"); }
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "Old GPU");
    p->major = major() ? atoi(major()) : 7, p->minor = major() ? 0 : 5, p->totalGlobalMem = 1 << 30;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f)
{
    (void)a, (void)f;
    return major() ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}
END
    "$cc" -fPIC -I"$include" -c -o "$work/runtime.o" "$work/runtime.c" && rest "$work/runtime.o" >"$work/nothing.c"
    mkdir "$work/bin" && cp kedge "$work/bin/kedge" &&
        "$cc" -shared -fPIC -fno-builtin -o "$work/bin/libkedge_cuda.so" "$work/runtime.o" "$work/nothing.c" \
            "$build"/cuda/*.o "$build/libtensor.a" "$build/libbase.a" -lstdc++ -lm -ldl -lpthread -fopenmp
}
# refused DEVICE WORDS: in one line
refused() {
    "$work/bin/kedge" doctor --device "$1" >"$work/said" 2>&1 && return 1
    cat "$work/said"
    [ "$(wc -l <"$work/said")" -eq 1 ] && grep -q -e "--device: $2" "$work/said"
}
# chosen MAJOR MAKER: who makes products where nobody says it; what is computed there is nothing
chosen() {
    KEDGE_TEST_MAJOR=$1 "$work/bin/kedge" doctor --device cuda >"$work/said" 2>&1
    cat "$work/said"
    grep -q "$2" "$work/said"
}
products_by_device() {
    chosen 8 '^products: own (auto: cuda:0 is sm_80, where plans of cuBLASLt with equal bits are few)$' &&
        chosen 12 '^products: own (auto: cuda:0 is sm_120, ' && chosen 9 '^products: cublas (auto: cuda:0 is sm_90)$\|cublas: '
}
if [ -f "$include/cuda_runtime_api.h" ] && [ -f "$build/cuda/library.o" ] && command -v nm >/dev/null; then
    pass "a runtime can be made" runtime
    pass "products are made by what suits the device" products_by_device
    pass "a number that is too high is refused with those there are" refused cuda:7 'cuda:7: expected a device from 0 to 0$'
    pass "a device without kernels is refused with its architecture and those built" refused cuda \
        'cuda:0 Old GPU (sm_75, 1.0 GiB): no kernels for this architecture; the build has sm_80 \(sm_[0-9a]* \)*compute_80$'
else
    skipped "a runtime can be made" "no headers of CUDA's runtime, no objects of kernels in build/release, or no nm"
fi

# ---- a device that does everything as late as it may (tests/emu/runtime_fake.c) ----
trial_program() {
    "$cc" -w -Isrc -Itests -I"$include" -c -o "$work/late.o" tests/emu/runtime_fake.c && rest "$work/late.o" >"$work/rest.c"
    "$cc" -fno-builtin -w -Isrc -Itests -I"$include" -o "$work/host_trial" tests/cuda_host_trial.c "$work/late.o" \
        "$work/rest.c" "$build"/cuda/*.o "$build/libtensor.a" "$build/libbase.a" -lstdc++ -lm -ldl -lpthread -fopenmp
}
if [ -f "$include/cuda_runtime_api.h" ] && [ -f "$build/cuda/library.o" ] && command -v nm >/dev/null; then
    pass "a runtime that is late can be made" trial_program
    pass "memory is zero when it is given, and what the host writes there stays" "$work/host_trial" shown
    pass "a device that is refused leaves nothing to the next" "$work/host_trial" refused
    pass "a thread that began without a device fetches from the chosen one" "$work/host_trial" thread
    pass "one that begins with a kernel, or with memory, has it on the chosen one" "$work/host_trial" threads
    pass "copies that nobody waits for are waited for by marks" "$work/host_trial" later
    pass "a device that is lost is told from one that is full" "$work/host_trial" full
    pass "a step is recorded, or runs by itself where it cannot be" "$work/host_trial" record
    pass "what a kernel may ask for of shared memory never falls" "$work/host_trial" shared
else
    skipped "a runtime that is late can be made" "no headers of CUDA's runtime, no objects of kernels in build/release, or no nm"
fi
exit $((failures > 0))
