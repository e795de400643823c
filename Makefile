# Every other target needs `setup`, which takes a moment and no network once it is done.
.PHONY: setup setup-s3 setup-soak demo up test test-fast bench check soak transcripts pictures lock

python := .venv/bin/python
# The suites that soak also runs with their lakes in an object store.
in_store := tests/staging tests/capture/test_interfaces.py tests/spark tests/backfill tests/verify \
	tests/recover tests/end_to_end/test_random_streams.py tests/end_to_end/test_backfill.py
# The tests that kill a process at a named point. The killed process also meets the store's faults.
kills := tests/spark/merge/test_killed_merge.py tests/spark/maintenance/test_killed_maintenance.py \
	tests/backfill/test_crashes.py tests/end_to_end/test_log_equals_truth.py

setup:
	@tooling/environment.sh
	@tooling/java.sh
	@$(python) tooling/spark_jars.py delta

# What a lake in an object store needs besides: 13 MB of JARs, and Walgate's two classes for Spark.
setup-s3: setup
	@$(python) tooling/spark_jars.py s3

# What the soak tests need besides: an object store with real files. It takes minutes, and needs Go.
setup-soak: setup-s3
	@tooling/versitygw.sh

# The proof: a shop that sells, replicated through Dagster and compared; then everything ends.
# `make demo ARGS=--s3` has its lake in an object store.
demo: setup $(if $(findstring --s3,$(ARGS)),setup-s3)
	@.venv/bin/walgate demo $(ARGS)

# The same stack until Ctrl-C, with Dagster's page.
up: setup
	@.venv/bin/walgate demo --keep

# Three processes for two cores: many tests wait. One process has the Spark session, one has Dagster.
test: setup-s3
	@$(python) -m pytest -n 3 --dist loadgroup

# What needs no service, in under a minute; each further process costs its own imports.
test-fast: setup
	@$(python) -m pytest -m fast -n 2 --dist worksteal

soak: setup-soak
	@WALGATE_COMPILED_PLANS=1 $(python) -m pytest -m soak --timeout 1800 -n 2 tests/simulation
	@WALGATE_COMPILED_PLANS=1 $(python) -m pytest -m soak --timeout 1800 --ignore tests/simulation \
		--ignore tests/object_store
	@$(python) -m pytest --every-test --timeout 1800 -n 3 --dist loadgroup
	@$(python) -m pytest --every-test --timeout 1800 --lakes-in-store --store versitygw $(in_store)
	@$(python) -m pytest -m "" --every-test --timeout 1800 --lakes-in-store --store versitygw \
		--store-faults 1 $(kills)
	@$(python) -m pytest -m "" --every-test --timeout 1800 --store versitygw tests/object_store

# About 25 minutes; a busy machine changes the figures.
bench: setup
	@$(python) -m tests.bench

# Plays the SQL of tests/transcripts, and writes what it leads to. Review the diff.
transcripts: setup
	@$(python) -m tests.transcripts

# Takes the pictures of the docs in a browser. Look at them.
pictures: setup
	@WALGATE_PICTURES=docs/pictures $(python) -m pytest -m soak tests/pages/test_pictures.py

check: setup
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy
	@.venv/bin/lint-imports

lock: setup
	@tooling/lock.sh
