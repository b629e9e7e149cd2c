# The commands of this project: `make help`. `make demo` and `make test` do all their own set-up, into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_FLAGS ?=
DEMO_DIR ?= kprof-demo
MINUTES ?= 30
SEED ?= 1
JOBS ?= 1
# An optional emulator of gfx942 beside the checkout. Its run-pytest takes the arguments of pytest, and runs as gfx942 machine
# code whatever the tests build for the CPU target.
AMD_EMULATOR ?= ../shared/amd-emulator

# For the tests that compile for GPUs without one, and that look at pages in a browser.
DEBIAN_PACKAGES := clang-19 lld-19 llvm-19 clang-tools-19 libclang-rt-19-dev clang-format-19 \
	libamdhip64-dev rocm-device-libs hipcc chromium chromium-driver cmake ninja-build
# nvcc and its disassembler without a system CUDA; the parts of one compiler have one version.
NVCC_PACKAGES := 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' \
	'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*' 'nvidia-cuda-nvdisasm==13.*' 'nvidia-cuda-cuobjdump==13.*'
# Compiles for NVIDIA and AMD, and interprets, without a GPU.
TRITON := 'triton==3.9.*'

# C++ that people write: no tables of regions, no generated headers.
CPP_FILES = $(shell find kprof cli instrumented_kernels benchmarks tests \( -name '*.h' -o -name '*.hip' -o -name 'plugin.cpp' \) ! -name '*regions.h' \
	| xargs grep -L '^// Generated from')

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.ready ## Record an all-to-all with uneven routing; ends with a trace and a report
	$(BIN)/kprof demo --force -o $(DEMO_DIR)

.PHONY: setup
setup: $(VENV)/.ready-dev ## Set up .venv for development

# Tests spend half of their time waiting: for processes, browsers and hangs. They start hundreds of Pythons, each of which
# would compile all that it imports where it may write no bytecode.
TEST_WORKERS ?= $(shell expr $$(nproc) + 2)

.PHONY: test
test: $(VENV)/.ready-dev ## Run the tests that need no GPU
	@$(MAKE) --no-print-directory -s tell-missing
	PATH="$$PATH:$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages/nvidia/cu13/bin)" PYTHONDONTWRITEBYTECODE= \
		$(BIN)/python -m pytest -m "not gpu" -n $(TEST_WORKERS) --dist worksteal $(PYTEST_FLAGS)

.PHONY: test-fast
test-fast: $(VENV)/.ready-dev ## Run the unit tests that take a moment: under two minutes
	$(BIN)/python -m pytest -m "not slow" -n auto -q $(PYTEST_FLAGS) tests/unit

AMD_TESTS := $(BIN)/python tests/amd/weak.py --emulator "$(AMD_EMULATOR)"

.PHONY: amd-test
amd-test: $(VENV)/.ready-dev ## Run the kernels' tests as gfx942 machine code, given an emulator (AMD_EMULATOR)
	@if [ ! -x "$(AMD_EMULATOR)/weak/run-pytest" ] && [ -x "$(AMD_EMULATOR)/run-pytest" ]; then \
		KPROF_TEST_WARP_WIDTH=64 PYTHON=$(BIN)/python "$(AMD_EMULATOR)/run-pytest" -m amd $(PYTEST_FLAGS) tests/kernels; \
	else $(AMD_TESTS) test; fi

.PHONY: amd-soak
amd-soak: $(VENV)/.ready-dev ## Repeat them with one seed after another, for MINUTES=30
	$(AMD_TESTS) --minutes $(MINUTES) soak

.PHONY: amd-faults
amd-faults: $(VENV)/.ready-dev ## Plant faults in device code: a test must fail for each. Rewrites benchmarks/results/amd_faults.json
	$(AMD_TESTS) faults

.PHONY: gpu-test
gpu-test: $(VENV)/.ready-dev ## Run the tests that need an NVIDIA or AMD GPU
	$(BIN)/python -m pytest -m gpu -rs $(PYTEST_FLAGS)

.PHONY: lint
lint: $(VENV)/.ready-dev ## Check style, formatting and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	$(BIN)/lint-imports

.PHONY: format
format: $(VENV)/.ready-dev ## Format Python and C++
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP_FILES)

.PHONY: types
types: $(VENV)/.ready-dev ## Check types (mypy --strict)
	$(BIN)/mypy

.PHONY: docs
docs: $(VENV)/.ready-dev ## Build the documentation as a site, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.PHONY: soak
soak: $(VENV)/.ready-dev ## What the tests try a sample of: 200 schedules of each kernel, 1000 examples of most properties, an interruption at every step, every case
	KPROF_TEST_SEEDS=200 KPROF_TEST_STRIDE=1 $(BIN)/python -m pytest -q -n $(JOBS) -k "every_schedule or every_step" $(PYTEST_FLAGS) tests/kernels
	KPROF_TEST_EVERY=1 $(BIN)/python -m pytest -q -n $(JOBS) -m "not gpu" $(PYTEST_FLAGS)
	KPROF_TEST_EXAMPLES=1000 $(BIN)/python -m pytest -q -n $(JOBS) -m "hypothesis and not gpu" $(PYTEST_FLAGS) tests/unit

.PHONY: fuzz
fuzz: $(VENV)/.ready-dev ## Damage whatever kprof reads for MINUTES=30 each (SEED=1, JOBS=1): errors are sentences, nothing hangs
	@set -e; for what in captures arenas recordings imports guises wait_lines; do \
		$(BIN)/python tests/fuzz/$$what.py --minutes $(MINUTES) --seed $(SEED) --jobs $(JOBS); done

.PHONY: bench
bench: $(VENV)/.ready-dev ## Run the benchmarks that need no GPU
	@set -e; for name in analysis_scale conclusion_classes draining explanation_accuracy finishing hang_cost host_bound install \
		launch_cost message_clocks planted_hangs; do echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done

.PHONY: native-deps
native-deps: $(VENV)/.ready-dev ## Install, as root on Debian, what compile-only and browser tests need
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		packages="$(DEBIAN_PACKAGES)"; \
		command -v node >/dev/null || packages="$$packages nodejs"; \
		if dpkg -s $$packages >/dev/null 2>&1; then echo "Already installed: $$packages."; else \
			apt-get update -qq; known=; \
			for package in $$packages; do \
				if apt-cache show $$package >/dev/null 2>&1; then known="$$known $$package"; \
				else echo "This distribution has no package $$package: the tests that need it are skipped."; fi; \
			done; \
			echo "Installing with apt-get:$$known."; \
			DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$known >/dev/null; fi; \
	else echo "Skipped: $(DEBIAN_PACKAGES) are installed by this target as root on Debian only."; fi
	@echo "Installing into $(VENV): nvcc 13.0, nvdisasm and cuobjdump (0.3 GB), and Triton 3.9 (0.6 GB)."
	@$(BIN)/python -m pip install -qq $(NVCC_PACKAGES) $(TRITON)

.PHONY: tell-missing
tell-missing:
	@for tool in clang++-19 chromium chromedriver node; do \
		command -v $$tool >/dev/null || echo "$$tool is missing: its tests are skipped; 'make native-deps' installs it as root on Debian."; \
	done
	@command -v nvcc >/dev/null || ls $(VENV)/lib/python3*/site-packages/nvidia/cu13/bin/nvcc >/dev/null 2>&1 || \
		echo "nvcc is missing: its tests are skipped; 'make native-deps' installs it."

.PHONY: clean
clean: ## Remove .venv and what the demo and the tools left
	rm -rf $(VENV) $(DEMO_DIR) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The two environments are one: what only development needs is added on top.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "kprof needs Python 3.10 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
		{ echo "kprof needs a C++17 compiler to build its kernels: apt-get install g++"; exit 1; }
	@echo "Installing into $(VENV): torch 2.13.0 (the ranks are started by its torchrun), and kprof with"
	@echo "duckdb, jinja2, msgspec, numpy, pandas, perfetto, pyarrow, rich, typer and viztracer."
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "Python cannot make a virtual environment: apt-get install python3-venv"; exit 1; }
	@# torch first and alone: any other order may take a build with gigabytes of CUDA libraries.
	@$(BIN)/python -m pip install -qq -c constraints.txt torch
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[torch,view]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "Installing into $(VENV) for development: axe-core, clang-format, hypothesis, import-linter, mkdocs, mypy, pandas-stubs, plotly, pytest, ruff, selenium."
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[torch,view,dev]'
	@touch $@
