#!/bin/sh
# Resolve the ranges of pyproject.toml into requirements.lock and requirements-test.lock
# (`make lock`). torch is written without its build tag, and the packages that its CUDA build alone
# asks for are left out, so that one lock serves every build.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python

install() {
    "$python" -m pip install --disable-pip-version-check --quiet "$@"
}

# The requirements of pyproject.toml, one a line: the project's own and those of the extras named.
list_requirements() {
    "$python" - "$@" <<'PYTHON'
import sys
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
groups = [project["dependencies"]] + [project["optional-dependencies"][e] for e in sys.argv[1:]]
print("\n".join(requirement for group in groups for requirement in group))
PYTHON
}

list_pins() {
    "$python" -m pip freeze --all --exclude pip |
        sed -E 's/^(torch==[^+]*)\+.*/\1/' |
        grep -viE '^(nvidia-|cuda-|triton)' |
        sort -f
}

install 'setuptools>=77' 'torch==2.13.0'
list_requirements gguf >"$folder/ranges"
install -r "$folder/ranges"
list_pins >"$folder/run"
list_requirements gguf test >"$folder/ranges"
install -r "$folder/ranges"
list_pins >"$folder/all"

{
    cat <<'NOTE'
# What `make quickstart` installs, exactly; made by `make lock` from the ranges of pyproject.toml.
# torch here is any build of that version. To avoid the CUDA build and its gigabytes, point pip at
# PyTorch's CPU wheel index first (PIP_EXTRA_INDEX_URL, or extra-index-url in pip's configuration).
NOTE
    cat "$folder/run"
} >requirements.lock
{
    echo "# What \`make test\` adds to requirements.lock; made by \`make lock\`."
    echo "-r requirements.lock"
    grep -vxFf "$folder/run" "$folder/all"
} >requirements-test.lock
