# MindStream. `make help` lists everything.
SHELL := /bin/bash -o pipefail
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := PIP_PROGRESS_BAR=off $(BIN)/pip --disable-pip-version-check
# What pip says, as one line that moves; its errors in full.
SHOW_PIP := awk '/^Collecting|^Obtaining/ {if (++n % 10 == 0) {printf "\r  %d packages looked up", n; fflush()}} /^Installing collected/ {print "\n  installing them ..."; fflush()} /^ERROR|error:/ {print "\n" $$0; fflush()}'
STAMP  := $(VENV)/.installed
MEMBERS := libs/common services/ingest services/cleaning services/tokenizer services/writer services/trainer libs/cli
CORPUS ?=
DOMAIN ?= own

.DEFAULT_GOAL := help
.PHONY: help setup setup-parity run test soak bench-dedup bench-data check format schemas clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo
	@echo "  make run CORPUS=/path/to/texts DOMAIN=finance    the demonstration on your own folder"

setup: $(STAMP) ## create .venv and install the pinned packages (once; again when a pin changes)

$(STAMP): constraints.txt requirements-dev.txt $(addsuffix /pyproject.toml,$(MEMBERS))
	@command -v $(PYTHON) >/dev/null || { echo "MindStream needs Python 3.11: '$(PYTHON)' was not found. Install it, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "MindStream needs Python 3.11 (MindSpore 2.9 ships wheels for it); $(PYTHON) is $$($(PYTHON) --version). Name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) (about 3.3 GB, a few minutes) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt -r requirements-dev.txt $(addprefix -e ,$(filter-out libs/cli,$(MEMBERS))) -e 'libs/cli[local]' 2>&1 | $(SHOW_PIP)
	@touch $@
	@echo "Ready: $(BIN)/mindstream --help"

setup-parity: $(STAMP) .venv-parity/.installed ## an environment with torch and transformers, for the comparison with Hugging Face

.venv-parity/.installed: requirements-parity.txt
	@echo "Setting up .venv-parity (torch, transformers) ..."
	@test -x .venv-parity/bin/python || $(PYTHON) -m venv .venv-parity
	@PIP_PROGRESS_BAR=off .venv-parity/bin/pip --disable-pip-version-check install -r requirements-parity.txt 2>&1 | $(SHOW_PIP)
	@touch $@

run: setup ## the demonstration: servers, five services, a base model, domain text, a checkpoint
	@$(BIN)/mindstream demo $(if $(CORPUS),--corpus '$(CORPUS)') --domain '$(DOMAIN)'

test: setup setup-parity ## every test, with the real servers (within 15 minutes on 2 cores)
	@$(BIN)/python -m pytest -q -m "not soak"

soak: setup setup-parity ## the long tests
	@$(BIN)/python -m pytest -q -m soak --timeout 3600

bench-dedup: setup ## near duplicates: precision, recall, speed and memory of the claims (a minute)
	@$(BIN)/python tests/bench/dedup.py

bench-data: setup ## speed and memory of the data plane, beside datatrove (some minutes, calm machine)
	@$(BIN)/python tests/bench/data.py $(BENCH)

check: setup ## format, lint, types
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . && $(BIN)/mypy

format: setup ## format and fix what can be fixed
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

schemas: setup ## regenerate proto/ from libs/common
	@$(BIN)/python -m mindstream_common.schemas

clean: ## remove the environments and the local state
	@rm -rf $(VENV) .venv-parity build .mypy_cache .ruff_cache .pytest_cache
	@echo "The local stack's state stays in .mindstream/ (mindstream down --erase removes it)."
