# Every target sets itself up: `make demo` and `make test` need only Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# Two test workers suit two cores; PYTEST_OPTIONS='-k word' and others go to pytest.
TEST_WORKERS ?= 2
PYTEST_OPTIONS ?=

.PHONY: demo demo-serve demo-browser test test-all test-browser check lint types wheel bench stress reproduce docs clean

demo: $(VENV)/ready
	$(BIN)/secondlook demo

# The demo's policy behind a service, with its pages in the browser; DEMO_SERVE_OPTIONS='--port 8001' and others.
DEMO_SERVE_OPTIONS ?=
demo-serve: $(VENV)/ready-serve
	$(BIN)/secondlook demo --serve $(DEMO_SERVE_OPTIONS)

# The demo's policy as one ONNX file, in a page that runs it in the browser; needs npm. DEMO_BROWSER_PORT=8081 for another port.
DEMO_BROWSER_PORT ?= 8080
demo-browser: $(VENV)/ready-export
	test -e demo/policy.json || $(BIN)/secondlook demo --quiet
	$(BIN)/secondlook export --policy demo/policy.json --out examples/browser/decide.onnx --force --quiet
	cd examples/browser && npm ci --no-audit --no-fund
	mkdir -p examples/browser/samples
	$(BIN)/python -c 'import json, numpy; from pathlib import Path; from PIL import Image; page = Path("examples/browser"); \
		names = [f"samples/{number}.png" for number in range(40)]; \
		[Image.fromarray(digit[:, :, 0]).save(page / name) for name, digit in zip(names, numpy.load("demo/new.npz")["images"])]; \
		(page / "samples.json").write_text(json.dumps(names))'
	@echo "Open http://127.0.0.1:$(DEMO_BROWSER_PORT)/ and choose a sample. Stop with Ctrl-C."
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory examples/browser $(DEMO_BROWSER_PORT)

# Every room's laws, references, properties and the command line, all within the test process.
test: $(VENV)/ready-dev
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadgroup -m "not outside" $(PYTEST_OPTIONS)

# The same, and Ray, PostgreSQL, other servers, installs, kills and documented commands.
test-all: $(VENV)/ready-dev $(VENV)/ready-postgres
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadgroup $(PYTEST_OPTIONS)

# Tests all pages in a real browser. Installs Debian's Chromium if there is none; CHROMIUM=PATH selects another browser.
test-browser: $(VENV)/ready-browser
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile tests_browser

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready-dev
	$(BIN)/mypy

check: lint types test-all

# dist/secondlook-VERSION-py3-none-any.whl, for `pip install` anywhere.
wheel: $(VENV)/ready
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	ls dist/*.whl

# Takes some minutes; run it on an otherwise idle machine.
bench: $(VENV)/ready-dev
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,peers]'
	for name in views ranking metrics collect latency guarantee peers gpu cluster monitoring_groups service export; do \
		$(BIN)/python benchmarks/$$name.py || exit 1; done
	for name in simulated audits; do $(BIN)/python benchmarks/monitoring.py $$name || exit 1; done
	$(BIN)/python benchmarks/reviewers.py

# Kills, failing disks, mutated files, bit flips, simulated calibrations and peak memory, in about an hour
# (docs/background/reliability.md). `python -m stress NAME --count N` runs one of them; tests/stress has short forms.
stress: $(VENV)/ready-dev
	$(BIN)/python -m stress all --out benchmarks/results

# Reruns the two experiments of reproduction/results; DATA_ROOT contains the data sets and weights (reproduction/README.md).
DATA_ROOT ?= ../shared
reproduce: $(VENV)/ready-dev
	$(BIN)/python -m reproduction results --data-root $(DATA_ROOT) --out reproduction/results

docs: $(VENV)/ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site demo .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/ready-serve: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[serve]'
	touch $@

$(VENV)/ready-export: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[export]'
	touch $@

# Tests of the service use PostgreSQL where it can be found or installed, and are skipped elsewhere.
$(VENV)/ready-postgres: $(VENV)/ready
	test -n "$$(ls /usr/lib/postgresql/*/bin/initdb 2> /dev/null)" || command -v initdb > /dev/null \
		|| ! command -v apt-get > /dev/null || test "$$(id -u)" != 0 \
		|| { apt-get update -qq && apt-get install --yes -qq postgresql; }
	touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/ready-browser: $(VENV)/ready-dev
	test -n "$(CHROMIUM)" || command -v chromium > /dev/null || { apt-get update -qq && apt-get install --yes -qq chromium; }
	command -v pdftotext > /dev/null || ! command -v apt-get > /dev/null || test "$$(id -u)" != 0 \
		|| { apt-get update -qq && apt-get install --yes -qq poppler-utils; }
	touch $@
