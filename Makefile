# Tally. `make help` lists the targets.
#
# The user's CFLAGS come first; the flags that guard the bits come last and win.
# Kernel sources (*.k.c) are compiled once per vector level, everything else once,
# for the baseline of the target. build/ mirrors the tree.

CC       ?= gcc
AR       ?= ar
CFLAGS   ?= -O2 -g
BUILD    ?= build
PREFIX   ?= /usr/local
JEMALLOC ?= 1
BLIS     ?= 1
ARGS     ?=
# Training over several processes: 1 links what trains with the MPI that MPI names, openmpi or mpich.
TL_MPI   ?= 0
MPI      ?= openmpi
# How far kernels are optimised, whatever CFLAGS say: their loops vectorise at -O3. Another level is slower; no bit changes.
KERNEL_OPT ?= -O3
# KERNEL_OPT where a kernel is compiled, and nothing elsewhere.
OWN_OPT :=

ifneq ($(words $(BUILD)),1)
$(error BUILD='$(BUILD)': the name of one folder, without spaces, is needed)
endif
ifneq ($(filter-out 0 1,$(JEMALLOC) $(BLIS) $(TL_MPI)),)
$(error JEMALLOC, BLIS and TL_MPI are 0 or 1)
endif

VERSION := $(shell sed -n 's/^\#define TL_VERSION "\(.*\)"/\1/p' tally.h)
SOVERSION := $(firstword $(subst ., ,$(VERSION)))

# All cores, unless a -j was given; a line a file, unless V=1; and one more for a file that took 5 seconds.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
endif
Q    := $(if $(V),,@)
line  = $(if $(V),,@printf '  %-4s %s\n' $(1) $(2))
TIME  = t=$$(date +%s);
TOOK  = && t=$$(($$(date +%s) - t)) && { [ $$t -lt 5 ] || printf '  %-4s %s\n' "$$t s" $@; }

# CROSS=aarch64 (riscv64, s390x) builds for that processor, into build/$(CROSS), and runs it under qemu; first: make deps-cross.
CROSSES := aarch64 riscv64 s390x
sysroot  = $(abspath build/sysroot/$(1))
ifdef CROSS
LIBDIR   := $(call sysroot,$(CROSS))/usr/lib/$(CROSS)-linux-gnu
CC       := $(CROSS)-linux-gnu-gcc --sysroot=$(call sysroot,$(CROSS)) -B$(LIBDIR) -L$(LIBDIR)
BUILD    := build/$(CROSS)
JEMALLOC := 0
BLIS     := 0
# Not qemu's own aarch64: that signs every return address, in software.
QEMU_aarch64 := -cpu cortex-a72
export TL_RUN := qemu-$(CROSS) $(QEMU_$(CROSS)) -L $(call sysroot,$(CROSS))
endif

# The shared library's names: to link with, to be looked for, its own.
SO       := libtally.so
SO_MAJOR := $(SO).$(SOVERSION)
SO_WHOLE := $(SO).$(VERSION)
LINK_SO  := -shared -Wl,-z,nodelete -Wl,-soname,$(SO_MAJOR)
# macOS, untried: brew install jansson openssl@3 cmocka mpfr blis.
ifeq ($(shell uname -s),Darwin)
JEMALLOC := 0
BREW     := $(shell brew --prefix)
KEGS     := $(BREW) $(BREW)/opt/openssl@3
SO       := libtally.dylib
SO_MAJOR := libtally.$(SOVERSION).dylib
SO_WHOLE := libtally.$(VERSION).dylib
LINK_SO  := -dynamiclib -install_name $(PREFIX)/lib/$(SO_MAJOR)
endif

ARCH  := $(patsubst arm64,aarch64,$(shell $(CC) -dumpmachine | cut -d- -f1))
COMPILER := $(shell $(CC) --version)
CLANG := $(findstring clang,$(COMPILER))
# Header folders that Debian keeps apart for each variant of BLIS.
BLIS_INC := $(wildcard /usr/include/$(ARCH)-linux-gnu/blis-openmp /usr/include/$(ARCH)-linux-gnu/blis-pthread)

ifeq ($(ARCH),x86_64)
LEVELS := scalar v2 v3 v4
else ifeq ($(ARCH),aarch64)
LEVELS := scalar neon
else
LEVELS := scalar
endif
FLAGS_scalar := $(if $(filter x86_64,$(ARCH)),-mno-fma)
FLAGS_v2     := -march=x86-64-v2
FLAGS_v3     := -march=x86-64-v3
FLAGS_v4     := -march=x86-64-v4 -mprefer-vector-width=512
FLAGS_neon   :=

# gcc 11 sees stores of 2^64 bytes where lanes are left over.
WARN_gcc := $(if $(filter 11.%,$(COMPILER)),-Wno-stringop-overflow)
WARN := -Wall -Wextra -Wshadow -Wconversion -Wmissing-prototypes -Wdouble-promotion -Wno-enum-float-conversion $(WARN_$(or $(CLANG),gcc)) $(if $(WERROR),-Werror -Wno-error=deprecated-declarations)
DEFS := -D_DEFAULT_SOURCE -I. $(addprefix -isystem ,$(BLIS_INC) $(KEGS:%=%/include)) -DTL_JEMALLOC=$(JEMALLOC) -DTL_BLIS=$(BLIS) \
        $(foreach l,v2 v3 v4 neon,-DTL_HAVE_$(shell echo $(l) | tr a-z A-Z)=$(if $(filter $(l),$(LEVELS)),1,0))
# The flags that guard the bits: last, so that they win. On s390x gcc evaluates float in double unless told
# not to. What these cannot take back tensor/ieee.h refuses. -fno-trapping-math stands behind them, because
# -fno-unsafe-math-optimizations undoes it; it changes no bit, but without it few loops are vectorised.
BITS_gcc   := -fno-unsafe-math-optimizations -fno-single-precision-constant
BITS_clang := -fdenormal-fp-math=ieee -fno-approx-func
BITS_s390x := -fexcess-precision=fast
BITS := -std=c11 -ffp-contract=off -fno-fast-math -fno-associative-math -fno-reciprocal-math -fno-finite-math-only -fsigned-zeros \
        $(BITS_$(or $(CLANG),gcc)) $(BITS_$(ARCH)) -fno-math-errno -fno-trapping-math -fPIC
# Public headers say what the shared library shows (TL_BEGIN); all else is hidden.
VISIBILITY := hidden
COMPILE = $(CC) $(CPPFLAGS) $(CFLAGS) $(OWN_OPT) $(WARN) $(DEFS) $(BITS) -fvisibility=$(VISIBILITY) -include tensor/ieee.h -MMD -MP
LINK    = $(CC) $(CFLAGS) $(LDFLAGS) $(BITS)

# The library takes jemalloc where the process has it (tensor/storage.c): a linker must not drop it as unneeded.
LINK_JEMALLOC := -Wl,--push-state,--no-as-needed -ljemalloc -Wl,--pop-state
LIBS := $(KEGS:%=-L%/lib) $(if $(filter 1,$(JEMALLOC)),-ljemalloc) $(if $(filter 1,$(BLIS)),-lblis) -ljansson -lcrypto -lz -lm -pthread

FACE     := tally_data.h tally_models.h tally_extend.h tally_bind.h
ROOMS    := tensor tensor/files tensor/reveal autograd autograd/kernels autograd/batch autograd/check autograd/graph autograd/replace autograd/log ops ops/patterns nn
# What reads and compares logs is no part of the library: tally-diff is made of it.
READ     := $(wildcard autograd/log/read/*.c)
SRC      := $(filter-out %.k.c,$(wildcard $(addsuffix /*.c,$(ROOMS))))
KSRC     := $(wildcard tensor/kernels/*.k.c)
OBJ      := $(SRC:%.c=$(BUILD)/%.o) $(foreach l,$(LEVELS),$(KSRC:%.k.c=$(BUILD)/%.$(l).o))
# Several processes: a library of its own, which alone may know MPI.
GROUP    := $(patsubst %.c,$(BUILD)/%.o,$(wildcard nn/group/*.c))
MPI_PC   := $(if $(filter openmpi,$(MPI)),ompi-c,$(MPI))
# Asked when they are used: `make deps-mpi` installs it, and pkg-config.
MPI_LIBS  = $(if $(filter 1,$(TL_MPI)),$(or $(shell pkg-config --libs $(MPI_PC) 2>/dev/null),$(error MPI=$(MPI) is not installed, or neither openmpi nor mpich: make deps-mpi)))
MPI_INC   = $(if $(MPI_LIBS),$(patsubst -I%,-isystem %,$(shell pkg-config --cflags-only-I $(MPI_PC))))
# What the examples share is linked with each of them.
SHARED   := examples/example.c examples/example_flags.c examples/example_files.c examples/example_data.c
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/%,$(filter-out $(SHARED),$(wildcard examples/*.c)))
# The course: a program for each lesson, build/course/NN_name. N=7 is lesson 7 alone.
COURSE   := $(patsubst examples/%.c,$(BUILD)/%,$(wildcard examples/course/*.c))
LESSON   := $(if $(filter course,$(MAKECMDGOALS)),$(wildcard examples/course/$(shell printf %02d $(N:0%=%) 2>/dev/null || echo none)_*.c))
TESTSRC  := $(wildcard tests/test_*.c tests/fuzz_*.c) tests/runner.c $(wildcard tests/support/*.c) $(wildcard tests/ref/*.c) $(wildcard tests/cases/*.c)
TESTOBJ  := $(TESTSRC:%.c=$(BUILD)/%.o)

.PHONY: FORCE all test course fuzz gradcheck python docs train programs bench bits contract broken broken-here mpi cross emulator exhaustive reveal accuracy format format-check install uninstall installed deps deps-dev deps-cross deps-peers deps-mpi clean help
.DELETE_ON_ERROR:
.SECONDARY:

all: $(BUILD)/libtally.a $(BUILD)/libtally_group.a $(BUILD)/$(SO) $(EXAMPLES) $(COURSE)

help:
	@echo "make              library (static, shared) and examples, into $(BUILD)/"
	@echo "make deps         install what is missing (Debian, Ubuntu)"
	@echo "make test         the test suite; ARGS=errors: one group"
	@echo "make course       the lessons of examples/course, one after the other; N=7: one, its source and what it prints"
	@echo "build/tally-diff A B   the op in which two logged runs part (autograd/log/README.md)"
	@echo "make programs     random programs called, compiled, in segments and micro-batches; N=20000 SEED=1"
	@echo "make python       examples/python against this build; PYTHON=python3 must have numpy"
	@echo "make docs         the reference, a page for each op and header, into $(BUILD)/docs"
	@echo "make gradcheck    every op's gradients, and damaged gradients that must be noticed; ARGS=rms_norm: one op's"
	@echo "make fuzz         files changed and functions called at random, FUZZ=60 seconds each; TL_SEED=N repeats; ARGS=fuzz_api"
	@echo "make fuzz ENGINE=libfuzzer   files again, by clang's fuzzer, which is led by the code that they reach; ARGS=\"llmc config\""
	@echo "make train        train a small Llama on text; ARGS=\"--help\" hands flags on"
	@echo "make bench        speed against the machine's peaks and beside PyTorch and OpenBLAS (make deps-peers); ARGS=lstm"
	@echo "make reveal       the order in which sums add, found from outside; BLIS's for comparison; ARGS=8: of 8 terms"
	@echo "make accuracy     how much each form of sum errs, as the table in NUMERICS.md"
	@echo "make bits         golden runs along every axis: compilers, flags, threads, vector levels, processors, ..."
	@echo "make contract     op x axis: proved, tested or not claimed, from what the tests ran"
	@echo "make broken       breaks kernels on purpose and sees the suite fail"
	@echo "make mpi          trains over several processes, one hash for any number (make deps-mpi; MPI=openmpi or mpich; ARGS=small)"
	@echo "make exhaustive FN=exp   all 2^32 inputs of an f32 function; FN=all, of every one, renews the proof after a change"
	@echo "make install      PREFIX=/usr/local DESTDIR=; make uninstall takes it away again; make installed tries both"
	@echo "make format       clang-format over the sources; format-check only looks"
	@echo "make CROSS=aarch64 ...   builds for another processor and runs under qemu; first: make deps-cross"
	@echo "variables: V=1 (show the commands), CC, CFLAGS, CPPFLAGS, LDFLAGS, KERNEL_OPT=-O3, JEMALLOC=0, BLIS=0, TL_MPI=1, MPI=openmpi, WERROR=1, BUILD=dir, ARGS"

# `make deps train`: nothing is compiled before what it needs is installed.
FIRST := $(filter deps deps-dev deps-mpi,$(MAKECMDGOALS))

# What decides the bytes of an object, whatever its name: others than the last build had make all of it anew.
# The compiler goes by what it says of itself, so that cc, gcc and ccache gcc are one.
STAMP := $(strip $(wordlist 2,6,$(COMPILER)) $(filter -%,$(CC)) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $(DEFS) $(BITS) $(KERNEL_OPT))
ifneq ($(STAMP),$(strip $(shell cat $(BUILD)/flags 2>/dev/null)))
$(BUILD)/flags: FORCE
endif
$(BUILD)/flags:
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(STAMP))' > $@
FORCE:
ifneq ($(TL_MPI) $(MPI),$(shell cat $(BUILD)/mpi 2>/dev/null))
$(BUILD)/mpi: FORCE
endif
$(BUILD)/mpi:
	@mkdir -p $(@D)
	@echo '$(TL_MPI) $(MPI)' > $@

# An archive is made anew when a source has gone.
ifneq ($(OBJ) $(GROUP),$(shell cat $(BUILD)/objects 2>/dev/null))
$(BUILD)/objects: FORCE
endif
$(BUILD)/objects:
	@mkdir -p $(@D)
	@echo '$(OBJ) $(GROUP)' > $@

define KERNEL_RULE
$(BUILD)/%.$(1).o: OWN_OPT = $(KERNEL_OPT)
$(BUILD)/%.$(1).o: %.k.c $(BUILD)/flags | $(FIRST)
	@mkdir -p $$(@D)
	$$(call line,CC,$$@)
	$(Q)$$(TIME) $$(COMPILE) $(FLAGS_$(1)) -DTL_LEVEL=$(1) -c $$< -o $$@ $$(TOOK)
endef
$(foreach l,$(LEVELS),$(eval $(call KERNEL_RULE,$(l))))

$(BUILD)/%.o: %.c $(BUILD)/flags | $(FIRST)
	@mkdir -p $(@D)
	$(call line,CC,$@)
	$(Q)$(TIME) $(COMPILE) -c $< -o $@ $(TOOK)

# Tests stand in for functions of the C library (mmap, write), and its other users must see them.
$(BUILD)/tests/%.o: VISIBILITY := default
$(BUILD)/tests/%.o: DEFS += -DTL_ROOT='"$(CURDIR)"' -DTL_BUILD='"$(abspath $(BUILD))"' -DTL_TEST_HOOKS
# The program of the README stands as it is printed there: its ints become floats.
$(BUILD)/examples/signs.o: WARN += -Wno-conversion

$(BUILD)/libtally.a: $(OBJ) $(BUILD)/objects
	@rm -f $@
	$(call line,AR,$@)
	$(Q)$(AR) rcs $@ $(OBJ)

$(BUILD)/nn/group/mpi.o $(BUILD)/tests/allreduce.o: DEFS += -DTL_MPI=$(TL_MPI) $(MPI_INC)
$(BUILD)/nn/group/mpi.o $(BUILD)/tests/allreduce.o: $(BUILD)/mpi
$(BUILD)/libtally_group.a: $(GROUP) $(BUILD)/objects
	@rm -f $@
	$(call line,AR,$@)
	$(Q)$(AR) rcs $@ $(GROUP)

# The public headers as text that the library hands to bindings (tally_bind.h).
$(BUILD)/nn/face.inc: nn/face.awk $(BUILD)/flags | $(FIRST)
	@mkdir -p $(@D)
	$(Q)$(CC) $(DEFS) $(BITS) -E -MMD -MP -MF $(@:.inc=.face.d) -MT $@ $(FACE:%=-include %) -x c /dev/null | awk -v face='$(FACE)' -f nn/face.awk > $@
$(BUILD)/nn/bind.o: $(BUILD)/nn/face.inc
$(BUILD)/nn/bind.o: DEFS += -I$(BUILD)

# Without jemalloc of its own, which cannot come into a process that runs: dlopen would refuse it.
$(BUILD)/$(SO): $(OBJ) $(BUILD)/objects
	$(call line,LINK,$@)
	$(Q)$(LINK) $(LINK_SO) -o $@ $(OBJ) $(filter-out $(LINK_JEMALLOC),$(LIBS))
	$(Q)ln -sf $(SO) $(@D)/$(SO_MAJOR) # the name that programs linked with it look for

$(EXAMPLES): $(BUILD)/%: $(BUILD)/examples/%.o $(SHARED:%.c=$(BUILD)/%.o) $(BUILD)/libtally_group.a $(BUILD)/libtally.a
	$(call line,LINK,$@)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS) $(MPI_LIBS)

$(COURSE): $(BUILD)/%: $(BUILD)/examples/%.o $(BUILD)/libtally.a
	@mkdir -p $(@D)
	$(call line,LINK,$@)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS) -ldl

$(BUILD)/tally-diff $(BUILD)/course/18_resume: $(READ:%.c=$(BUILD)/%.o)

# The same and the tables it reads into for the tests, and what looks things up in models and among
# derived values, where they count their steps (tests/support/steps.c).
COUNTED := $(patsubst %.c,$(BUILD)/tests/steps/%.o,tensor/memory.c $(READ) $(addprefix autograd/,handle.c model.c object.c order.c) $(addprefix autograd/batch/,again.c derived.c lasting.c uses.c))
$(BUILD)/tests/steps/%.o: %.c $(BUILD)/flags | $(FIRST)
	@mkdir -p $(@D)
	$(call line,CC,$@)
	$(Q)$(COMPILE) -fsanitize-coverage=trace-pc -Dmemset=tl_steps_memset -c $< -o $@

# Allocations that fail when a test wants it: linked before the library, which has no such thing.
# (The runner's memory.o counts its steps, too.)
HOOKED := $(addprefix $(BUILD)/tests/hooked/,storage.o memory.o)
$(HOOKED): $(BUILD)/tests/hooked/%.o: tensor/%.c $(BUILD)/flags | $(FIRST)
	@mkdir -p $(@D)
	$(call line,CC,$@)
	$(Q)$(COMPILE) -c $< -o $@

$(BUILD)/tests/runner: $(TESTOBJ) $(COUNTED) $(firstword $(HOOKED)) $(BUILD)/libtally_group.a $(BUILD)/libtally.a
	$(call line,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(LIBS) $(MPI_LIBS) -lcmocka -lmpfr -lgmp -ldl

$(BUILD)/tests/libfuzzer: $(BUILD)/tests/libfuzzer.o $(patsubst %,$(BUILD)/tests/support/%.o,judges other_memory) $(READ:%.c=$(BUILD)/%.o) $(HOOKED) $(BUILD)/libtally.a
	$(call line,LINK,$@)
	$(Q)$(LINK) -fsanitize=fuzzer -o $@ $^ $(LIBS) -lcmocka -ldl

$(BUILD)/tests/grouped: $(BUILD)/tests/grouped.o $(BUILD)/tests/support/grouped.o $(BUILD)/libtally_group.a $(BUILD)/libtally.a
	$(call line,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(LIBS) $(MPI_LIBS)

$(BUILD)/tests/allreduce: $(BUILD)/tests/allreduce.o $(BUILD)/libtally_group.a $(BUILD)/libtally.a
	$(call line,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(LIBS) $(MPI_LIBS)

$(BUILD)/tests/gradcheck: $(BUILD)/tests/gradcheck.o $(BUILD)/tests/support/mutate.o $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/cases/*.c tests/ref/*.c)) $(BUILD)/libtally.a
	$(call line,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(LIBS) -lmpfr -lgmp

$(BUILD)/tests/exhaustive: $(BUILD)/tests/exhaustive.o $(BUILD)/tests/support/math_sources.o $(BUILD)/libtally.a
	$(call line,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(LIBS) -lmpfr -lgmp

$(BUILD)/tests/accuracy: $(BUILD)/tests/accuracy.o $(BUILD)/libtally.a
	$(call line,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(LIBS) -lmpfr -lgmp

# What is compared with the contract in the bench: the compiler is free, for this machine.
$(BUILD)/tests/bench/fast_%.o: tests/bench/fast_%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call line,CC,$@)
	$(Q)$(CC) -g $(WARN) -D_DEFAULT_SOURCE -I. -std=c11 -O3 -ffast-math -march=native $(FAST_$(ARCH)) -MMD -MP -c $< -o $@
# Tiles of bf16 are compiled wherever the compiler can, and used where the processor has them.
FAST_x86_64 := -mprefer-vector-width=512
$(BUILD)/tests/bench/fast_amx.o: FAST_x86_64 += -mamx-tile -mamx-bf16

BENCHOBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/bench/*.c))
$(BUILD)/tests/bench/bench: $(BENCHOBJ) $(BUILD)/libtally.a
	$(call line,LINK,$@)
	$(Q)$(LINK) -o $@ $^ $(LIBS) -lblis -ldl

test: $(BUILD)/tests/runner $(BUILD)/tests/grouped $(BUILD)/libtally.a $(BUILD)/$(SO) $(EXAMPLES) $(COURSE)
	$(Q)$(TL_RUN) $(BUILD)/tests/runner $(ARGS)

# HTML: a page for each op and header, and the contract.
docs:
	$(Q)$(PYTHON) docs/reference.py $(BUILD)/docs $(PUBLIC)

# Python, with numpy where there is one; PYTHON=... names another.
PYTHON ?= $(or $(shell for p in python3 /usr/bin/python3; do $$p -c 'import numpy' 2> /dev/null && echo $$p && break; done),python3)
python: $(BUILD)/$(SO) $(BUILD)/signs
	$(Q)$(PYTHON) tests/python.py $(BUILD)

programs: $(BUILD)/tests/runner
	$(Q)TL_TEST_PROGRAMS=$(or $(N),20000) TL_TEST_SEED=$(or $(SEED),1) $(TL_RUN) $(BUILD)/tests/runner programs splits

# Every group of a file tests/fuzz_*.c, or those that ARGS names.
FUZZ    ?= 60
FUZZERS := $(patsubst tests/%.c,%,$(wildcard tests/fuzz_*.c))
ifneq ($(ENGINE),libfuzzer)
fuzz: $(BUILD)/tests/runner
	$(Q)TL_FUZZ=$(FUZZ) $(TL_RUN) $(BUILD)/tests/runner $(or $(ARGS),$(FUZZERS))
else ifneq ($(BUILD),build/libfuzzer)
fuzz:
	$(Q)$(MAKE) CC="$(if $(findstring clang,$(CC)),$(CC),clang)" BUILD=build/libfuzzer JEMALLOC=0 LEVELS=scalar KERNEL_OPT="-O1 -fno-sanitize=all" CFLAGS="-O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" fuzz
else
# Or those loaders that ARGS names; what reaches code that nothing else did is kept in $(BUILD)/corpus.
LOADERS := safetensors checkpoint arrays config weights index tokenizer llmc tokens log
fuzz: $(BUILD)/tests/libfuzzer
	$(Q)mkdir -p $(BUILD)/files; for l in $(or $(ARGS),$(LOADERS)); do \
	    echo "---- $$l"; mkdir -p $(BUILD)/corpus/$$l; \
	    TMPDIR=$(BUILD)/files TL_LOADER=$$l $< -max_total_time=$(FUZZ) -max_len=32768 -malloc_limit_mb=64 -timeout=120 -print_final_stats=1 \
	        -artifact_prefix=$(BUILD)/bad.$$l. $(BUILD)/corpus/$$l tests/corpus 2> $(BUILD)/$$l.txt || { cat $(BUILD)/$$l.txt; exit 1; }; \
	    grep -E '^Done|cov:.*DONE' $(BUILD)/$$l.txt; \
	done; rm -rf $(BUILD)/files
endif

gradcheck: $(BUILD)/tests/gradcheck
	$(Q)$(BUILD)/tests/gradcheck $(ARGS)

# All lessons, or one: its source, then what it prints; on a terminal of 210 columns side by side.
ifeq ($(LESSON),)
course: $(COURSE)
	$(if $(N),@echo "there is no lesson $(N)"; exit 1)
	@passed=0 failed=0 unseen=0; for l in $(COURSE); do \
	    echo "---- $${l##*/}"; if ! $(TL_RUN) $$l > $$l.txt; then failed=$$((failed + 1)); \
	    elif grep -q '^here: not shown' $$l.txt; then unseen=$$((unseen + 1)); else passed=$$((passed + 1)); fi; cat $$l.txt; echo; \
	done; [ $$unseen = 0 ] || echo "$$unseen not shown here"; echo "$$passed passed, $$failed failed"; [ $$failed = 0 ]
else
course: $(LESSON:examples/%.c=$(BUILD)/%)
	@out=$<.txt; $(TL_RUN) $< > $$out; bad=$$?; \
	if [ "$${COLUMNS:-$$(tput cols 2>/dev/null || echo 80)}" -ge 210 ]; then pr -m -t -w "$${COLUMNS:-$$(tput cols)}" $(LESSON) $$out; \
	else cat $(LESSON); echo "---- prints:"; cat $$out; fi; exit $$bad
endif

train: $(BUILD)/train_text
	$(Q)$(BUILD)/train_text $(ARGS)

bench: $(BUILD)/tests/bench/bench
	$(Q)$(BUILD)/tests/bench/bench $(ARGS)

# BLIS may choose plain kernels on a processor it does not know: those for AVX2 are shown as well.
reveal: $(BUILD)/reveal
	$(Q)$(BUILD)/reveal $(ARGS)
	@if [ "$(BLIS)" = 1 ] && grep -qsw avx2 /proc/cpuinfo; then BLIS_ARCH_TYPE=3 $(BUILD)/reveal $(ARGS) blis; fi

accuracy: $(BUILD)/tests/accuracy
	$(Q)$(BUILD)/tests/accuracy $(ARGS)

bits: $(BUILD)/tests/runner
	@tests/bits.sh $(BUILD)

contract: $(BUILD)/tests/runner
	@tests/contract.sh $(BUILD)

# Under both kinds of MPI, or the one that MPI names: each relinks what it runs.
mpi:
	+$(Q)for m in $(if $(filter command,$(firstword $(origin MPI))),$(MPI),openmpi mpich); do \
	    $(MAKE) TL_MPI=1 MPI=$$m $(addprefix $(BUILD)/,tests/grouped $(if $(filter small,$(ARGS)),,train_text train_addition digits vae tally-diff)) && \
	    tests/mpi.sh $(BUILD) $$m $(ARGS) && $(if $(filter small,$(ARGS)),true,tests/kills.sh $(BUILD) $$m 20) || exit 1; \
	done

# Built for two levels and less optimised: no bit changes, and each break is built in seconds.
BROKEN_LEVELS := $(sort $(firstword $(LEVELS)) $(lastword $(filter-out v4,$(LEVELS))))
broken:
	+$(Q)$(MAKE) --no-print-directory BUILD=$(BUILD)/broken LEVELS="$(BROKEN_LEVELS)" CFLAGS=-O1 KERNEL_OPT="-O1 -fexpensive-optimizations" broken-here
broken-here: all $(BUILD)/tests/runner
	+@SLICE="$(SLICE)" BASE="$(BASE)" tests/broken.sh $(BUILD) $(ARGS)

# Under an emulator: the quick part of the suite, then checkpoints of this machine and golden runs continued from them.
QUICK         := math math_half ref ref_gradients ref_training hash rng file safetensors rotary reference
QUICK_aarch64 := gemm half_rounding attention golden
cross: $(BUILD)/tests/runner $(EXAMPLES)
	$(Q)$(TL_RUN) $(BUILD)/tests/runner $(QUICK) $(QUICK_$(CROSS))
	tests/cross.sh $(BUILD) build

emulator:
	@echo $(TL_RUN)

FN ?= exp
exhaustive: $(BUILD)/tests/exhaustive
	$(Q)$(BUILD)/tests/exhaustive $(FN) $(ARGS)

# ---- what must be installed: package and a file that shows it is there ----

NEEDED := gcc:/usr/bin/gcc libjemalloc-dev:/usr/include/jemalloc/jemalloc.h libblis-dev:/usr/share/doc/libblis-dev \
          libcmocka-dev:/usr/include/cmocka.h libmpfr-dev:/usr/include/mpfr.h libjansson-dev:/usr/include/jansson.h \
          libssl-dev:/usr/include/openssl/evp.h zlib1g-dev:/usr/include/zlib.h libxxhash-dev:/usr/include/xxhash.h
missing = $(foreach p,$(1),$(if $(wildcard $(lastword $(subst :, ,$(p)))),,$(firstword $(subst :, ,$(p)))))

deps:
	@$(call INSTALL,$(call missing,$(NEEDED)))

# What CI and the bench need besides: clang, compilers of C++, numpy, its sanitizers' runtimes, whose package carries the version, and OpenBLAS, a peer.
deps-dev: deps
	@$(call INSTALL,$(call missing,clang:/usr/bin/clang g++:/usr/bin/g++ pkg-config:/usr/bin/pkg-config python3-numpy:/usr/share/doc/python3-numpy clang-format:/usr/bin/clang-format libopenblas0-pthread:/usr/share/doc/libopenblas0-pthread))
	@rt=libclang-rt-$$(clang -dumpversion | cut -d. -f1)-dev; [ -e /usr/share/doc/$$rt ] || { $(call INSTALL,$$rt); }

# What the bench and tests/agree compare with, by pip, in a folder of the build.
deps-peers: deps-dev
	@[ -e $(BUILD)/peers/bin/python ] || tests/bench/peers.sh $(BUILD)/peers

# Both kinds of MPI; they can be installed side by side.
deps-mpi:
	@$(call INSTALL,$(call missing,pkg-config:/usr/bin/pkg-config openmpi-bin:/usr/bin/mpirun.openmpi libopenmpi-dev:/usr/share/doc/libopenmpi-dev mpich:/usr/bin/mpirun.mpich libmpich-dev:/usr/share/doc/libmpich-dev))

# For CROSS: compilers, qemu, and the libraries of those processors, unpacked below build/sysroot, not installed.
deps-cross:
	@$(call INSTALL,$(call missing,qemu-user:/usr/bin/qemu-aarch64 $(foreach c,$(CROSSES),gcc-$(c)-linux-gnu:/usr/bin/$(c)-linux-gnu-gcc)))
	@$(foreach c,$(CROSSES),[ $(call sysroot,$(c)) -nt tests/sysroot.sh ] || tests/sysroot.sh $(c) $(call sysroot,$(c)) || exit 1;)

# One apt-get at a time, however many of the targets are made at once.
define INSTALL
	if [ -z "$(strip $(1))" ]; then echo "$@: nothing to install"; \
	elif command -v apt-get >/dev/null 2>&1; then \
	    sudo=""; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	    echo "installing: $(strip $(1))"; \
	    exec 9< Makefile && flock 9; \
	    $$sudo apt-get update -qq || echo "apt-get update: lists that it could not renew stay as they are"; \
	    $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1) >/dev/null; \
	else \
	    echo "install by your system's means (macOS: brew install jansson openssl@3 xxhash cmocka mpfr blis): jemalloc, BLIS, cmocka, MPFR, jansson, zlib, xxHash and OpenSSL's libcrypto, with headers"; \
	    exit 1; \
	fi
endef

# .clang-format has the style; the program of the README stands as it is printed there.
FORMATTED = $(filter-out examples/signs.c,$(shell git ls-files '*.c' '*.h'))
format:
	clang-format -i $(FORMATTED)
format-check:
	@clang-format --dry-run -Werror $(FORMATTED)
	@git ls-files '*.md' | xargs awk 'length > 100 && !/^([|]|    )/ { print FILENAME ":" FNR ": " length " columns; prose ends at 100"; bad = 1 } \
	    END { exit bad }'
	@awk 'FNR == 1 || /clang-format on/ { table = 0 } /clang-format off/ { table = 1 } \
	    length > 100 && !table { print FILENAME ":" FNR ": " length " columns; comments end at 100, too"; bad = 1 } \
	    END { exit bad }' $(FORMATTED)

# ---- installing ----

# What tally.h and the headers besides it reach, under include/tally, where each includes the others
# by their place beside it: a program may have folders of the same names.
PUBLIC = $(sort $(FACE) $(GROUP_H) $(filter %.h,$(shell $(CC) -I. -MM $(FACE) $(GROUP_H))))
GROUP_H = nn/group/group.h
INSTALLED = $(PUBLIC:%=include/tally/%) lib/libtally.a lib/libtally_group.a $(addprefix lib/,$(SO) $(SO_MAJOR) $(SO_WHOLE)) \
            lib/pkgconfig/tally.pc bin/tally-diff share/man/man1/tally-diff.1
TO = $(DESTDIR)$(PREFIX)

install: $(BUILD)/libtally.a $(BUILD)/libtally_group.a $(BUILD)/$(SO) $(BUILD)/tally-diff
	$(Q)for d in $(sort $(dir $(INSTALLED))); do [ -d "$(TO)/$$d" ] || install -d -m 755 "$(TO)/$$d" || exit 1; done
	$(Q)for h in $(PUBLIC); do up=$$(echo $$h | sed -e 's#[^/]*$$##' -e 's#[^/]*/#../#g'); \
	    sed "s|^#include \"|&$$up|" $$h > "$(BUILD)/installed.h" && install -m 644 "$(BUILD)/installed.h" "$(TO)/include/tally/$$h" || exit 1; done
	$(Q)install -m 644 $(BUILD)/libtally.a $(BUILD)/libtally_group.a "$(TO)/lib"
	$(Q)install -m 755 $(BUILD)/$(SO) "$(TO)/lib/$(SO_WHOLE)"
	$(Q)ln -sf $(SO_WHOLE) "$(TO)/lib/$(SO_MAJOR)"
	$(Q)ln -sf $(SO_MAJOR) "$(TO)/lib/$(SO)"
	$(Q)install -m 755 $(BUILD)/tally-diff "$(TO)/bin/tally-diff"
	$(Q)install -m 644 docs/man/tally-diff.1 "$(TO)/share/man/man1/tally-diff.1"
	$(Q)sed -e 's#@PREFIX@#$(subst &,\&,$(PREFIX))#' -e 's#@VERSION@#$(VERSION)#' -e 's#@JEMALLOC@#$(if $(filter 1,$(JEMALLOC)),$(LINK_JEMALLOC))#' \
	    -e 's#@BLIS@#$(if $(filter 1,$(BLIS)),-lblis)#' tally.pc.in > "$(BUILD)/installed.pc"
	$(Q)install -m 644 "$(BUILD)/installed.pc" "$(TO)/lib/pkgconfig/tally.pc"
	@echo "installed in $(TO); if programs do not find $(SO_MAJOR): ldconfig, or LD_LIBRARY_PATH=$(TO)/lib"

uninstall:
	$(Q)if [ -d "$(TO)" ]; then cd "$(TO)" && rm -f $(INSTALLED) && \
	    for d in $(sort $(dir $(INSTALLED))); do rmdir -p $$d 2>/dev/null || :; done; fi

installed: $(BUILD)/libtally.a $(BUILD)/libtally_group.a $(BUILD)/$(SO) $(BUILD)/tally-diff
	+@tests/install.sh $(BUILD)

clean:
	rm -rf $(BUILD)

-include $(OBJ:.o=.d) $(BUILD)/nn/face.face.d $(READ:%.c=$(BUILD)/%.d) $(COUNTED:.o=.d) $(HOOKED:.o=.d) $(TESTOBJ:.o=.d) $(BENCHOBJ:.o=.d) $(patsubst examples/%.c,$(BUILD)/examples/%.d,$(wildcard examples/*.c examples/course/*.c)) \
         $(GROUP:.o=.d) $(BUILD)/tests/grouped.d $(BUILD)/tests/allreduce.d $(BUILD)/tests/gradcheck.d $(BUILD)/tests/exhaustive.d $(BUILD)/tests/accuracy.d
