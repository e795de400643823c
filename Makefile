# `setup` stands before every other target; once done, it takes a moment and no network.
.PHONY: setup test check soak lock

python := .venv/bin/python

setup:
	@tooling/environment.sh
	@tooling/java.sh
	@$(python) tooling/delta_jars.py

test: setup
	@$(python) -m pytest

soak: setup
	@$(python) -m pytest -m soak --timeout 1800

check: setup
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy
	@.venv/bin/lint-imports

lock: setup
	@tooling/lock.sh
