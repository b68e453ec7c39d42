# The backends of tests alone: memory that the host cannot touch, and the kernels of devices, emulated. The program is
# linked without them.

EMU := $(B)/emu.o
# the emulation needs C++, so the program does not; fibers are no threads to the thread sanitizer; they need a jump that
# compilers have for most processors
EMULATES := $(if $(filter thread,$(SAN)),,$(shell echo 'void *p[5]; int f() {return __builtin_setjmp(p);}' | $(CC) -x c++ -fsyntax-only - >/dev/null 2>&1 && echo emu emu_async emu_sums emu_testing))
# a multiply-add that is a call takes half of a test's time; these programs run where they are built;
# but in an emulated container /proc/cpuinfo may be another processor's
EMU_ISA := $(if $(filter v3,$(ISAS)),$(if $(shell grep -m1 -w fma /proc/cpuinfo 2>/dev/null | grep -w avx2),-mavx2 -mfma))
EMU_FLAGS := -x c++ $(filter-out -std=% -Wstrict-prototypes -Wmissing-prototypes,$(CFLAGS_ALL)) $(EMU_ISA) -std=gnu++17 \
             -fno-exceptions -fno-rtti -Wno-shadow -Wno-missing-field-initializers -DKG_DEV_EMULATED='"emu/emu_dev.h"' -DKG_DEV_EMULATED_HOPPER='"emu/emu_hopper.h"'
EMU_CU  := $(if $(EMULATES),$(filter-out %/library.cu,$(wildcard src/tensor/cuda/*.cu)))
$(B)/emu/%.o: src/tensor/cuda/%.cu $(B)/flags
	$(call compile,$(EMU_FLAGS))
$(B)/tests/emu/emu_sums.o: tests/emu/emu_sums.c $(B)/flags
	$(call compile,$(CFLAGS_ALL) -O3 $(EMU_ISA) $(if $(SAN),-fno-sanitize=all))
$(B)/tests/%.o: tests/%.cu $(B)/flags
	$(call compile,$(EMU_FLAGS))
$(EMU): $(patsubst %,$(B)/tests/emu/%.o,backends far pages $(EMULATES)) $(EMU_CU:src/tensor/cuda/%.cu=$(B)/emu/%.o)
	$(LD) -r -o $@ $^

.PHONY: emu
# models and runs on kernels for devices, emulated: what ends within minutes (tests/device_run_test is always on them)
EMU_TESTS := $(B)/test/model/rows_test $(B)/test/rollout/score_test $(B)/test/tests/bits_test
EMU_RUNS  := $(B)/test/tests/device_run_test
emu: $(EMU_TESTS) $(EMU_RUNS) $(FAKE_BLAS)   ## models and runs on emulated kernels: the CPU's weights, bit for bit
	@KEDGE_TEST_BACKEND=emu $(call run,$(EMU_TESTS))
	@KEDGE_TEST_BACKEND=emu KEDGE_TEST_PRODUCTS=own $(call run,$(filter-out %/bits_test,$(EMU_TESTS)))
	@KEDGE_TEST_PRODUCTS=cublas KEDGE_TEST_LIBRARIES=$(dir $(FAKE_BLAS)) $(call run,$(EMU_RUNS))
