"""Prints what fresh engines say: python fresh.py PREPACKING(on|off) TP CHECKPOINT..."""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__":
    on, tp, checkpoints = sys.argv[1] == "on", int(sys.argv[2]), sys.argv[3:]
    if tp == 2:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    os.environ["HEADRACE_TEST_PREPACKING"] = sys.argv[1]
    from headrace.vllm import testing
    from vllm import SamplingParams

    from support import PROMPTS, TOKENS

    params = SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=1, ignore_eos=True)
    outputs = []
    for checkpoint in checkpoints:
        options = {"dtype": "float32", "max_model_len": 1024, "skip_tokenizer_init": False, "tensor_parallel_size": tp}
        with testing.prepacking(on), testing.engine(checkpoint, **options) as llm:
            one = []
            for prompt in PROMPTS:
                found = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0].outputs[0]
                tokens = list(found.token_ids)
                one.append([tokens, [step[token].logprob for step, token in zip(found.logprobs, tokens)]])
            outputs.append(one)
    print(json.dumps(outputs))
