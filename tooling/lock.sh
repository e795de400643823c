#!/usr/bin/env bash
# Rewrites the locks, with hashes and without addresses, by the uv that the old lock pins.
set -euo pipefail
cd "$(dirname "$0")/.."

compile=(.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes
    --no-emit-index-url --no-emit-find-links
    --no-strip-extras --custom-compile-command "make lock" --upgrade)
"${compile[@]}" tooling/bootstrap.in --output-file tooling/bootstrap.lock
"${compile[@]}" pyproject.toml --all-extras --constraints tooling/bootstrap.lock \
    --output-file requirements.lock
