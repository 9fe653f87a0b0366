# crun: one plain, non-recursive Makefile.
#
#   FLAVOR   release (default), asan, tsan, cov: flags and folder go together
#   BUILD    where everything is built, build/$(FLAVOR) unless given
#   V=1      show the commands
#   SHARED=1 link shared libraries although archives are installed
#   WITH_CUDA=0  do not compare with the headers of CUDA and NCCL
# CPPFLAGS, CFLAGS and LDFLAGS of the user come last and win.

VERSION := $(shell cat VERSION)
SOVERSION := 0
FLAVOR ?= release
BUILD ?= build/$(FLAVOR)
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
PKG_CONFIG ?= pkg-config
OBJCOPY ?= objcopy
CLANG_FORMAT ?= clang-format

FLAGS_release := -O2
FLAGS_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all \
	-fno-omit-frame-pointer
FLAGS_tsan := -O1 -fsanitize=thread -fno-omit-frame-pointer
FLAGS_cov := -O0 --coverage
ifeq ($(FLAGS_$(FLAVOR)),)
$(error FLAVOR=$(FLAVOR) is unknown; it is one of release asan tsan cov)
endif
ifneq ($(words $(BUILD)),1)
$(error BUILD='$(BUILD)' holds a blank, which make cannot handle)
endif

# Libraries are looked up late (only when something is compiled), so that
# `make help` and the set-up work before they are installed.
pkg = $(or $(shell $(PKG_CONFIG) --$(1) $(2) && echo ' '),$(error $(2) is \
	not found by $(PKG_CONFIG): run scripts/setup))
# Archives are preferred where they are installed: without shared libraries to
# load and to copy for each fork crun starts faster, and it is one file that
# other machines can be given.
archive = $(if $(SHARED),,$(firstword $(filter /%,$(foreach name,$(1),$(shell \
	$(CC) -print-file-name=$(name))))))
UV_CFLAGS = $(call pkg,cflags,libuv)
UV_LIBS = $(or $(call archive,libuv.a libuv_a.a),$(call pkg,libs,libuv))
YAML_CFLAGS = $(call pkg,cflags,yaml-0.1)
YAML_LIBS = $(or $(call archive,libyaml.a),$(call pkg,libs,yaml-0.1))
JSON_CFLAGS = $(call pkg,cflags,jansson)
JSON_LIBS = $(or $(call archive,libjansson.a),$(call pkg,libs,jansson))
# The agent's and the command line's; libcollective needs none.
CRUN_CFLAGS = $(UV_CFLAGS) $(YAML_CFLAGS) $(JSON_CFLAGS)
CRUN_LIBS = $(UV_LIBS) $(YAML_LIBS) $(JSON_LIBS) -ldl -lrt
CHECK_LIBS = $(call pkg,libs,check)

ALL_CPPFLAGS = -D_GNU_SOURCE -I. -Iworker/include \
	-DCRUN_VERSION='"$(VERSION)"' $(CPPFLAGS)
ALL_CFLAGS = -std=gnu11 -g -fPIC -fvisibility=hidden -pthread \
	-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
	-Wpointer-arith -Wundef $(FLAGS_$(FLAVOR)) $(CFLAGS) $(NO_LTO) \
	$(NO_FMA)
ALL_LDFLAGS = -pthread $(filter -fsanitize% --coverage,$(FLAGS_$(FLAVOR))) \
	$(LDFLAGS)

# Sources by wildcard: a new file in a folder needs no change here. What
# libcollective takes from rendezvous/ must not need libuv.
BASE_SRCS := $(wildcard rendezvous/base/*.c)
RDZV_SRCS := $(wildcard rendezvous/*.c)
RDZV_WORKER_SRCS := $(filter-out %_uv.c,$(RDZV_SRCS))
AGENT_SRCS := $(wildcard agent/*.c)
WORKER_SRCS := $(wildcard worker/*.c)
UNIT_SRCS := $(wildcard tests/unit/test_*.c)
FUZZED_AGENT_SRCS := agent/error_file.c agent/plain_text.c
FUZZ_SRCS := $(wildcard tests/fuzz/fuzz_*.c)
HELPER_SRCS := $(wildcard tests/e2e/helpers/*.c)
EXAMPLE_SRCS := $(wildcard docs/examples/*.c)
PROGRAMS := crun crund coll_tune
PROGRAM_SRCS := $(PROGRAMS:%=cmd/%.c)
CMD_SRCS := $(filter-out $(PROGRAM_SRCS),$(wildcard cmd/*.c))
INTEROP_SRCS := $(wildcard tests/interop/*.c)
FAKE_SRCS := $(wildcard tests/fakes/*.c)
GPU_CHECK_SRCS := $(wildcard tests/gpu/gpu_*.c)
SIM_SRCS := $(wildcard tests/sim/*.c)
# A test compares our declarations of CUDA and NCCL with NVIDIA's, and loads the
# libraries, if they are found; WITH_CUDA=0: even then it does not. Nothing else
# is built with them.
WITH_CUDA ?= 1
GPU_HOMES := $(if $(filter-out 0,$(WITH_CUDA)),$(CUDA_HOME) $(NCCL_HOME) \
	$(wildcard /usr/local/cuda) \
	$(lastword $(sort $(wildcard /usr/local/cuda-*))) /usr/local /usr)
GPU_INCLUDES := $(wildcard $(GPU_HOMES:%=%/include))
gpu_library = $(firstword $(wildcard $(foreach home,$(GPU_HOMES),\
	$(home)/lib64/$(1) $(home)/lib/$(1))))
GPU_HEADERS_MISSING := $(if $(filter 0,$(WITH_CUDA)),WITH_CUDA=0,$(foreach \
	header,cuda.h nccl.h cuda_runtime.h,$(if $(wildcard \
	$(GPU_INCLUDES:%=%/$(header))),,no $(header) in CUDA_HOME or NCCL_HOME)))
GPU_CPPFLAGS := $(if $(strip $(GPU_HEADERS_MISSING)),\
	-DCOLL_GPU_HEADERS_MISSING='"$(strip $(GPU_HEADERS_MISSING))"',\
	-DCOLL_GPU_HEADERS -DCOLL_GPU_NCCL='"$(call gpu_library,libnccl.so.2)"' \
	-DCOLL_GPU_STUB='"$(call gpu_library,stubs/libcuda.so)"' \
	$(patsubst %,-isystem %,$(filter-out /usr/include /usr/local/include,\
	$(GPU_INCLUDES))))
# What is simulated, as it is.
SIMULATED_SRCS := rendezvous/membership.c rendezvous/node_protocol.c \
	agent/participant.c agent/lifecycle.c agent/program.c

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
bin = $(patsubst %.c,$(BUILD)/$(2)/%,$(notdir $(1)))

CRUN := $(BUILD)/crun
PROGRAM_BINS := $(PROGRAMS:%=$(BUILD)/%)
LIB_A := $(BUILD)/libcollective.a
LIB_SO := $(BUILD)/libcollective.so.$(VERSION)
UNIT_BINS := $(call bin,$(UNIT_SRCS),tests)
FUZZ_BINS := $(call bin,$(FUZZ_SRCS),fuzz)
HELPER_BINS := $(call bin,$(HELPER_SRCS),helpers)
INTEROP_BINS := $(call bin,$(INTEROP_SRCS),interop)
EXAMPLE_BINS := $(call bin,$(EXAMPLE_SRCS),examples)
SIM := $(BUILD)/sim
GPU_CHECK_BINS := $(call bin,$(GPU_CHECK_SRCS),gpu)
GPU_CHECK_OBJS := $(call obj,$(filter-out $(GPU_CHECK_SRCS),$(wildcard \
	tests/gpu/*.c)))
FAKE_LIBS := $(patsubst tests/fakes/%.c,$(BUILD)/fakes/%.so,$(FAKE_SRCS))
# NCCL's double as of now, and what versions 2.18 and 2.17 had of it.
FAKE_NCCL := $(BUILD)/fake_nccl
FAKE_CUDA_SRCS := $(wildcard tests/fake_nccl/cuda_*.c)
FAKE_NCCL_SRCS := $(wildcard tests/fake_nccl/nccl_*.c)
FAKE_NCCL_LIBS := $(FAKE_NCCL)/libnccl.so.2 $(FAKE_NCCL)/2.18/libnccl.so.2 \
	$(FAKE_NCCL)/2.17/libnccl.so.2
FAKE_LIBS += $(FAKE_NCCL)/libcuda.so.1 $(FAKE_NCCL_LIBS)

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-7s %s\n' $(1) $(2))

.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:

.PHONY: all
all: $(PROGRAM_BINS) lib examples ## build the programs, libcollective, examples

.PHONY: lib
lib: $(LIB_A) $(LIB_SO)

.PHONY: examples
examples: $(EXAMPLE_BINS)

# Other flags than the last time: everything is compiled again.
FLAGS_FILE := $(BUILD)/flags
FLAGS_NOW = $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS)
.PHONY: force
force:
$(FLAGS_FILE) $(BUILD)/gpu_flags: force
	@mkdir -p $(@D)
	@echo '$(subst ','\'',$(FLAGS_NOW))' | cmp -s - $@ || \
		echo '$(subst ','\'',$(FLAGS_NOW))' >$@

$(BUILD)/obj/%.o: %.c Makefile VERSION $(FLAGS_FILE)
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(EXTRA_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(call obj,$(filter %_uv.c,$(RDZV_SRCS)) $(AGENT_SRCS) $(CMD_SRCS) \
	$(PROGRAM_SRCS) $(UNIT_SRCS)): \
	private EXTRA_CPPFLAGS = $(CRUN_CFLAGS)
$(call obj,tests/unit/test_gpu_headers.c): \
	private EXTRA_CPPFLAGS = $(CRUN_CFLAGS) $(GPU_CPPFLAGS)
$(call obj,tests/unit/test_gpu_headers.c): $(BUILD)/gpu_flags
$(BUILD)/gpu_flags: private FLAGS_NOW = $(GPU_CPPFLAGS)
# Reductions must give the same bits with and without fused multiply-add.
$(call obj,$(wildcard worker/kernel*.c)): private NO_FMA := -ffp-contract=off

# That needs real object code: link-time optimisation is for the programs.
$(call obj,$(WORKER_SRCS) $(RDZV_WORKER_SRCS) $(BASE_SRCS)): \
	private NO_LTO := -fno-lto

# libcollective as one object whose hidden symbols are local, so that the
# static library clashes with no name of the program that links it.
$(BUILD)/libcollective.o: $(call obj,$(WORKER_SRCS) $(RDZV_WORKER_SRCS) $(BASE_SRCS))
	$(Q)$(LD) -r -o $@.tmp $^ && $(OBJCOPY) --localize-hidden $@.tmp $@ && \
		rm -f $@.tmp

$(LIB_A): $(BUILD)/libcollective.o
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(LIB_SO): $(call obj,$(WORKER_SRCS) $(RDZV_WORKER_SRCS) $(BASE_SRCS))
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-z,nodelete -Wl,-soname,libcollective.so.$(SOVERSION) \
		-o $@ $^ $(ALL_LDFLAGS) -lm
	$(Q)ln -sf $(notdir $@) $(BUILD)/libcollective.so.$(SOVERSION)
	$(Q)ln -sf $(notdir $@) $(BUILD)/libcollective.so

$(BUILD)/crun: $(call obj,cmd/crun.c $(CMD_SRCS) $(AGENT_SRCS) $(RDZV_SRCS) \
	$(BASE_SRCS))
	$(call say,LD,$@)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(CRUN_LIBS)

# A host of stores needs neither the agent nor libuv.
$(BUILD)/crund: $(call obj,cmd/crund.c cmd/option_table.c cmd/standard_fds.c \
	$(RDZV_WORKER_SRCS) $(BASE_SRCS))
	$(call say,LD,$@)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS)

# A worker like any other, which sees only what a user sees of the library.
$(BUILD)/coll_tune: $(call obj,cmd/coll_tune.c cmd/option_table.c $(BASE_SRCS)) \
	$(LIB_A)
	$(call say,LD,$@)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) -lm

# Examples see only what a user sees: the public header and the library.
$(BUILD)/examples/%: docs/examples/%.c $(LIB_A) worker/include/collective.h
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -Iworker/include $(CPPFLAGS) -std=gnu11 -g -Wall -Wextra \
		$(FLAGS_$(FLAVOR)) $(CFLAGS) -o $@ $< $(LIB_A) -pthread \
		$(ALL_LDFLAGS) $(EXAMPLE_LIBS) -lm
$(BUILD)/examples/train_fashion: docs/examples/fashion.h
$(BUILD)/examples/train_fashion: private EXAMPLE_LIBS = -lz -lblas

# Only where somebody asks for it, since it takes CUDA's compiler. The kernels
# are made for every major kind of GPU that the compiler knows, so that what is
# built on one machine can be carried to another.
NVCC ?= $(firstword $(wildcard $(GPU_HOMES:%=%/bin/nvcc)) \
	$(shell command -v nvcc))
NVCCFLAGS ?= -arch=all-major
GPU_EXAMPLE := $(BUILD)/examples/train_fashion_cuda
$(GPU_EXAMPLE): docs/examples/train_fashion_cuda.cu docs/examples/fashion.h \
	$(LIB_A) $(wildcard worker/include/*.h)
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -O2 $(NVCCFLAGS) -Iworker/include -Xcompiler -Wall,-Wextra \
		-o $@ $< $(LIB_A) -Xlinker -rpath,$(abspath $(dir \
		$(NVCC))../lib64) -lcublas -lz

# What a real GPU is checked with, or the doubles where there is none.
$(BUILD)/gpu/%: $(BUILD)/obj/tests/gpu/%.o $(GPU_CHECK_OBJS) \
	$(call obj,$(WORKER_SRCS) $(RDZV_WORKER_SRCS) $(BASE_SRCS))
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) -ldl -lm

INTERNAL_OBJS = $(call obj,$(AGENT_SRCS) $(RDZV_SRCS) $(BASE_SRCS) \
	$(WORKER_SRCS) $(CMD_SRCS))

$(BUILD)/tests/%: $(BUILD)/obj/tests/unit/%.o $(INTERNAL_OBJS)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(CHECK_LIBS) $(CRUN_LIBS) -lm

# Helpers are the programs that e2e tests run as workers.
$(BUILD)/helpers/%: tests/e2e/helpers/%.c $(LIB_A) worker/include/collective.h
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -D_GNU_SOURCE -Iworker/include $(CPPFLAGS) -std=gnu11 -g -Wall \
		-Wextra $(FLAGS_$(FLAVOR)) $(CFLAGS) -o $@ $< $(LIB_A) -pthread \
		$(ALL_LDFLAGS) -lm

# What the peers of interop tests are run against: internals and all.
$(BUILD)/interop/%: $(BUILD)/obj/tests/interop/%.o $(INTERNAL_OBJS)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(CRUN_LIBS) -lm

# One thread, a virtual clock, no sockets: see tests/sim/sim.h.
$(SIM): $(call obj,$(SIM_SRCS) $(SIMULATED_SRCS) $(BASE_SRCS))
	$(call say,LD,$@)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS)

$(BUILD)/fakes/%.so: tests/fakes/%.c
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -fPIC -std=gnu11 -Wall -Wextra -o $@ $<

# With the flags of the flavour, so that sanitizers see what goes on in them.
# The double of NCCL is linked to that of the driver, by the same name as real.
$(FAKE_NCCL)/libcuda.so.1: $(call obj,$(FAKE_CUDA_SRCS))
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) -o $@ $^ $(ALL_LDFLAGS)

$(FAKE_NCCL)/2.18/libnccl.so.2: private SYMBOLS := -DFAKE_NCCL_SYMBOLS=21803
$(FAKE_NCCL)/2.17/libnccl.so.2: private SYMBOLS := -DFAKE_NCCL_SYMBOLS=21701
$(FAKE_NCCL_LIBS): $(FAKE_NCCL_SRCS) tests/fake_nccl/nccl_fake.h \
	worker/nccl_api.h worker/cuda_api.h $(call obj,worker/nccl_config.c) \
	$(FAKE_NCCL)/libcuda.so.1 Makefile $(FLAGS_FILE)
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(SYMBOLS) $(ALL_CFLAGS) -shared \
		-Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN:$$ORIGIN/..' -o $@ \
		$(filter %.c %.o %.so.1,$^) $(ALL_LDFLAGS) -lm

# Without libFuzzer a fuzz target is linked to a driver that replays a corpus.
$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/obj/tests/fuzz/replay.o \
	$(filter-out $(FUZZ_BINS:$(BUILD)/fuzz/%=$(BUILD)/obj/tests/fuzz/%.o) \
	$(BUILD)/obj/tests/fuzz/replay.o,$(call obj,$(wildcard tests/fuzz/*.c))) \
	$(call obj,$(FUZZED_AGENT_SRCS) $(WORKER_SRCS) $(RDZV_WORKER_SRCS) \
	$(BASE_SRCS))
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $^ $(ALL_LDFLAGS) $(JSON_LIBS) -ldl -lm

.PHONY: setup
setup: ## install what a bare Debian or Ubuntu lacks (root or sudo)
	@scripts/setup

.PHONY: demo
demo: setup ## set up, build, train on Fashion-MNIST with two processes
	@$(MAKE) --no-print-directory all
	$(CRUN) --nproc_per_node=2 $(BUILD)/examples/train_fashion

.PHONY: test
test: setup ## set up, build, run every test
	@$(MAKE) --no-print-directory check

.PHONY: check-build
check-build: all $(UNIT_BINS) $(HELPER_BINS) $(FUZZ_BINS) $(FAKE_LIBS) $(SIM) \
	$(GPU_CHECK_BINS)

.PHONY: check
check: check-build ## the tests without the set-up; TESTS="name ..." chooses
	@BUILD=$(BUILD) FLAVOR=$(FLAVOR) tests/run $(TESTS)

.PHONY: gpu
gpu: all $(GPU_CHECK_BINS) ## build what scripts/gpu-check runs on a machine with a GPU
ifeq ($(NVCC),)
	@echo "make gpu: no nvcc in CUDA_HOME/bin, /usr/local/cuda*/bin or PATH;" \
		"without it $(GPU_EXAMPLE) cannot be built (set CUDA_HOME or NVCC)" >&2
	@exit 1
else
	@$(MAKE) --no-print-directory $(GPU_EXAMPLE)
endif

.PHONY: chaos
chaos: all ## train while nodes die and cables are cut; SEEDS, DURATION
	@BUILD=$(BUILD) tests/e2e/chaos

.PHONY: asan
asan: ## the same tests with AddressSanitizer and UBSan
	@$(MAKE) --no-print-directory FLAVOR=asan BUILD=build/asan check

.PHONY: tsan
tsan: ## the same tests with ThreadSanitizer
	@$(MAKE) --no-print-directory FLAVOR=tsan BUILD=build/tsan check

# A seed that fails prints how to run it again.
SIM_SEEDS ?= 1:200000
.PHONY: sim
sim: $(SIM) ## simulate ten thousand nodes and SIM_SEEDS (1:200000) under faults
	$(SIM) --seed 1 --nodes 10000 --faults none
	$(SIM) --seeds 1:5 --nodes 10000 --faults all --until 60
	$(SIM) --seeds 1:2000 --until 1000
	$(SIM) --seeds $(SIM_SEEDS)

.PHONY: bench
bench: all ## print the benchmark tables (ratios against peers)
	@BUILD=$(BUILD) scripts/bench

.PHONY: bench-coll
bench-coll: all ## print the tables of the collectives alone
	@BUILD=$(BUILD) scripts/bench-coll

.PHONY: interop
interop: all $(INTEROP_BINS) $(HELPER_BINS) ## run real PyTorch against crun, and crun against it
	@BUILD=$(BUILD) scripts/interop

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZ_SECONDS (60) under libFuzzer
	@BUILD=$(BUILD) scripts/fuzz

SOURCES := $(wildcard cmd/*.[ch] agent/*.[ch] rendezvous/*.[ch] \
	rendezvous/base/*.[ch] worker/*.[ch] worker/include/*.h \
	tests/*/*.[ch] tests/e2e/helpers/*.[ch] docs/examples/*.c \
	docs/examples/*.h docs/examples/*.cu)

.PHONY: format
format: ## rewrite the sources with clang-format
	$(Q)$(CLANG_FORMAT) -i $(SOURCES)

.PHONY: format-check
format-check: ## fail if clang-format would change a source
	$(Q)$(CLANG_FORMAT) --dry-run -Werror $(SOURCES)

.PHONY: install
install: all ## install to DESTDIR/PREFIX
	@scripts/install-files install
.PHONY: uninstall
uninstall: ## remove what install put there
	@scripts/install-files uninstall
export VERSION SOVERSION BUILD BINDIR LIBDIR INCLUDEDIR MANDIR PREFIX DESTDIR

.PHONY: clean
clean: ## remove every build folder
	$(Q)rm -rf build $(BUILD)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | \
		awk -F'|' '{printf "%-22s %s\n", $$1, $$2}'
	@echo; sed -n 's/^#   \([A-Z].*\)/  \1/p' Makefile

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
