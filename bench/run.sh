#!/bin/bash
# Measures the refit of bench/README.md: Headrace in place and with a shadow, the one-copy floor, and
# gather-and-broadcast over gloo. Sets up what it needs (Debian packages, .venv-bench with torch, the build), prints a
# summary and writes JSON. Needs about 11 GiB of free memory, 8 GiB of disk, and ten minutes once it is set up.
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

# One at a time: two runs would disturb each other's figures, and build the same folder.
exec 9<bench/requirements.txt
flock -n 9 || fail "another run of this command is under way." "Wait until it has ended."

python=
for candidate in /usr/bin/python3.11 python3.11 /usr/bin/python3 python3; do
  if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || fail "no Python 3.11 or newer that can make virtual environments." "Run tools/setup.sh."

# The path is part of the key: a virtual environment does not survive a move.
wanted=$({ cat bench/requirements.txt; "$python" -VV; pwd; } | sha256sum | cut -c1-16)
if [ "$(cat .venv-bench/headrace.stamp 2>/dev/null)" != "$wanted" ]; then
  say "making .venv-bench with torch (about 3 GB to download, once)"
  rm -rf .venv-bench
  "$python" -m venv .venv-bench
  .venv-bench/bin/pip install --disable-pip-version-check --quiet --only-binary :all: -r bench/requirements.txt ||
    fail "torch could not be installed (see above)." "Check the network, and what 'pip config list' names." \
      "Without torch: bazel run //bench:refit_bench measures Headrace and the floor alone."
  .venv-bench/bin/python -W ignore -c 'import torch.distributed as d; assert d.is_gloo_available()' ||
    fail "torch does not load, or has no gloo (see above)." "Remove .venv-bench and run this again."
  echo "$wanted" >.venv-bench/headrace.stamp
fi

say "building"
bazel build --ui_event_filters=-info,-stdout --noshow_progress //bench:refit_bench
binary=$(bazel info bazel-bin 2>/dev/null)/bench/refit_bench
.venv-bench/bin/python bench/refit.py --binary "$binary" "$@"
