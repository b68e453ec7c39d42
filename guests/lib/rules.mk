# libkedge, shared and static, for programs that bring their own model: a library beside the program, no part of it. Only
# kedge_* of kedge.h leaves it.

# changes when a program that was linked against the library would break
ABI      := 0
LIB_MODULES := base tensor policy
LIB_OBJ  := $(B)/guest-lib.o $(foreach m,$(LIB_MODULES),$(call OBJ_of,$(m))) $(CPU_OBJ)
LIB_LIBS := $(OMP) -lpthread -lm
SHARED   := $(B)/libkedge.so.$(ABI)

.PHONY: lib install-lib
all: lib
lib: $(SHARED) $(B)/libkedge.a           ## libkedge, shared and static
$(SHARED) $(B)/dist/$(notdir $(SHARED)): $(LIB_OBJ) guests/lib/libkedge.map
	$(CC) -shared -o $@ -Wl,-soname,$(@F) -Wl,--version-script=guests/lib/libkedge.map -Wl,-z,defs \
	  $(LDFLAGS_ALL) $(LIB_OBJ) $(LIB_LIBS)
	ln -sf $(@F) $(@D)/libkedge.so
# one object, so that what is hidden inside it is hidden from a program that links it, too
$(B)/libkedge.a: $(LIB_OBJ)
	$(LD) -r -o $(B)/libkedge.tmp.o $^
	$(OBJCOPY) --wildcard --keep-global-symbol='kedge_*' $(B)/libkedge.tmp.o $(B)/libkedge.o
	rm -f $@ $(B)/libkedge.tmp.o
	$(AR) rcs $@ $(B)/libkedge.o

# the golden cases are of guests/lab
LEFT_OUT := $(if $(filter lab,$(GUESTS)),,%/head_golden_test.c)
$(B)/test/guests/lib/%: $(B)/guests/lib/%.o $(B)/guest-lib.o $(ALL_OBJ)
	$(call test_of,$(B)/guest-lib.o $(ALL_OBJ))
$(addprefix $(B)/test/,guests/lib/libkedge_test guests/lib/python_test tests/install_test): $(SHARED) $(B)/libkedge.a

install: install-lib
install-lib: lib                         ## libkedge, its header, kedge.pc, kedge.py and man page under PREFIX
	$(call put,644,guests/lib/kedge.h,include/kedge.h)
	$(call put,644,$(SHARED),lib/libkedge.so.$(ABI))
	ln -sf libkedge.so.$(ABI) $(DESTDIR)$(PREFIX)/lib/libkedge.so
	$(call put,644,$(B)/libkedge.a,lib/libkedge.a)
	$(call put,644,guests/lib/libkedge.3,share/man/man3/libkedge.3)
	$(call put,644,guests/lib/kedge.py,share/kedge/python/kedge.py)
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@LIBS@|$(LIB_LIBS)|' guests/lib/kedge.pc.in \
	  > $(DESTDIR)$(PREFIX)/lib/pkgconfig/kedge.pc
