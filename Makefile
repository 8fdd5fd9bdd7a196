# Set up, train, test and measure. `make help` lists the targets; each one works on a fresh clone.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# What linting and testing need as well; training does not wait for it.
TOOLS := .venv/.tools
# What builds the docs, which neither training nor testing waits for.
DOCUMENTS := .venv/.docs
# Left by an interrupted installation, which pip cannot mend.
UNFINISHED := .venv/.installing
PACKAGES := ./shared $(patsubst %/pyproject.toml,./%,$(wildcard packages/*/pyproject.toml))
MANIFESTS := pyproject.toml constraints.txt $(PACKAGES:%=%/pyproject.toml)
SOURCES := $(PACKAGES:%=%/src) benchmarks
# What the tests are; fewer of them, say: make test WHAT=tests/msmt
WHAT = tests $(SOURCES)
# LONG=yes: also the tests of more than a few seconds, which take as much time again.
LONG =
PAPERS := $(sort $(basename $(notdir $(wildcard configs/*.yaml configs/sweeps/*.yaml))))

PIP = $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt
FLAGS = $(if $(DATA),--data $(DATA)) $(if $(PRESET),--preset $(PRESET))
COMPILED = $(BIN)/python -m compileall -qq -j 0 -x '/tests/|/transformers/models/' .venv/lib || true
# Types are checked beside the tests, as that keeps one core busy for most of a minute.
define TESTED
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@said=$$(mktemp); $(BIN)/mypy $(SOURCES) > "$$said" & types=$$!; \
	tests=0; $(PYTEST) $(1) $(ARGS) || tests=$$?; \
	typed=0; wait $$types || typed=$$?; cat "$$said"; rm -f "$$said"; exit $$((tests | typed))
endef
# Where the environment forbids bytecode, each of a hundred processes would compile the sources anew.
# A worker that has nothing left takes half of what another one has. Three keep two cores busy, as
# tests wait for processes.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 \
	--dist worksteal --doctest-modules $(WHAT)

# Checked while the Makefile is read, so that the one line comes before any installation.
ifneq ($(filter train table sweep,$(MAKECMDGOALS)),)
ifeq ($(strip $(PAPER)),)
$(error PAPER is missing, say: make $(firstword $(MAKECMDGOALS)) PAPER=$(firstword $(PAPERS) f3crec))
endif
endif

.PHONY: help
help: ## List the targets
	@echo "Usage: make TARGET [NAME=value ...]"
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '%-16s %s\n' "$$name" "$$text"; done
	@echo "Papers: $(or $(PAPERS),none yet). Another interpreter: make setup PYTHON=python3.12"

.PHONY: setup
setup: $(TOOLS) ## Create .venv and install every package in it, editable, with the tested versions
	@echo "Installed in .venv; run $(BIN)/coterie, or make train PAPER=$(firstword $(PAPERS) f3crec)."

$(INSTALLED): $(MANIFESTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "coterie needs Python 3.11 or newer, say: make setup PYTHON=python3.12" >&2; exit 2; }
	@echo "Installing into .venv; this takes a minute or two."
	@if [ -e $(UNFINISHED) ]; then rm -rf .venv; fi
	@mkdir -p .venv && touch $(UNFINISHED)
	@$(PYTHON) -m venv .venv
	@# Of the backend one copy instead of one for each package; a venv's own pip is slow or too old.
	@$(PIP) pip hatchling editables
	@$(PIP) --no-build-isolation $(PACKAGES:%=-e %)
	@# pip compiles on one core, this on all, and without the half that runs do not import. Templates
	@# that are no Python, as some packages have, are left as they are.
	@$(COMPILED)
	@mv $(UNFINISHED) $@

$(TOOLS): $(INSTALLED)
	@echo "Installing the tools of linting and testing."
	@mv $(INSTALLED) $(UNFINISHED)
	@# If pip gives up by itself, offline say, it has put everything back.
	@$(PIP) --group dev || { mv $(UNFINISHED) $(INSTALLED); exit 1; }
	@$(COMPILED)
	@mv $(UNFINISHED) $(INSTALLED) && touch $@

.PHONY: train
train: $(INSTALLED) ## Train a paper: PAPER=f3crec [DATA=ml-100k SEED=0 PRESET=smoke ARGS="--key value"]
	@$(BIN)/coterie train $(PAPER) $(FLAGS) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: table
table: $(INSTALLED) ## Reproduce a table or figure: PAPER= [DATA= TABLE=2 | FIGURE=4] [SEEDS="0 1 2"]
	@$(BIN)/coterie table $(PAPER) $(FLAGS) $(if $(TABLE),--table $(TABLE)) \
		$(if $(FIGURE),--figure $(FIGURE)) $(if $(SEEDS),--seeds "$(SEEDS)") $(ARGS)

.PHONY: sweep
sweep: $(INSTALLED) ## Run configs/sweeps/PAPER.yaml on this machine, no account needed: PAPER= [DATA= SEEDS=]
	@$(BIN)/coterie sweep $(PAPER) $(FLAGS) $(if $(SEEDS),--seeds "$(SEEDS)") $(ARGS)

.PHONY: bench
bench: $(INSTALLED) ## Measure speed and memory against the reference loop: [PAPER=, else every paper]
	@for paper in $(or $(PAPER),$(PAPERS)); do $(BIN)/coterie bench $$paper $(FLAGS) $(ARGS); done

.PHONY: lint
lint: $(TOOLS) ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(SOURCES)

.PHONY: test
test: $(TOOLS) ## Check style and types, run the unit tests and doctests: [LONG=yes, as CI does]
	$(call TESTED,-m "not slow$(if $(LONG),, and not long)")

.PHONY: test-all
test-all: $(TOOLS) ## The same, with the tests that take minutes
	$(call TESTED)

.PHONY: test-processors
test-processors: $(TOOLS) ## Run the tests as other processors round: [WHAT=tests/msmt]
	@# One that is played (tests/processors), and torch with shorter vectors.
	@PYTHONPATH=$(CURDIR)/tests/processors $(PYTEST) -m "not slow" $(ARGS)
	@for width in default avx2; do ATEN_CPU_CAPABILITY=$$width $(PYTEST) -m "not slow" $(ARGS); done

.PHONY: test-versions
test-versions: $(TOOLS) ## Smoke of every paper with the lowest and the newest versions allowed, W&B files read back
	@.ci/versions.sh lowest
	@.ci/versions.sh newest

$(DOCUMENTS): $(INSTALLED)
	@echo "Installing what builds the docs."
	@$(PIP) --no-build-isolation -e "./shared[docs]"
	@touch $@

.PHONY: docs
docs: $(DOCUMENTS) ## Build the docs site into site/, offline; no link may be broken
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict $(ARGS)
	@echo "Open site/index.html."

.PHONY: dist
dist: $(INSTALLED) ## Build the wheels into dist/
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist $(PACKAGES)
	@ls dist

.PHONY: clean
clean: ## Remove .venv, dist/ and caches; runs/ stays
	@rm -rf .venv dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find shared packages benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
