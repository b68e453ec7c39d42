# libkedge_cuda.so: the kernels of src/tensor/cuda for NVIDIA's GPUs, where nvcc is. kedge itself is the same with it and
# without (docs/gpu.md).
#
#   CUDA=0        is not built        CUDA=1   must be built
#   NVCC=path     this compiler; else that of PATH, or of /usr/local/cuda
#   CUDA_ARCHS="80 90a"   architectures that kernels are for; all: those of releases, in objects of their own

ifndef NVCC
NVCC := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
endif
# a host program's sanitizer is not in a library that is opened
CUDA ?= $(if $(NVCC),$(if $(SAN),0,1),0)
CUDA_ARCHS := 80 90a
CUDA_ALL   := 80 86 89 90a 100 120
CUDA_MADE  := $(if $(filter all,$(CUDA_ARCHS)),$(CUDA_ALL),$(CUDA_ARCHS))
# of which the driver makes kernels where a device is newer than all of these
CUDA_PTX   := 80
CUDA_B     := $(B)$(if $(filter all,$(CUDA_ARCHS)),/all)
CUDA_SRC   := $(wildcard src/tensor/cuda/*.cu)
CUDA_OBJ   := $(CUDA_SRC:src/tensor/cuda/%.cu=$(CUDA_B)/cuda/%.o)
CUDA_LIB   := libkedge_cuda.so
NVCC_RELEASE := $(if $(NVCC),$(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p'))
# in wheels the runtime is beside the compiler in lib/
# -lineinfo: a sanitizer or profiler on the device names the source's line
# CUDA_PACKED: a third of the size; drivers before CUDA 12.4 cannot read it, and CUDA 13 needs newer ones anyway
CUDA_PACKED := $(if $(filter all,$(CUDA_ARCHS)),$(if $(filter 12.%,$(NVCC_RELEASE)),,--compress-mode=size))
CUDA_FLAGS := -std=c++17 -O3 --fmad=false -lineinfo -cudart static -Isrc \
              $(CUDA_PACKED) \
              $(foreach a,$(CUDA_MADE),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
              -gencode arch=compute_$(CUDA_PTX)$(comma)code=compute_$(CUDA_PTX) \
              -Xcompiler -fPIC -Xcompiler -fvisibility=hidden -Xcompiler -ffp-contract=off \
              -DKG_VERSION='"$(VERSION)"' -DKG_CUDA_ARCHITECTURES='"$(CUDA_MADE:%=sm_%) compute_$(CUDA_PTX)"' \
              -DKG_CUDA_ROOT='"$(abspath $(dir $(NVCC))..)"'

.PHONY: cuda kernels
kernels: $(if $(filter 1,$(CUDA)),$(CUDA_B)/$(CUDA_LIB))
GPU_TRACE := $(if $(wildcard $(abspath $(dir $(NVCC))..)/include/cupti.h),$(B)/gpu_trace.so)
cuda: $(if $(filter 1,$(CUDA)),$(CUDA_LIB) $(GPU_TRACE))   ## libkedge_cuda.so for GPUs, where nvcc is (CUDA=0|1, NVCC=path)
ifeq ($(CUDA)$(NVCC),0)
	@echo "cuda: no nvcc in PATH or /usr/local/cuda/bin: $(CUDA_LIB) is not built (docs/gpu.md)"
endif
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1: no nvcc in PATH or /usr/local/cuda/bin: expected NVCC=path (docs/gpu.md))
endif

$(CUDA_B)/cuda/flags: always
	$(call stamp,$(NVCC_RELEASE) $(CUDA_MADE))
# what ptxas says of each kernel is kept for cuda-check
$(CUDA_B)/cuda/%.o: src/tensor/cuda/%.cu src/tensor/cuda/rules.mk $(CUDA_B)/cuda/flags
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_FLAGS) -MMD -MP -MF $(@:.o=.d) -Xptxas -v -c $< -o $@ 2>$(@:.o=.ptxas) || \
	  { cat $(@:.o=.ptxas) >&2; rm -f $@; exit 1; }
	@sed '/^ptxas info/d; /bytes stack frame/d' $(@:.o=.ptxas) >&2
# both say which version they are of
$(CUDA_B)/cuda/library.o $(B)/tensor/device.o: Makefile

# of the archives what is pure; library.cu has the rest
$(CUDA_B)/$(CUDA_LIB): $(CUDA_OBJ) $(B)/libtensor.a $(B)/libbase.a src/tensor/cuda/library.map
	$(NVCC) -shared -cudart static -o $@ $(CUDA_OBJ) $(B)/libtensor.a $(B)/libbase.a -L$(dir $(NVCC))../lib \
	  -Xlinker --version-script=src/tensor/cuda/library.map -Xlinker -z,defs -Xlinker --as-needed
# by rename: a run may have it open
$(CUDA_LIB): $(CUDA_B)/$(CUDA_LIB)
	cp $< $@.new && mv -f $@.new $@

# for tools/gpu-check; it loads CUPTI where it runs
$(B)/gpu_trace.so: tools/gpu_trace.c
	$(CC) -std=gnu11 -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden -I$(abspath $(dir $(NVCC))..)/include -o $@ $< -ldl -lpthread

.PHONY: cuda-check
cuda-check: $(if $(NVCC),$(CUDA_OBJ))      ## registers, shared memory and spills of every kernel, against a table
	@NVCC='$(NVCC)' tools/cuda-check $(CUDA_B)

# a cuBLASLt that computes on the host: runs on emulated kernels have products made by it
FAKE_BLAS := $(B)/fake/libcublasLt.so.13
$(FAKE_BLAS): tests/emu/blas_fake.c tests/emu/blas_fake.h src/tensor/cuda/lt.h
	@mkdir -p $(@D)
	$(CC) -shared -fPIC -O2 -ffp-contract=off -Isrc -Itests -o $@ $<
