"""Rehearses every case with the command and judges the dumped memory by its own arithmetic.

usage: cases_test.py HEADRACE FOLDER TRANSPORT
Cases with ranks on several hosts are rehearsed by each policy.
A case is a manifest with an "expect" (docs/manifest.md): element e of the tensor listed t-th is the top bits of
splitmix64(t * 2^40 + e); memory starts as 0xA5 bytes.
"""
import glob
import json
import os
import subprocess
import sys

BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
        "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
        "C64": 64}
MASK = (1 << 64) - 1


def element(t, e, bits):
    z = ((t << 40) + e + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (z ^ (z >> 31)) >> (64 - bits)


def poison(index, bits):
    stream = int.from_bytes(b"\xa5" * ((index + 1) * bits // 8 + 1), "little")
    return stream >> (index * bits) & ((1 << bits) - 1)


def wanted(case, expected):
    dtype = next(b["dtype"] for b in case["destination"]
                 if (b["rank"], b["buffer"]) == (expected["rank"], expected["buffer"]))
    bits = BITS[dtype]
    index = {t["name"]: i for i, t in enumerate(case["tensors"])}
    out = []
    for run in expected["memory"]:
        for k in range(run["count"]):
            if "tensor" in run:
                out.append(element(index[run["tensor"]], run["first"] + k, bits))
            else:
                out.append(0 if run["fill"] == "zero" else poison(len(out), bits))
    return out


def policies(case):
    """Where ranks are on several hosts, bytes take other ways by each; what arrives is the same."""
    places = case.get("topology", {}) if isinstance(case, dict) else {}
    hosts = {p.get("host") for side in places.values() for p in side} if isinstance(places, dict) else set()
    return ["auto", "hybrid"] if len(hosts) > 1 else ["auto"]


def judge(binary, path, transport):
    with open(path) as f:
        case = json.load(f)
    for policy in policies(case):
        why = judge_one(binary, path, case, transport, policy)
        if why:
            return policy + ": " + why
    return ""


def judge_one(binary, path, case, transport, policy):
    expect = case["expect"]  # the command skips it
    if expect["outcome"] == "planned":
        command = [binary, "plan", path, "--json", "--policy", policy]
    else:
        command = [binary, "rehearse", path, "--json", "--dump", "--transport", transport, "--policy", policy]
    r = subprocess.run(command, capture_output=True, text=True, timeout=120)
    try:
        got = json.loads(r.stdout)
    except ValueError:
        return "no JSON: exit %d %s" % (r.returncode, (r.stderr or r.stdout)[-200:])
    if expect["outcome"] == "error":
        if got.get("outcome") != "error" or r.returncode != 2:
            return "accepted (exit %d)" % r.returncode
        if got["code"] != expect["code"]:
            return "code %s, not %s: %s" % (got["code"], expect["code"], got["message"])
        absent = [m for m in expect.get("mentions", []) if m not in got["message"]]
        return "the message lacks %s: %s" % (absent, got["message"]) if absent else ""
    if r.returncode != 0:
        return "exit %d: %s" % (r.returncode, json.dumps(got)[:300])
    if expect["outcome"] == "planned":
        return ""
    have = {(b["rank"], b["buffer"]): b["values"] for b in got["destination"]}
    for b in expect["destination"]:
        if have.get((b["rank"], b["buffer"])) != wanted(case, b):
            return "rank %d %s holds %s" % (b["rank"], b["buffer"], str(have.get((b["rank"], b["buffer"])))[:100])
    return ""


NCCL_CHECKER = os.path.abspath("loader/testing/nccl_checker/libheadrace_nccl_checker.so")  # in the runfiles


def main():
    binary, folder, transport = sys.argv[1:4]
    if transport == "nccl":  # on no GPU: over what moves the bytes and checks the calls
        os.environ.update(HEADRACE_CUDA_RUNTIME=NCCL_CHECKER, HEADRACE_NCCL=NCCL_CHECKER, NCCL_MULTI_RANK_GPU_ENABLE="1")
    paths = sorted(glob.glob(os.path.join(folder, "*.json")))
    assert len(paths) > 30, "the cases are missing"
    failed = 0
    for path in paths:
        why = judge(binary, path, transport)
        if why:
            failed += 1
            print(os.path.basename(path), "-", why)
    print("%d of %d cases as expected over %s" % (len(paths) - failed, len(paths), transport))
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
