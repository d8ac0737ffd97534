PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

unexport PYTHONDONTWRITEBYTECODE # tests start many processes, which would compile every module anew

.PHONY: demo test test-all test-gpu setup check docs clean

demo: setup
	$(BIN)/regard demo

test: setup
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: setup
	REGARD_TEST_ALL=1 $(BIN)/python -m pytest -n auto --dist worksteal

test-gpu: setup
	$(BIN)/python -m pytest -m gpu

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Regard needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean --strict
	@echo 'open site/index.html; to search in it: $(BIN)/python -m http.server -d site'

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build site *.egg-info .mypy_cache .ruff_cache .pytest_cache
