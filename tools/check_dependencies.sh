#!/bin/bash
# The one-way rule: cli, engine_adapters -> loader -> planner, kernels; planner and kernels do not know each other, and
# each knows only itself. Asks Bazel for everything that a folder's libraries depend on.
# Usage: tools/check_dependencies.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bad=0
# forbid FROM TO...: no target below //FROM (tests aside) may reach one below //TO.
forbid() {
  local from=$1 to found
  shift
  for to in "$@"; do
    [ -d "$to" ] || continue
    found=$(bazel query --noshow_progress --ui_event_filters=-info \
      "filter('^//$to[:/]', deps(//$from/... except attr(testonly, 1, //$from/...)))" 2>/dev/null) || {
      echo "dependencies: bazel query failed for $from" >&2
      exit 1
    }
    if [ -n "$found" ]; then
      bad=1
      echo "dependencies: $from must not know $to, but reaches" $found >&2
    fi
  done
}

forbid planner kernels loader engine_adapters cli bench tests
forbid kernels planner loader engine_adapters cli bench tests
forbid loader engine_adapters cli bench tests
forbid engine_adapters cli bench tests
forbid cli bench tests

# The planner is pure: no clock, thread, file, environment or log.
impure=$(grep -nE '#include <(thread|mutex|condition_variable|atomic|chrono|fstream|iostream|filesystem|cstdio|unistd.h|sys/.*|time.h)>|getenv|absl/time|absl::Now' \
  $(git ls-files 'planner/*.h' 'planner/*.cc' | grep -vE '_test\.cc$|/testing/|planner/layout/(case_share|enumerate|oracle)') || true)
if [ -n "$impure" ]; then
  bad=1
  echo "dependencies: the planner does I/O:" >&2
  echo "$impure" >&2
fi
# Environment variables are read in one place each: UCX_TLS beside UCX's options, the GPUs' together, TMPDIR in the demo.
sprawl=$(git grep -nE '\bgetenv\(' -- 'planner' 'kernels' 'loader' 'engine_adapters' 'cli' |
  grep -vE '_test(ing)?\.cc:|/testing/|/testing\.cc:|test_support|case_share|conformance|loader/transport/ucx/ucx\.cc:|loader/gpu/gpu_options\.cc:|cli/demo/run\.cc:' || true)
if [ -n "$sprawl" ]; then
  bad=1
  echo "dependencies: the environment is read outside of the options files:" >&2
  echo "$sprawl" >&2
fi
[ "$bad" -eq 0 ] && echo "dependencies: as they should be"
exit "$bad"
