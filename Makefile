# kedge: builds ./kedge, the unit tests, and what `make check` runs. `make help` lists the targets.
#
# Objects live in build/<variant>/. A module (a folder of src/) becomes one archive, and a test links the archives of
# its own module and of those below it only, so the layering of the house holds at link time too.

CC      ?= cc
VARIANT ?= release
SAN     ?=
OBJCOPY ?= objcopy
PREFIX  ?= /usr/local
comma   := ,
B       := build/$(VARIANT)$(if $(SAN),-$(subst $(comma),-,$(SAN)))

VERSION := 0.1.0
# From the lowest to the highest; a module includes only those before it.
MODULES := base data net tensor ranks policy text math traj model search task rollout serve eval bench recipe report train cli
# folders of a module whose sources are its own
ROOMS   := train/open train/step train/keep
# Guests (guests/NAME/): the trunk is linked with those that are named, and works without. Each is one object, so that the
# linker takes all of it, and sees the names that the trunk's tables have of it. lib is a library beside the program.
GUESTS  ?= gguf lab retriever tinker lib

# a finding ends the test
SANITIZE := -fsanitize=$(SAN) -fno-sanitize-recover=all
WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
           -Wcast-qual -Wvla -Wno-unknown-pragmas
# the sanitizers' traces want lines alone
OPT_release := -O2 $(if $(SAN),-g1,-g)
OPT_debug   := -O0 -g
# of .ci/run: another level than the release's, with the sanitizers or by another compiler
OPT_gate    := -O1 -g1
# what nobody set is no 0: a bool of 0xfe is an error for the sanitizer of undefined behaviour
UNSET       := $(if $(SAN),$(shell echo | $(CC) -ftrivial-auto-var-init=pattern -E - >/dev/null 2>&1 && \
             echo -ftrivial-auto-var-init=pattern))
CFLAGS_ALL  := -std=gnu11 $(OPT_$(VARIANT)) $(WARN) -ffp-contract=off -fno-strict-aliasing \
               -fPIC -fvisibility=hidden -fopenmp -Isrc -Itests -Iguests -MMD -MP -DKG_VERSION='"$(VERSION)"' \
               $(if $(WERROR),-Werror) $(if $(SAN),$(SANITIZE) -fno-omit-frame-pointer $(UNSET)) $(CFLAGS)
# GNU's OpenMP is not known to the thread sanitizer, LLVM's tells it what a barrier orders
ifeq ($(SAN),thread)
CC  := clang
export TSAN_OPTIONS ?= ignore_noninstrumented_modules=1 suppressions=$(CURDIR)/tools/thread.supp
endif
OMP     := $(if $(findstring clang,$(CC)),-lomp,-lgomp)
# Arb and Calcium stand apart before FLINT 3
FLINT_LIBS := $(if $(wildcard /usr/include/calcium/ca.h),-lcalcium -lflint-arb) -lflint -lgmp
LIBS    := $(FLINT_LIBS) -lcurl -lsqlite3 -lyaml -lpcre2-8 -lutf8proc -lzstd -lsnappy -llz4 -lbrotlidec -lz $(OMP) -lpthread -lm
LDFLAGS_ALL := -fopenmp -Wl,--as-needed $(if $(SAN),$(SANITIZE)) $(LDFLAGS)
# two hundred test programs with all that a debugger wants are gigabytes: VARIANT=debug has it
LDFLAGS_TEST := $(LDFLAGS_ALL) $(if $(filter release,$(VARIANT)),$(if $(SAN),,-Wl,--strip-debug))

# ---- the CPU kernels are compiled once per instruction set and chosen at run time --------------------------------
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
# every aarch64 has NEON
ISAS := $(if $(filter aarch64,$(ARCH)),neon,generic)
ifeq ($(ARCH),x86_64)
# the plain loops of the generic table take minutes to compile under the sanitizers
ISAS := $(if $(SAN),,generic) v3 v4 v4_bf16 v4_amx
endif
ISA_generic :=
ISA_v3 := -march=x86-64-v3
ISA_v4 := -march=x86-64-v4
ISA_v4_bf16 := -march=x86-64-v4 -mavx512bf16
ISA_v4_amx := -march=x86-64-v4 -mamx-tile -mamx-bf16
KERNEL_OPT ?= $(if $(SAN),-O2,-O3)
CPU_SRC  := $(filter-out %_test.c,$(wildcard src/tensor/cpu/*.c))
ISA_DEFS := $(foreach i,$(ISAS),-DKG_CPU_HAS_$(i))

.PHONY: all test tests unit far sanitized check bench clean install install-share dist deb wheel wheel-aarch64 help lint tidy format docs
all: kedge cuda mpi

GUEST_OBJ := $(patsubst %,$(B)/guest-%.o,$(filter-out lib,$(GUESTS)))
GUEST_SRC  = $(filter-out %_test.c %_fuzz.c,$(wildcard guests/$(1)/*.c guests/$(1)/*/*.c))
SRC_of  = $(filter-out %_test.c %_fuzz.c,$(foreach d,$(1) $(filter $(1)/%,$(ROOMS)),$(wildcard src/$(d)/*.c)))
OBJ_of  = $(patsubst src/%.c,$(B)/%.o,$(call SRC_of,$(1)))
LIB_of  = $(B)/lib$(1).a
# $(call below,m): m and every module below it, highest first, for the linker
reverse = $(if $(1),$(call reverse,$(wordlist 2,99,$(1))) $(firstword $(1)))
upto    = $(if $(filter $(1),$(firstword $(2))),$(1),$(firstword $(2)) $(call upto,$(1),$(wordlist 2,99,$(2))))
below   = $(foreach m,$(call reverse,$(call upto,$(1),$(MODULES))),$(call LIB_of,$(m)))

# an object of other flags is made anew
FLAGS = $(filter-out -Werror -DKG_VERSION=%,$(CFLAGS_ALL)) $(KERNEL_OPT) $(EMU_ISA)
# $(call stamp,TEXT): a file that is as new as its text
stamp = @mkdir -p $(@D) && { echo '$(1)' | cmp -s - $@ || echo '$(1)' > $@; }
.PHONY: always
$(B)/flags: always
	$(call stamp,$(FLAGS))

# what makes an object, $(call compile,FLAGS); a program for tests, $(call program,OBJECTS); a test, $(call test_of,OBJECTS)
define compile
@mkdir -p $(@D)
$(CC) $(1) -c $< -o $@
endef
define program
@mkdir -p $(@D)
$(CC) $< -o $@ $(LDFLAGS_TEST) $(1) $(LIBS)
endef
test_of = $(call program,$(1)) -lcmocka

$(B)/%.o: src/%.c $(B)/flags
	$(call compile,$(CFLAGS_ALL) $(ISA_DEFS))
$(B)/policy/presets.o: $(wildcard recipes/presets/*.yaml)
$(B)/cli/cmd_demo.o: src/cli/demo.sh
$(B)/guests/%.o: guests/%.c $(B)/flags
	$(call compile,$(CFLAGS_ALL))
$(B)/tests/%.o: tests/%.c $(B)/flags
	$(call compile,$(CFLAGS_ALL) -DKG_TEST_KEDGE='"$(B)/test/kedge"')
define guest_rules
$(B)/guest-$(1).o: $(patsubst %.c,$(B)/%.o,$(call GUEST_SRC,$(1)))
	$$(LD) -r -o $$@ $$^
endef
$(foreach g,$(GUESTS),$(eval $(call guest_rules,$(g))))
# what is linked with other guests is linked anew
$(B)/guests.list: always
	$(call stamp,$(GUESTS))

define isa_rules
$(B)/cpu-$(1)/%.o: src/tensor/cpu/%.c $(B)/flags
	$$(call compile,$$(CFLAGS_ALL) $$(KERNEL_OPT) $$(ISA_$(1)) -DKG_CPU_TABLE=kg_backend_cpu_$(1))
# One object per instruction set, of which only the table is visible.
$(B)/tensor/cpu_$(1).o: $(patsubst src/tensor/cpu/%.c,$(B)/cpu-$(1)/%.o,$(CPU_SRC))
	@mkdir -p $$(@D)
	$$(LD) -r -o $$@.$$$$$$$$.tmp $$^ && \
	$$(OBJCOPY) --keep-global-symbol=kg_backend_cpu_$(1) $$@.$$$$$$$$.tmp $$@ && rm -f $$@.$$$$$$$$.tmp
endef
$(foreach i,$(ISAS),$(eval $(call isa_rules,$(i))))
CPU_OBJ := $(foreach i,$(ISAS),$(B)/tensor/cpu_$(i).o)

include src/tensor/cuda/rules.mk src/ranks/mpi/rules.mk tests/emu/rules.mk
# of the modules whose tests have models
emu = $(if $(filter %/libtensor.a,$(call below,$(1))),$(EMU))
define module_rules
$(call LIB_of,$(1)): $(call OBJ_of,$(1)) $(if $(filter tensor,$(1)),$(CPU_OBJ))
	@rm -f $$@
	$$(AR) rcs $$@ $$^
$(B)/test/$(1)/%: $(B)/$(1)/%.o $(call linked,$(1))
	$$(call test_of,$(call linked,$(1)))
endef
# what a module's tests are linked with; those of the modules that guests have rows for, with all
linked  = $(if $(filter search task train cli,$(1)),$(ALL_OBJ),$(call emu,$(1)) $(call below,$(1)))
ALL_OBJ := $(GUEST_OBJ) $(EMU) $(call below,cli)
$(foreach m,$(MODULES),$(eval $(call module_rules,$(m))))

$(B)/test/%: $(B)/%.o $(ALL_OBJ)
	$(call test_of,$(ALL_OBJ))
$(addprefix $(B)/test/tests/,refusals_test model_folder_test): $(B)/test/kedge
# tests are compiled apart from linking, so that a compiler's cache has their objects, too
.SECONDARY:

include $(wildcard $(GUESTS:%=guests/%/rules.mk))

# the program as scripts test it on other backends
$(B)/test/kedge: $(B)/cli/main.o $(ALL_OBJ)
	$(call program,$(ALL_OBJ))
# and without a guest
$(B)/test/trunk: $(B)/cli/main.o $(call below,cli)
	$(call program,$(call below,cli))
# dist/: with other libraries, by tools/dist
$(B)/kedge $(B)/dist/kedge: $(GUEST_OBJ) $(call below,cli) $(B)/guests.list
	$(CC) -o $@ $(LDFLAGS_ALL) $(GUEST_OBJ) $(call below,cli) $(LIBS)
# by rename: an older one may be running
kedge: $(B)/kedge
	cp $< $@.new && mv -f $@.new $@

export CC KEDGE_PYTHON
$(B)/test/%: %.sh $(B)/test/kedge $(B)/test/trunk
	@mkdir -p $(@D)
	install -m 755 $< $@

# a yardstick: never linked into kedge
.PHONY: bench-onednn
bench-onednn: $(B)/bench-onednn          ## kedge's products beside oneDNN's (needs libdnnl-dev)
$(B)/bench-onednn: tools/bench_onednn.c $(call below,bench)
	$(CC) $(CFLAGS_ALL) $< -o $@ $(LDFLAGS_ALL) $(call below,bench) $(LIBS) -ldnnl

.PHONY: gpu-model
gpu-model: $(B)/gpu-model                ## what a decode or training step launches on a GPU, and how long it should take
$(B)/gpu-model: tools/gpu_model.c $(call below,bench)
	$(CC) $(CFLAGS_ALL) $< -o $@ $(LDFLAGS_ALL) $(call below,bench) $(LIBS)
$(B)/test/tests/gpu_model_test: $(B)/gpu-model

UNIT_TESTS := $(foreach m,$(MODULES),$(patsubst src/%.c,$(B)/test/%,$(wildcard src/$(m)/*_test.c))) \
              $(patsubst %.c,$(B)/test/%,tests/emu/emu_test.c $(filter-out $(LEFT_OUT), \
                $(wildcard $(GUESTS:%=guests/%/*_test.c) $(GUESTS:%=guests/%/*/*_test.c))))
TREE_TESTS := $(patsubst %.c,$(B)/test/%,$(wildcard tests/*_test.c)) \
              $(patsubst %.sh,$(B)/test/%,$(wildcard tests/*_test.sh $(GUESTS:%=guests/%/*_test.sh)))
$(foreach t,$(sort $(TREE_TESTS)),$(if $(word 2,$(filter $t,$(TREE_TESTS))),$(error two tests are $t: rename one)))

tests: $(UNIT_TESTS) $(TREE_TESTS)       ## build the tests

# $(call run,PROGRAMS): what they wrote, gigabytes, stays where one failed, and where KEEP=1 is set. One at a time in a tree:
# tests of two builds write in the same folders.
run = flock -o build/tests-run tools/run-tests $(B) $(1) && { [ -n "$(KEEP)" ] || rm -rf build/test-*; }

test: tests kedge                        ## run every test; ends with N passed, N failed, N skipped
	@$(call run,$(UNIT_TESTS) $(TREE_TESTS))

unit: $(UNIT_TESTS)                      ## unit tests alone (what the sanitizer build runs)
	@$(call run,$(UNIT_TESTS))

# what computes with a model, on memory that opens for operations alone (docs/extending.md); the three left out are about kernels
FAR_UNIT  := $(filter-out %/draw_test %/behind_test %/waits_test,$(filter $(foreach m,model rollout,$(B)/test/$(m)/%),$(UNIT_TESTS))) \
             $(foreach t,lane_sum reference reward,$(B)/test/train/$(t)_test)
FAR_TESTS := $(FAR_UNIT) $(foreach t,bits train optimizers,$(B)/test/tests/$(t)_test)
far: $(FAR_TESTS)                        ## models and runs on memory that the host cannot touch
	@KEDGE_TEST_BACKEND=far $(call run,$(FAR_TESTS))

# the tests of one build of .ci/run
PLAIN_UNIT := $(filter-out $(FAR_UNIT),$(UNIT_TESTS)) $(B)/test/tests/fuzz_replay_test
sanitized: $(FAR_UNIT) $(PLAIN_UNIT)     ## unit tests, those of models on such memory: for a build with SAN=
	@KEDGE_TEST_BACKEND=far $(call run,$(FAR_UNIT))
	@$(call run,$(PLAIN_UNIT))

lint:                                    ## layering, circles, style limits, prose, formatting, headers of listed packages
	@for part in layers circles headers style prose format; do tools/check-$$part || exit 1; done

tidy:                                    ## clang-tidy and cppcheck, where they are: all sources, under a minute
	@tools/check-bugs

check: lint tidy                         ## lint, tidy, -Werror build, tests
	@$(MAKE) --no-print-directory WERROR=1 test

format:                                  ## rewrite the sources with clang-format
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu')

bench: kedge                             ## measure this machine and kedge on it
	./kedge bench

docs: kedge                              ## rewrite the pages that are printed from tables
	./kedge algorithms > docs/algorithms.md
	tools/which
	./kedge report --metrics > docs/metrics.md
	sed -i '/^```yaml/q' docs/config.md
	./kedge train --keys >> docs/config.md && echo '```' >> docs/config.md

SHARE := $(DESTDIR)$(PREFIX)/share
install: install-share cuda mpi          ## copy program, library, man pages, recipes, suites, completion under PREFIX
	$(call put,755,kedge,bin/kedge)
	$(if $(filter 1,$(CUDA)),$(call put,755,$(CUDA_LIB),lib/kedge/$(CUDA_LIB)))
	for shim in $(MPI_SHIMS); do $(call put,755,$$shim,lib/kedge/$$shim) || exit 1; done
install-share: kedge
	install -d $(SHARE)/man/man1 $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions
	./kedge man > $(SHARE)/man/man1/kedge.1
	./kedge completion bash > $(SHARE)/bash-completion/completions/kedge
	printf '%s\n' '#compdef kedge' '. $${$${(%):-%x}:A:h}/../../bash-completion/completions/kedge' \
	  '_bash_complete -o filenames -F _kedge' > $(SHARE)/zsh/site-functions/_kedge
	for file in $$(git ls-files recipes suites 2>/dev/null || find recipes suites -type f); do \
	  install -D -m 644 $$file $(SHARE)/kedge/$$file || exit 1; done

# $(call put,mode,file,target)
put = install -D -m $(1) $(2) $(DESTDIR)$(PREFIX)/$(3)

dist:                                    ## build/dist/kedge, for other systems; PREFIX=DIR: a copy there
	tools/dist
	$(if $(findstring command,$(origin PREFIX)),install -d $(PREFIX) && cp -R build/dist/kedge/. $(PREFIX)/)

deb: dist                                ## build/kedge_VERSION_amd64.deb, for Debian 12 and newer
	tools/deb

wheel: dist                              ## build/wheels: kedge_rl and libkedge for pip
	tools/wheel

wheel-aarch64:                           ## the same for aarch64, by Debian's cross compiler (tools/aarch64)
	tools/dist aarch64
	tools/wheel build/wheels build/dist-aarch64 aarch64

compile_commands.json: Makefile          ## for clangd and clang-tidy
	@tools/compile-commands > $@

clean:                                   ## remove what was built
	rm -rf build kedge libkedge_cuda.so kedge-mpi-*.so

help:
	@awk -F: '/^[a-z_.-]+:.*##/ {n=$$1; sub(/.*## */,""); printf "  %-22s %s\n", n, $$0}' \
	  $(filter Makefile %.mk,$(MAKEFILE_LIST))

-include $(shell find $(B) -name '*.d' 2>/dev/null)
