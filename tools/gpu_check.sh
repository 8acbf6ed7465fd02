#!/bin/bash
# The checks that need a GPU, with what has been built already. Writes one JSON file for each to OUT, prints them, and
# fails where one did. Without a GPU they say so and are skipped.
# Usage: tools/gpu_check.sh BAZEL_BIN OUT
set -uo pipefail
[ $# -eq 2 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
built=$1 out=$2 failed=0
mkdir -p "$out"

# check NAME SECONDS COMMAND...: what it prints is its report.
check() {
  local name=$1 seconds=$2
  shift 2
  timeout "$seconds" "$@" >"$out/$name.json"
  local status=$?
  if [ "$status" -ne 0 ]; then
    failed=1
    echo "gpu_check: $name failed (exit status $status)" >&2
  fi
  cat "$out/$name.json"
}

check kernels 120 "$built/kernels/cuda/kernels_gpu_check" "$built/kernels/cuda/libheadrace_cuda.so"
exit "$failed"
