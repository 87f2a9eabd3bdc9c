# Every target sets up what it needs in .venv, once; `make help` lists them.

PYTHON ?= $(shell sh -c 'command -v python3.11 || command -v python3.12 || command -v python3')
ARGS ?=
BIN := .venv/bin

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help serve demo test check bench

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 16

serve: .venv/installed ## Serve the folder data/ on http://127.0.0.1:2333; ARGS="..." are more options.
	@exec $(BIN)/destrier serve --root data --port 2333 $(ARGS)

demo: .venv/installed ## See what it is for: load real data, make views of each kind, refresh them, stop.
	@exec $(BIN)/python docs/examples/demo.py

test: check ## Run the static checks and every test but the long ones; ARGS="..." go to pytest.
	@exec $(BIN)/pytest -m "not soak and not own_process" $(ARGS)

check: .venv/installed ## Run the static checks: format, lint, types, import rules.
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache --no-logo > .venv/lint-imports.log || \
		{ cat .venv/lint-imports.log; exit 1; }

bench: .venv/installed ## Measure (18 minutes); BENCH=written, rows, row_ids, growth, costs, views, nodes or idle is more; ARGS=--quick is a look.
	@exec $(BIN)/python -m benchmarks.$(or $(BENCH),serving) $(ARGS)

# The stamps are made last, so that an interrupted set-up starts again.
.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
		{ echo "Python 3.11 or 3.12 is needed; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "Setting up .venv with $$($(PYTHON) --version), once; this takes a few minutes."
	@$(PYTHON) -m venv --clear .venv
	@touch $@

.venv/installed: .venv/created pyproject.toml
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@
