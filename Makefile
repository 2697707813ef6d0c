PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PINS ?= --constraint constraints.txt
INSTALL := $(BIN)/python tests/packaging/install.py $(VENV) $(PINS)
INTERPRETERS ?= 3.10 3.11 3.12 3.13
DATA ?= ../shared/data
WORKERS ?= 3
ORDER := $(if $(SEED),--randomly-seed=$(SEED))

export HF_HUB_OFFLINE ?= 1
export ANONYMIZED_TELEMETRY ?= False
unexport PYTHONDONTWRITEBYTECODE  # else every test process, and every program that a test starts, compiles all it imports

.PHONY: help install install-demo loops demo debian test test-fast test-nightly processors check format matrix frameworks floors \
	wheel bench soak docs clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	$(INSTALL) --no-deps llama-index-retrievers-bm25  # a peer in the tests, which asks for an older PyStemmer
	@touch $@ $(VENV)/.demo

$(VENV)/.loops: $(VENV)/.dev $(wildcard voicevault_retrievers/*/*kernels.py) voicevault_retrievers/lexical/windows.py
	$(BIN)/python -m tests.compiled_loops
	@touch $@

loops: $(VENV)/.loops  ## compile the package's loops, which the tests' processes share

install-demo: $(VENV)/.demo  ## set up what the demo needs: onnxruntime and weights, no torch

install: $(VENV)/.dev  ## set up everything, the tools included

demo: install-demo  ## index the sample documents, answer questions, measure
	$(BIN)/voicevault demo

test: install loops  ## run the tests, in three processes and an order drawn anew; SEED=n repeats one
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ORDER)

test-fast: WORKERS = 2  # nothing here waits, so that a third would only import everything once more
test-fast: install loops  ## run the tests of the inner loop: they start nothing, run no model and draw few examples
	TESTS_FAST=1 HYPOTHESIS_PROFILE=inner $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ORDER) \
		-m 'not (browser or program or server or weights or thorough)'

test-nightly: install  ## run the property tests with 25 times as many examples
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/properties tests/oracles \
		tests/engines tests/unit/lexical/test_searches.py tests/unit/dense/test_int8.py tests/unit/display/test_html.py

processors: install  ## run the tests that compute with models' weights as other processors would
	command -v qemu-x86_64 || { apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-user; }
	$(BIN)/python -m tests.processors

debian:  ## install Chromium and PgBouncer from Debian, for the tests that drive them; without them they are skipped
	command -v chromium && command -v pgbouncer || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium pgbouncer; }

check: install  ## lint, types, import floors, spelling, the documents' limits, a test for each capability
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell voicevault_retrievers docs integrations *.md
	$(BIN)/python -m tests.docs.limits
	$(BIN)/python -m tests.capabilities --check

format: install  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

matrix:  ## run the tests on every interpreter found, each in an environment of its own
	@for version in $(INTERPRETERS); do \
		interpreter=$$(ls "$$HOME"/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -n 1); \
		interpreter=$${interpreter:-$$(command -v python$$version || true)}; \
		if [ -z "$$interpreter" ]; then echo "python$$version: not found, skipped"; continue; fi; \
		echo "python$$version: $$interpreter"; \
		$(MAKE) test PYTHON="$$interpreter" VENV=.venv-$$version || exit 1; \
	done

frameworks: install  ## run each framework's tests with its oldest and its newest core
	$(BIN)/python tests/packaging/check_frameworks.py

floors: install  ## run the tests with the oldest packages that pyproject.toml allows; these may warn of what is to come
	$(BIN)/python tests/packaging/tools.py > $(VENV)/tools.txt
	PYTEST_ADDOPTS="-o filterwarnings=default $$PYTEST_ADDOPTS" $(MAKE) test VENV=.venv-floors \
		PINS='--resolution lowest-direct --constraint $(CURDIR)/$(VENV)/tools.txt'

wheel: install  ## build the wheel and use it in fresh environments
	$(BIN)/python tests/packaging/check_wheel.py

bench: bench-lexical bench-quality bench-chunk_headers bench-fusion bench-frame bench-frame_disk bench-sample bench-imports bench-reading bench-converters  ## run every benchmark; each writes tests/benchmarks/results/NAME.json

bench-quality: install  ## retrieval quality: channels, fusions, expansion, tuning, page caps
	for part in quality quality_stores quality_multilingual fusion_ablation quality_expansion quality_tuning quality_pages; do \
		$(BIN)/python -m tests.benchmarks.$$part $(DATA) || exit 1; \
	done
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.diversity

bench-rerank: install  ## reranking and embedding: speed of every backend, what it does to quality; scores are kept
	for part in rerank rerank_depth rerank_quality rerank_abstention abstention_languages embedding loading; do \
		$(BIN)/python -m tests.benchmarks.$$part $(DATA) || exit 1; \
	done

bench-%: install
	$(BIN)/python -m tests.benchmarks.$* $(DATA)

soak: install  ## eight processes read a knowledge base while one writes it, for five minutes; 500 writers are killed
	$(BIN)/python -m tests.benchmarks.soak
	$(BIN)/python -W ignore::DeprecationWarning -m tests.faults.killed --calls

docs: install  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove what was built
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .venv .venv-*
