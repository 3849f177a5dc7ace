# Everything that people and CI run. Each target sets up its own environment from python3 >= 3.11 alone.
#
#   make demo      GPT-2 small planned for an H200 at five budgets
#   make test      the tests; ARGS="tests/ir -x" runs some of them
#   make slow      tests that take minutes
#   make lint      format, lint and types
#   make tables    the tables of README.md from benchmarks/results
#   make docs      the documentation site in build/site; a broken link or a missing docstring is an error
#   make release-check  wheel and sdist, each installed into an empty environment with both ends of the Pythons
#   make notebooks the notebooks executed, their outputs kept; ARGS=01_quickstart runs some of them
#   make clean     removes the environments and what tools leave behind
#
# Another Python:  make test PYTHON=python3.12 VENV=.venv312
# A machine with jax, perhaps a GPU, and no network:  make test SYSTEM=1 VENV=.venv-system
# uses the packages that PYTHON has and installs none. JAX_PLATFORMS=cuda runs the tests on that GPU.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
EXTRAS := gpu-targets,test,docs
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One file of tests stays in one process: what its fixtures compiled is compiled once. tests/conftest.py orders them.
PARALLEL = $(shell $(BIN)/python -c 'import xdist' 2>/dev/null && printf '%s' '-n $(WORKERS) --dist loadfile --no-loadscope-reorder')

export JAX_PLATFORMS ?= cpu

.PHONY: demo test slow lint tables docs notebooks release-check clean

demo: $(STAMP)
	$(BIN)/jaxckpt demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(VENV)/.linters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy jaxckpt tests/typed_program.py

tables: $(STAMP)
	$(BIN)/python -m benchmarks.tables

# Not with --quiet: mkdocs then counts no warnings, and --strict never fails. The variable silences an advertisement.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml
	@echo "Open build/site/index.html in a browser"

notebooks: $(STAMP)
	$(BIN)/python -m benchmarks.notebooks $(ARGS)

release-check:
	.ci/release-check

$(STAMP): pyproject.toml
	@$(PYTHON) -c '' 2>/dev/null || \
	  { echo "jaxckpt needs python3 >= 3.11; $(PYTHON) does not run. Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "jaxckpt needs python3 >= 3.11; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv' $(if $(SYSTEM),,&& $(PYTHON) -c 'import ensurepip') 2>/dev/null || \
	  { echo "jaxckpt needs venv and pip, which $(PYTHON) lacks. Try: apt-get install python3-venv" >&2; exit 1; }
ifdef SYSTEM
	$(PYTHON) -m venv --system-site-packages --without-pip $(VENV)
	@# Where PYTHON is itself of a virtual environment, --system-site-packages passes over that one's packages.
	@$(PYTHON) -c 'import site; print(*site.getsitepackages(), sep="\n")' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/system.pth"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable . 2>/dev/null || { \
	  echo "pip cannot build jaxckpt here: it is found by its path"; \
	  echo "$(CURDIR)" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/jaxckpt.pth"; \
	  printf '#!/bin/sh\nexec "$$(dirname "$$0")/python" -m jaxckpt "$$@"\n' > $(BIN)/jaxckpt; \
	  chmod +x $(BIN)/jaxckpt; }
else
	$(PYTHON) -m venv $(VENV)
	@echo "Installing jax, XLA's compiler for GPUs and the tests' libraries into $(VENV), once; about 1 GB"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]"
endif
	@touch $@

$(VENV)/.linters: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

# Only environments with our stamp: one of the user's own is not ours to remove.
clean:
	rm -rf $(dir $(wildcard $(STAMP) .venv*/.installed)) dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find jaxckpt tests -name __pycache__ -prune -exec rm -rf {} +
