# Every target makes its own virtual environment first; nothing has to be installed by hand.
# `make -C /path/to/this run PROMPT="…"` works from any directory.

ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
CALLER := $(or $(PWD),$(CURDIR))
VENV := $(ROOT)/.venv
BIN := $(VENV)/bin
KEY := $(shell cat "$(ROOT)/requirements.lock" "$(ROOT)/pyproject.toml" | cksum | tr ' ' '-')
STAMP := $(VENV)/.installed-$(KEY)

WORKERS ?= 2
PROFILE ?= team
PROMPT ?=
MODEL ?=
TESTS ?=
MINUTES ?= 20
SEED ?=
DATABASE ?= both
ROWS ?=
SCALE ?= quick

.DEFAULT_GOAL := help
.PHONY: help demo run install test soak bench lint format lock env clean

help: ## Show the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' "$(ROOT)/Makefile" | expand -t 16

demo: $(STAMP) ## Run a Team on a sample repository, without any model key
	@"$(BIN)/python" "$(ROOT)/examples/demo/run.py" --workers $(WORKERS)

run: $(STAMP) ## Run a Team on the current directory: make run PROMPT="…" [MODEL=…] [PROFILE=…]
	@test -n "$$PROMPT" || { echo 'make run: say what is to be done: make run PROMPT="…" MODEL=openai-chat:NAME' >&2; exit 2; }
	@cd "$(CALLER)" && "$(BIN)/team" run --profile "$(PROFILE)" $(if $(MODEL),--model "$(MODEL)") -- "$$PROMPT"
export PROMPT

install: $(STAMP) ## Install the command `team` into .venv and say where it is
	@echo "$(BIN)/team"

test: $(STAMP) ## Run the tests: SQLite and PostgreSQL, real processes, no network
	@cd "$(ROOT)" && "$(BIN)/python" -m pytest -m "not soak" -n 2 --dist loadfile $(TESTS)

soak: $(STAMP) ## Work under a seeded schedule of faults: make soak [MINUTES=20] [SEED=…] [DATABASE=sqlite|postgres|both]
	@cd "$(ROOT)" && "$(BIN)/python" -m tests.faults.soak --minutes "$(MINUTES)" $(if $(SEED),--seed "$(SEED)") \
		--database "$(DATABASE)"

bench: $(STAMP) ## Measure: make bench [ROWS=board-mutation,…] [SCALE=quick|full] [DATABASE=sqlite|postgresql|both]
	@cd "$(ROOT)" && "$(BIN)/python" -m benchmarks --rows "$(ROWS)" --scale "$(SCALE)" --database "$(DATABASE)"

lint: $(STAMP) ## Check style and types
	@cd "$(ROOT)" && "$(BIN)/ruff" check . && "$(BIN)/ruff" format --check . && "$(BIN)/pyright"

format: $(STAMP) ## Format the sources
	@cd "$(ROOT)" && "$(BIN)/ruff" format . && "$(BIN)/ruff" check --fix .

lock: ## Resolve the dependencies again (needs uv)
	cd "$(ROOT)" && uv pip compile --universal --python-version 3.11 --generate-hashes --all-extras \
		--no-annotate --no-header pyproject.toml -o requirements.lock
	cd "$(ROOT)" && uv pip compile --universal --python-version 3.11 --generate-hashes -c requirements.lock \
		--no-annotate --no-header pyproject.toml -o requirements-runtime.lock

env: ## Write .env with random secrets, if there is none yet
	@test ! -e "$(ROOT)/.env" || { echo '.env is there already; remove it first.' >&2; exit 2; }
	@umask 077; python3 -c "import re, secrets, sys; \
		text = open('$(ROOT)/.env.example').read(); \
		sys.stdout.write(re.sub('example-[a-z-]+-secret', lambda _: secrets.token_urlsafe(24), text))" > "$(ROOT)/.env"
	@echo "$(ROOT)/.env"

clean: ## Remove the virtual environment and caches
	rm -rf "$(VENV)" "$(ROOT)/.pytest_cache" "$(ROOT)/.ruff_cache" "$(ROOT)/.hypothesis"

$(STAMP):
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
		for candidate in python3 python3.13 python3.12 python3.11 python3.14; do \
			if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				python=$$candidate; break; fi; done; fi; \
	[ -n "$$python" ] || { echo "Python 3.11 or newer is needed; install it, or give PYTHON=/path/to/python." >&2; exit 2; }; \
	[ -x "$(BIN)/python" ] || "$$python" -m venv "$(VENV)" || { rm -rf "$(VENV)"; \
		echo "$$python cannot make virtual environments; install its venv package (Debian: python3-venv)." >&2; exit 2; }
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$(ROOT)/requirements.lock"
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e "$(ROOT)"
	@rm -f "$(VENV)"/.installed-*
	@touch "$@"
