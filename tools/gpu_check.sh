#!/bin/bash
# The checks that need a GPU, with what has been built already. Writes what each reports to OUT, prints it, and fails
# where one did. Without a GPU they say so and are skipped.
# Usage: tools/gpu_check.sh BAZEL_BIN OUT
set -uo pipefail
[ $# -eq 2 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
built=$1 out=$2 failed=0
mkdir -p "$out"

# check FILE SECONDS COMMAND...: what it prints is its report.
check() {
  local file=$1 seconds=$2
  shift 2
  timeout "$seconds" "$@" >"$out/$file"
  local status=$?
  if [ "$status" -ne 0 ]; then
    failed=1
    echo "gpu_check: $file: failed (exit status $status)" >&2
  fi
  cat "$out/$file"
}

check kernels.json 90 "$built/kernels/cuda/kernels_gpu_check" "$built/kernels/cuda/libheadrace_cuda.so"
# Over the machine's own NCCL and CUDA, with the kernels: the tests of transport/nccl and transport/cuda, conformance and
# memory between processes included, and whole jobs with weights in GPU memory, every byte compared.
if [ -e /dev/nvidiactl ]; then
  export HEADRACE_NCCL="${HEADRACE_NCCL:-libnccl.so.2}" NCCL_MULTI_RANK_GPU_ENABLE=1
  export HEADRACE_CUDA_RUNTIME="${HEADRACE_CUDA_RUNTIME:-libcudart.so.13}"
  export HEADRACE_CUDA_DRIVER="${HEADRACE_CUDA_DRIVER:-libcuda.so.1}"
  HEADRACE_CUDA_KERNELS=$(realpath "$built/kernels/cuda/libheadrace_cuda.so")
  export HEADRACE_CUDA_KERNELS
  check nccl.log 50 "$built/loader/transport/nccl/nccl_test" "--gtest_output=json:$out/nccl.json"
  check cuda.log 30 "$built/loader/transport/cuda/cuda_test" "--gtest_output=json:$out/cuda.json"
  check host_jobs.log 35 "$built/loader/gpu_end_to_end_test" "--gtest_output=json:$out/host_jobs.json"
  check gpu_jobs.log 45 "$built/loader/gpu_only_end_to_end_test" "--gtest_output=json:$out/gpu_jobs.json"
  # The demo's processes, on a tiny model; Python makes it and computes with it.
  tools=$(dirname "${BASH_SOURCE[0]}") python=${PYTHON:-python3} model=$out/tiny_model
  if "$python" -c 'import numpy, xxhash' 2>/dev/null && "$python" "$tools/model/make_tiny.py" "$model" >&2; then
    check demo.json 45 "$built/cli/headrace" demo --model "$model" --oracle "$tools/model/oracle.py" \
      --python "$(command -v "$python")" --scenario megatron --gpu --transport cuda --json
  else
    echo '{"check": "demo", "result": "no Python with numpy and xxhash (PYTHON names one): skipped"}'
  fi
else
  for name in nccl cuda host_jobs gpu_jobs demo; do echo "{\"check\": \"$name\", \"result\": \"no GPU: skipped\"}"; done
fi
exit "$failed"
