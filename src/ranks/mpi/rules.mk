# kedge-mpi-openmpi.so and kedge-mpi-mpich.so: the one file that includes mpi.h, compiled by each MPI's compiler that is
# here (MPICH declares an ignored array in a way that gcc warns of). kedge itself is the same with them and without (docs/ranks.md).
#
#   MPICC_openmpi=path, MPICC_mpich=path   these compilers; empty: not built

first_of = $(firstword $(foreach c,$(1),$(shell command -v $(c) 2>/dev/null)))
# a lone mpicc belongs to one of them
lone_mpi := $(if $(call first_of,mpicc),$(if $(shell mpicc -show 2>/dev/null | grep -i openmpi),openmpi,mpich))
MPICC_openmpi ?= $(or $(call first_of,mpicc.openmpi),$(if $(filter openmpi,$(lone_mpi)),mpicc))
MPICC_mpich   ?= $(or $(call first_of,mpicc.mpich),$(if $(filter mpich,$(lone_mpi)),mpicc))
# a host program's sanitizer is not in a library that is opened
MPI_SHIMS := $(if $(SAN),,$(foreach m,openmpi mpich,$(if $(MPICC_$(m)),kedge-mpi-$(m).so)))

.PHONY: mpi
mpi: $(MPI_SHIMS)                        ## kedge-mpi-*.so for runs over ranks, where an mpicc is
ifeq ($(MPI_SHIMS)$(SAN),)
	@echo "mpi: no mpicc in PATH: runs are of one process (docs/ranks.md)"
endif

kedge-mpi-%.so: src/ranks/mpi/shim.c src/ranks/mpi/shim.h
	$(MPICC_$*) -std=gnu11 -O2 -g -Wall -Wextra -Wno-stringop-overflow -fPIC -fvisibility=hidden -Isrc -DKG_MPI_NAME='"$*"' -shared -o $@.new $< && mv -f $@.new $@
