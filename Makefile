# Each target does all its own set-up, from nothing but Python >= 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

OLDEST := .venv-oldest
BASE   ?= HEAD
MINUTES ?= 60
JOBS   ?= 2

.PHONY: demo test test-all test-gpu test-oldest attack lint bench speed docs dist clean

demo: $(VENV)/.user
	$(BIN)/globular demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -e ".[gpu]"
	$(BIN)/python -m pytest tests/gpu

# The oldest versions of everything that are supported, in an environment of their own; PYTHON is a Python 3.11 then.
test-oldest: $(OLDEST)/.test
	NUMBA_CACHE_DIR=$(abspath $(OLDEST))/kernels $(OLDEST)/bin/python -m pytest -m "not slow"

attack: $(VENV)/.dev
	$(BIN)/python tests/attack/run.py --minutes $(MINUTES)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

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

bench: $(VENV)/.bench
	$(BIN)/globular bench --quick

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

clean:
	rm -rf $(VENV) $(OLDEST) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
