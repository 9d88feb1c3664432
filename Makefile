# Two commands for people: `make run` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: run docs fuzz test test-safe test-slow test-gpu test-ptx test-machines test-aarch64 test-matrix wheels test-wheels hashes bench race mutants lint clean

# Kernels are compiled at their first call: what begins within 20 seconds of processor time, so that all of it, the
# environment too, takes less than a minute. `pullback demo` runs every row.
run: $(VENV)/.core
	$(BIN)/pullback demo --within 20

# The documentation, warnings as errors: docs/_build/html/index.html.
docs: $(VENV)/.all
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

test: lint $(VENV)/.warm
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu and not ptx"
	$(BIN)/pullback fuzz --cases 10000 --seed 20 --jobs 2

# The same suite without native shortcuts (docs/environment.md).
test-safe: $(VENV)/.warm
	PULLBACK_SAFE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu and not ptx"

# Random calls with a fixed seed: `make fuzz MINUTES=30 SEED=7` for more.
MINUTES ?= 2
SEED    ?= 20
fuzz: $(VENV)/.warm
	$(BIN)/pullback fuzz --minutes $(MINUTES) --seed $(SEED) --jobs 2

# Kernels are compiled ahead, on all cores: otherwise two test processes compile the same one twice.
$(VENV)/.warm: $(VENV)/.all $(shell find src/pullback -name '*.py')
	$(BIN)/pullback warm
	touch $@

test-slow: $(VENV)/.all
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# Fails where all is skipped: without a GPU that torch can use, nothing was tested.
test-gpu: $(VENV)/.all
	$(BIN)/python -m pullback gpu-check --write $(VENV)/gpu-check.md
	$(BIN)/python -m pytest -n 4 --dist worksteal -m gpu

# The laws on what Triton compiles for sm_80, sm_90 and sm_100, executed by the emulator: no GPU needed.
test-ptx: $(VENV)/.all
	$(BIN)/python -m pytest -n 2 --dist worksteal -m ptx

# The table of hashes, in full, compiled for processors with SSE4.2, AVX2 and AVX-512.
test-machines: $(VENV)/.all
	for cpu in nehalem haswell skylake-avx512; do \
	    $(BIN)/python -m pullback.verify.hashes --cpu $$cpu || exit 1; \
	done

# The same on aarch64, emulated: needs debootstrap and qemu-user-static, root and a network.
test-aarch64: $(VENV)/.warm
	$(BIN)/python tools/aarch64.py $(ROWS)

# Core tests with the oldest and the newest versions that pyproject.toml admits: PYTHONS='python3.12 python3.13' for
# other interpreters, EXTRAS='cli jax torch gpu' for more than the core.
PYTHONS ?= $(PYTHON)
EXTRAS  ?= cli
test-matrix:
	$(PYTHON) tools/matrix.py $(PYTHONS:%=--python %) $(EXTRAS:%=--extra %)

# The pure wheel, and those of Linux that carry their kernels compiled. Takes about three times as long as `pullback warm`;
# stopped, it goes on where it was. REPOSITORY=URL puts links into the metadata.
WHEELS     ?=
REPOSITORY ?=
wheels: $(VENV)/.all
	$(BIN)/python -m pip install --quiet ziglang==0.17.0 twine
	$(BIN)/python tools/wheels.py dist --objects build/aot $(if $(REPOSITORY),--repository $(REPOSITORY)) $(WHEELS)
	$(BIN)/python -m twine check --strict dist/*.whl

# This machine's wheel in an environment without Numba: first calls, and bits by the table of hashes.
test-wheels:
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet dist/pullback-*-manylinux*$(shell uname -m).whl
	build/wheel/bin/python tools/first_calls.py
	build/wheel/bin/python -m pullback.verify.hashes

# After a kernel's bits or the cases have changed: the table of hashes anew.
hashes: $(VENV)/.warm
	$(BIN)/python -m pullback.verify.hashes --write

# The full table of this machine: leave it alone meanwhile.
bench: $(VENV)/.all
	$(BIN)/pullback bench --save benchmarks/results.json
	$(BIN)/pullback report benchmarks/results.json --out report.html --pictures benchmarks

# This tree against a commit, row by row: make race BASE=HEAD~1 ROWS='cumsum|lerp'
ROWS   ?=
FLOORS ?= --floor 0.95 --mean-floor 0.98
race: $(VENV)/.all
	$(BIN)/pullback race $(BASE) --rows '$(ROWS)' $(FLOORS)

# Plants faults, one at a time, in a copy of the tree: is every one of them seen? About an hour.
MUTANTS ?=
mutants: $(VENV)/.warm
	PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANTS)

lint: $(VENV)/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e ".[cli]"
	touch $@

# torch is pinned: another spelling pulls gigabytes of GPU libraries
$(VENV)/.all: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -e ".[torch,jax,gpu,bench,docs,dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist
