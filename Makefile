# Each target does all its own set-up, from nothing but Python >= 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-all test-gpu lint bench docs clean

demo: $(VENV)/.user
	$(BIN)/globular demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow"

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -e ".[gpu]"
	$(BIN)/python -m pytest tests/gpu

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

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

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
