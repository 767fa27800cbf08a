# make demo    a few real clips: ingest, stream, report     SRC=folder takes your own videos
# make test    everything the tests need, then all checks and tests
# make check   static checks only        make bench   beside other loaders  make clean
# make test-gpu  on a GPU machine: what needs one, and one table of it

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
PIP_QUIET := --quiet --quiet --disable-pip-version-check
VENV := .venv
BIN := $(VENV)/bin
SRC ?=
ENDPOINT ?=

.PHONY: demo test test-gpu check bench tour clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@BIN=$(BIN) scripts/demo "$(SRC)"

test: check
	$(BIN)/python -m pytest

test-gpu:
	@PYTHON=$(PYTHON) scripts/test-gpu

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# In an environment of its own: torchcodec's wheels want torch's CUDA build, several gigabytes.
bench: | .venv-bench/bin/python
	@.venv-bench/bin/pip install $(PIP_QUIET) --editable . --group bench
	@BIN=.venv-bench/bin scripts/bench $(ENDPOINT)

.venv-bench/bin/python:
	@$(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/pip install $(PIP_QUIET) --upgrade 'pip>=25.1'

# Writes the README's example output anew.
tour: demo
	@BIN=$(BIN) scripts/tour

clean:
	rm -rf $(VENV) .venv-bench .venv-gpu .demo

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("dstream needs Python 3.11 or newer: make PYTHON=python3.11 demo" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)

SOURCES := pyproject.toml $(shell find core cli recipes -name '*.py')

# A development install serves the demo as well, and follows the sources by itself.
$(VENV)/.installed: $(SOURCES) | $(BIN)/python
	@echo 'installing dstream into $(VENV)'
	@test -e $(VENV)/.dev || $(BIN)/pip install $(PIP_QUIET) .
	@touch $@

# `--group` needs pip 25.1.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo 'installing dstream and what its tests need into $(VENV)'
	@$(BIN)/pip install $(PIP_QUIET) --upgrade 'pip>=25.1'
	@$(BIN)/pip install $(PIP_QUIET) --editable . --group dev --group torch-test
	@touch $@ $(VENV)/.installed
