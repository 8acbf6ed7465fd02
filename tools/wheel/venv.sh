#!/bin/bash
# Makes .venv-wheel in the workspace root: the wheel, built and installed as a user would, and the libraries that its
# tests load beside it (tests/python/requirements.txt; torch is borrowed from the environment folder TORCH_VENV).
# Usage: tools/wheel/venv.sh TORCH_VENV [BAZEL_STARTUP_OPTION...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  echo "wheel: $1" >&2
  exit 1
}
[ $# -ge 1 ] || fail "usage: tools/wheel/venv.sh TORCH_VENV [BAZEL_STARTUP_OPTION...]"
torch=$(cd "$1" && "$PWD/bin/python" -c 'import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))') ||
  fail "$1 is no virtual environment with torch"
python=$(readlink -f "$1/bin/python")
shift

requirements=tests/python/requirements.txt
wanted=$({ cat "$requirements"; "$python" -VV; pwd; } | sha256sum | cut -c1-16)
stamp=.venv-wheel/headrace.stamp
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || ! .venv-wheel/bin/python -c '' 2>/dev/null; then
  rm -rf .venv-wheel
  "$python" -m venv .venv-wheel
  .venv-wheel/bin/pip install --disable-pip-version-check --quiet --only-binary :all: -r "$requirements" ||
    fail "pip failed; check the network and what 'pip config list' names"
  echo "$wanted" >"$stamp"
fi
# The neighbours' own versions come first, torch from behind them.
site=$(.venv-wheel/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$torch" >"$site/borrowed_torch.pth"

settings=()
for option in "$@"; do settings+=(--config-settings "bazel-startup=$option"); done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
.venv-wheel/bin/pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir "$folder" "${settings[@]}" . ||
  fail "the wheel could not be built"
.venv-wheel/bin/pip install --disable-pip-version-check --quiet --no-deps --no-index --force-reinstall "$folder"/*.whl
echo "wheel: $(basename "$folder"/*.whl) is in .venv-wheel"
