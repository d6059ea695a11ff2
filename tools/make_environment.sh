#!/bin/sh
# Make the virtual environment .venv in the current folder, or keep the one that works.
# Needs Python 3.11 and no root. Some systems split the part of Python that puts pip into an
# environment (ensurepip) off into a package of its own, so three other ways are tried in turn.
set -eu

wanted="import sys; sys.exit(sys.version_info < (3, 11))"

find_python() {
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else
        set -- python3 python3.14 python3.13 python3.12 python3.11
    fi
    for name in "$@"; do
        if command -v "$name" >/dev/null 2>&1 && "$name" -c "$wanted" 2>/dev/null; then
            echo "$name"
            return 0
        fi
    done
    return 1
}

works() {
    .venv/bin/python -c "$wanted" >/dev/null 2>&1 && .venv/bin/python -m pip --version >/dev/null 2>&1
}

attempt() {
    rm -rf .venv
    "$@" >>"$log" 2>&1 && works
}

attempt_borrowing_pip() {
    rm -rf .venv
    "$python" -m venv --without-pip .venv >>"$log" 2>&1 &&
        "$python" -m pip --python .venv/bin/python install pip >>"$log" 2>&1 &&
        works
}

if works; then exit 0; fi

if ! python=$(find_python); then
    found=$(python3 --version 2>&1 || true)
    echo "error: Limosa needs Python 3.11 or newer; python3 is: ${found:-not installed}" >&2
    echo "hint: install one, or name it: make PYTHON=/path/to/python3.11 quickstart" >&2
    exit 2
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if attempt "$python" -m venv .venv; then exit 0; fi
if attempt_borrowing_pip; then exit 0; fi
if attempt "$python" -m virtualenv .venv; then exit 0; fi
if attempt uv venv --seed --python "$python" .venv; then exit 0; fi

rm -rf .venv
echo "error: cannot make a virtual environment with $python; the attempts said:" >&2
sed 's/^/  /' "$log" >&2
echo "hint: this Python comes without ensurepip, and neither pip, virtualenv nor uv was found;" >&2
echo "      install one of them (on Debian: python3-venv), or use another Python 3.11 or newer:" >&2
echo "      make PYTHON=/path/to/python3.11 quickstart" >&2
exit 2
