# Each target does all its own set-up, from nothing but Python >= 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

OLDEST := .venv-oldest
NEWEST := .venv-newest
BASE   ?= HEAD
MINUTES ?= 60
JOBS   ?= 2
LIBRARY := src/globular/jit/lib
SHARED := -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all test-bounds test-gpu test-oldest test-newest attack lint bench speed docs dist test-dist test-fast test-stock kernels wheel clean

demo: $(VENV)/.user
	$(BIN)/globular demo

test: $(VENV)/.dev $(LIBRARY)/index.txt
	$(BIN)/python -m pytest -m "not slow" $(SHARED)

test-all: $(VENV)/.dev $(LIBRARY)/index.txt
	$(BIN)/python -m pytest

# For whoever changes a kernel: passes, their contract, and a fit of each estimator.
test-fast: $(VENV)/.dev $(LIBRARY)/index.txt
	$(BIN)/python -m pytest -m "not slow" $(SHARED) tests/contract tests/passes tests/estimators/test_one_fit.py

# The same passes with kernels compiled by numba's public interface alone.
test-stock: $(VENV)/.dev
	GLOBULAR_JIT=stock $(BIN)/python -m pytest -m "not slow" $(SHARED) tests/contract tests/passes

# The library of kernels for this kind of machine (docs/running.md); needs a C compiler.
kernels: $(VENV)/.dev
	$(BIN)/python -m globular.jit.build

# Tests need no library, they are only slower without one.
$(LIBRARY)/index.txt: | $(VENV)/.dev
	-$(BIN)/python -m globular.jit.build

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -e ".[gpu]"
	$(BIN)/python -m pytest tests/gpu

# Compiled code with its indices checked, in a cache of its own (the key of the cache knows of it).
test-bounds: $(VENV)/.dev
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(abspath $(VENV))/bounds $(BIN)/python -m pytest $(SHARED) \
	tests/passes tests/contract tests/attack

# The oldest versions of everything that are supported, in an environment of their own; PYTHON is a Python 3.11 then.
test-oldest: $(OLDEST)/.test
	NUMBA_CACHE_DIR=$(abspath $(OLDEST))/kernels $(OLDEST)/bin/python -m pytest -m "not slow" $(SHARED)

# The newest of everything that there is today; PYTHON is the newest Python then. `make clean` makes it forget.
test-newest: $(NEWEST)/.test
	NUMBA_CACHE_DIR=$(abspath $(NEWEST))/kernels $(NEWEST)/bin/python -m pytest -m "not slow" $(SHARED)

attack: $(VENV)/.dev
	$(BIN)/python tests/attack/run.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict
	@echo "Open site/index.html in a browser; or, with what you write shown as you save it: $(BIN)/mkdocs serve"

# What is checked out here against BASE (a tag, a branch, a commit): fails where a problem has become 15 % slower.
speed: $(VENV)/.dev
	$(BIN)/python benchmarks/speed.py $(BASE)

# Source archive and wheel, and a fit with the wheel in an environment where there is nothing else.
dist: $(VENV)/.dev
	rm -rf dist build/empty
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet dist/*.whl
	cd build/empty && bin/python -c "import numpy, globular; \
	print(globular.__version__, globular.KMeans(3, random_state=0).fit(numpy.eye(9)).inertia_)"
	cd build/empty && bin/globular --help > /dev/null

# A wheel for this kind of machine that brings the library of kernels; and fits with it in an environment where there is
# nothing else, which do not even import numba.
wheel: kernels
	rm -rf build/empty dist
	$(BIN)/python -m pip install --quiet build
	GLOBULAR_LIBRARY=$(abspath $(LIBRARY)) $(BIN)/python -m build --wheel --outdir dist
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet dist/*-py3-none-*.whl
	cd build/empty && bin/python -c "import sys, numpy, globular; \
	X = numpy.random.default_rng(0).random((20000, 8)); \
	globular.KMeans(8, random_state=0).fit(X); globular.GaussianMixture(3, random_state=0).fit(X); \
	sys.exit('numba' in sys.modules)"

# The tests of the source archive with the wheel, without the sources beside them.
test-dist: dist
	build/empty/bin/python -m pip install --quiet "$$(ls dist/*.whl)[test]"
	tar xzf dist/*.tar.gz -C build/empty --strip-components=1 --exclude='*/src'
	cd build/empty && bin/python -m pytest -m "not slow" $(SHARED)

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/full.py --quick

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("globular needs Python >= 3.11; set PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.user: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e ".[io,plot]"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $@ $(VENV)/.user

$(VENV)/.bench: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e ".[bench]"
	@touch $@ $(VENV)/.user

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	@touch $@ $(VENV)/.user

$(OLDEST)/.test: pyproject.toml tests/oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --constraint tests/oldest.txt -e ".[test]"
	@touch $@

$(NEWEST)/.test: pyproject.toml
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e ".[test]"
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(LIBRARY) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
