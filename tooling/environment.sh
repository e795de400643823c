#!/usr/bin/env bash
# Builds .venv from the hash-pinned locks; does nothing while it still agrees with them.
set -euo pipefail
cd "$(dirname "$0")/.."

locks=(tooling/bootstrap.lock requirements.lock pyproject.toml)
stamp=.venv/walgate-lock.sha256
wanted=$(cat "${locks[@]}" | sha256sum | cut -d' ' -f1)
[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || exit 0

if [ ! -x .venv/bin/python ]; then
    is_new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11} ''; do
        "${python:-false}" -c "$is_new_enough" 2>/dev/null && break
    done
    if [ -z "$python" ]; then
        echo "Walgate needs Python 3.11 or newer: install it, or name it with PYTHON=…" >&2
        exit 1
    fi
    "$python" -m venv .venv
fi

# The build tools first, so that no later step builds with anything unpinned.
install=(.venv/bin/python -m pip --disable-pip-version-check install --quiet)
"${install[@]}" --require-hashes -r tooling/bootstrap.lock
"${install[@]}" --require-hashes --no-build-isolation -r requirements.lock
"${install[@]}" --no-index --no-deps --no-build-isolation --editable .
echo "$wanted" >"$stamp"
