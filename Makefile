# Everything that people and CI run. Each target sets up its own environment from python3 >= 3.11 alone.
#
#   make demo      GPT-2 small planned for an H200 at five budgets
#   make test      the tests (PYTHON=python3.12 VENV=.venv312 for another Python)
#   make slow      tests that take minutes
#   make lint      format, lint and types
#   make tables    the tables of README.md from benchmarks/results
#
# SYSTEM=1 uses the packages that are installed already (a machine with a GPU and no network).

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
EXTRAS := gpu-targets,test
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export JAX_PLATFORMS ?= cpu

.PHONY: demo test slow lint tables clean

demo: $(STAMP)
	$(BIN)/jaxckpt demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS)

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.linters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

tables: $(STAMP)
	$(BIN)/python -m benchmarks.tables

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "jaxckpt needs python3 >= 3.11; got $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
ifdef SYSTEM
	$(PYTHON) -m venv --system-site-packages $(VENV)
	$(BIN)/python -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "jaxckpt.pth").write_text("$(CURDIR)\n")'
	printf '#!/bin/sh\nexec "%s" -m jaxckpt "$$@"\n' "$(CURDIR)/$(BIN)/python" > $(BIN)/jaxckpt
	chmod +x $(BIN)/jaxckpt
else
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
endif
	@touch $@

$(VENV)/.linters: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

clean:
	rm -rf .venv* .pytest_cache .ruff_cache .hypothesis dist build
