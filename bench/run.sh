#!/bin/bash
# Measures the refit of bench/README.md: Headrace in place, with a shadow and by broadcast, the floors, and
# gather-and-broadcast over gloo. Sets up what it needs (Debian packages, .venv-vllm with torch, the build), prints a
# summary and writes JSON. Needs about 14 GiB of free memory, 8 GiB of disk, and ten minutes once it is set up.
# Usage: bench/run.sh [--output FILE] [other options of bench/refit.py]
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
exec 9<bench/run.sh
flock -n 9 || fail "another run of this command is under way." "Wait until it has ended."

tools/python.sh vllm

say "building"
bazel build --ui_event_filters=-info,-stdout --noshow_progress //bench:refit_bench
binary=$(bazel info bazel-bin 2>/dev/null)/bench/refit_bench
.venv-vllm/bin/python bench/refit.py --binary "$binary" "$@"
