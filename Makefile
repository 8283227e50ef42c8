# Needs Python 3.11-3.13 with pip, and PyPI as pip is set up to reach it. Nothing else.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(FITS)' 2>/dev/null && echo $$p && break; done)
UV := uv==0.13.9
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--no-emit-index-url --no-header --no-annotate pyproject.toml --group model
SOURCES := actors gateway pipelines cluster tests benchmarks examples src/turnwire/__init__.py
CLIENTS := build/clients
ARGS ?=

.PHONY: help run test lint unit model system clients test-clients bench lock wheel clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

run: $(VENV)/run.stamp ## install what is missing and start a server: make run ARGS="--port 9000"
	@exec $(BIN)/turnwire serve $(ARGS)

test: lint ## all checks: lint, types, tests without and with a real Ray
	@$(MAKE) --no-print-directory -j2 --output-sync=target unit model clients
	@$(MAKE) --no-print-directory system
	@$(MAKE) --no-print-directory test-clients

lint: $(VENV)/dev.stamp ## ruff and mypy
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

unit: $(VENV)/dev.stamp ## the tests that need neither Ray nor a model
	$(BIN)/pytest -q tests/unit -m "not slow" $(ARGS)

model: $(VENV)/dev.stamp ## the tests of the engine with the real model, and long searches
	$(BIN)/pytest -q tests/unit -m slow $(ARGS)

system: $(VENV)/dev.stamp ## the tests that start a Ray or a whole server
	$(BIN)/pytest -q tests --ignore tests/unit --ignore tests/clients $(ARGS)

clients: $(CLIENTS)/npm/stamp $(CLIENTS)/agents/stamp

test-clients: $(VENV)/dev.stamp clients ## Codex and the SDKs, unmodified
	$(BIN)/pytest -q tests/clients $(ARGS)

bench: $(VENV)/dev.stamp ## every benchmark, one JSON line each
	@for bench in $$(grep -l "^def main" benchmarks/*.py); do $(BIN)/python $$bench $(ARGS); done

lock: $(BIN)/python ## pin all dependencies anew, for every Python we support
	$(BIN)/python -m pip install --quiet $(UV)
	$(LOCK) --upgrade -o requirements.lock
	$(LOCK) --upgrade --group dev --extra toxicity -c requirements.lock -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-emit-index-url \
		--no-header --no-annotate tests/clients/agents.in -o tests/clients/agents.lock

wheel: $(VENV)/dev.stamp ## dist/turnwire-*.whl
	$(BIN)/python -m build --wheel --quiet

clean: ## remove the environment and all that was built; data stays
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'No Python 3.11-3.13 found: make PYTHON=/path/to/python' >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $(VENV); \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

# uv is only faster than pip: it is told pip's index and certificates, and pip is the way out.
$(VENV)/%.stamp: pyproject.toml requirements.lock requirements-dev.lock | $(BIN)/python
	@echo "Installing $(LOCK_$*)"
	@index=$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null || true)}; \
	export UV_SYSTEM_CERTS=1 UV_HTTP_TIMEOUT=120 $${index:+UV_DEFAULT_INDEX=$$index}; \
	{ $(BIN)/python -m pip install --quiet $(UV) && \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -r $(LOCK_$*) -e .; } || \
	$(BIN)/python -m pip install --no-deps -r $(LOCK_$*) -e .
	@touch $@

# No lock file: it would name the registry it was made with. The versions are exact.
$(CLIENTS)/npm/stamp: tests/clients/npm/package.json
	@echo "Installing the npm clients"
	@mkdir -p $(@D) && cp $< $(@D)
	@cd $(@D) && npm install --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

# An environment of its own: the Agents SDK wants an older websockets than we use.
$(CLIENTS)/agents/stamp: tests/clients/agents.lock | $(VENV)/dev.stamp
	@echo "Installing the Agents SDK"
	@rm -rf $(@D) && $(BIN)/python -m venv --without-pip $(@D)
	@$(BIN)/python -m pip --python $(@D)/bin/python install -qq --no-deps -r $<
	@touch $@

LOCK_run := requirements.lock
LOCK_dev := requirements-dev.lock
