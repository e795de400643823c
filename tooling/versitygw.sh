#!/usr/bin/env bash
# Builds versitygw, an S3 server with its objects in files, for `make soak`. It needs Go.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v1.8.0
program=.walgate/versitygw-$version

[ ! -x "$program" ] || exit 0
if ! command -v go >/dev/null; then
    echo "The soak tests need Go 1.24 or newer, to build versitygw: install it." >&2
    exit 1
fi
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
echo "Building versitygw $version …"
GOBIN=$build go install "github.com/versity/versitygw/cmd/versitygw@$version" 2>"$build/log" || {
    cat "$build/log" >&2
    exit 1
}
mkdir -p .walgate
mv "$build/versitygw" "$program"
