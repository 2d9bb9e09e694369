# lanewise: `make demo` shows it, `make test` proves it. Paths stay relative: the folder's own
# path may hold spaces.
PYTHON ?= python3
VENV_PYTHON := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-fast check format bench docs

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup:  ## make .venv and install everything; does nothing when up to date
	@$(PYTHON) tools/setup.py

demo: setup  ## one chat, one picture to video, on a CPU, with everything included
	@$(VENV_PYTHON) demo/run.py

serve: setup  ## the service with your settings and models, until Ctrl-C
	@$(VENV_PYTHON) -m service.cli serve

# Triton decides at import whether kernels are interpreted, so the switch is set before Python starts.
test: setup  ## the whole suite that needs no GPU
	@TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(VENV_PYTHON) -m pytest -n 2 --dist loadgroup -m "not gpu"

test-fast: setup  ## the suite without the tests that are marked slow
	@TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(VENV_PYTHON) -m pytest -n 2 --dist loadgroup \
		-m "not gpu and not slow"

check: setup  ## format, lint, types, import contracts, generated docs; prints the longest files
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m pyright
	@.venv/bin/lint-imports
	@$(VENV_PYTHON) tools/generated_docs.py --check
	@$(VENV_PYTHON) tools/longest.py

format: setup  ## put the code into its format
	@$(VENV_PYTHON) -m ruff format .
	@$(VENV_PYTHON) -m ruff check --fix .

bench: setup  ## every benchmark suite; tables, JSON and PNG
	@$(VENV_PYTHON) -m benchmarks

docs: setup  ## write the generated pages anew
	@$(VENV_PYTHON) tools/generated_docs.py
