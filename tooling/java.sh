#!/usr/bin/env bash
# Links .walgate/java to a Java home of version 17 or 21: found, else installed, else asked for.
set -euo pipefail
cd "$(dirname "$0")/.."

link=.walgate/java

runs_spark() { # Java home
    "$1/bin/java" -version 2>&1 | grep -qE 'version "(17|21)[."]'
}

find_java() {
    local program home
    program=$(command -v java || true)
    for home in "${JAVA_HOME:-}" "${program:+$(dirname "$(dirname "$(readlink -f "$program")")")}" \
        /usr/lib/jvm/* /opt/java/* "$HOME"/.sdkman/candidates/java/* \
        /Library/Java/JavaVirtualMachines/*/Contents/Home; do
        if [ -n "$home" ] && [ -x "$home/bin/java" ] && runs_spark "$home"; then
            echo "$home"
            return
        fi
    done
    return 1
}

[ ! -x "$link/bin/java" ] || exit 0
if ! home=$(find_java); then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -qq -y openjdk-17-jre-headless >/dev/null ||
            apt-get install -qq -y openjdk-21-jre-headless >/dev/null
    fi
    if ! home=$(find_java); then
        echo "Walgate needs Java 17 or 21 for Spark: install one, or name its folder in JAVA_HOME." >&2
        exit 1
    fi
fi
mkdir -p .walgate
ln -sfn "$home" "$link"
