# Everything sets itself up: `make demo` and `make test` work on a machine that has only Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two test workers on two cores; each leaves the other its core.
TEST_WORKERS ?= 2

.PHONY: demo test test-browser check lint types bench docs clean

demo: $(VENV)/ready
	$(BIN)/secondlook demo

test: $(VENV)/ready-dev
	$(BIN)/pytest -n $(TEST_WORKERS)

# The report in a real browser; Debian's Chromium is installed where there is none (CHROMIUM=PATH names another).
test-browser: $(VENV)/ready-browser
	$(BIN)/pytest tests_browser

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready-dev
	$(BIN)/mypy

check: lint types test

# Some minutes on a quiet machine; benchmarks/search_quality.py has a longer study of its own.
bench: $(VENV)/ready-dev
	for name in views ranking metrics collect search guarantee; do $(BIN)/python benchmarks/$$name.py || exit 1; done

docs: $(VENV)/ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site demo .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/ready-browser: $(VENV)/ready-dev
	test -n "$(CHROMIUM)" || command -v chromium > /dev/null || { apt-get update -qq && apt-get install --yes -qq chromium; }
	touch $@
