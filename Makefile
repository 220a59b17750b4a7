# Two commands are all a newcomer needs: `make demo` and `make test`.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test test-long check format lint types bench clean

demo: $(VENV)/.installed  ## the main job, without any key
	@$(BIN)/python examples/demo.py

test: $(VENV)/.installed-test  ## every test
	@$(BIN)/python -m pytest

test-long: $(VENV)/.installed-test  ## the same with many more generated cases
	@TEST_CASES=20 $(BIN)/python -m pytest --timeout 900

check: format lint types test  ## what a change must pass

format: $(VENV)/.installed-test
	@$(BIN)/ruff format --check .

lint: $(VENV)/.installed-test
	@$(BIN)/ruff check .

types: $(VENV)/.installed-test
	@$(BIN)/mypy

bench: $(VENV)/.installed-test  ## tables of ratios
	@$(BIN)/python -m benchmarks

clean:
	@rm -rf $(VENV) build dist *.egg-info

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "agentsd needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing agentsd (about half a minute the first time)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing agentsd and what its tests need (about a minute the first time)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	@touch $@ $(VENV)/.installed
