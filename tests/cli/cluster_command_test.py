"""The commands that plan a model under a layout, as their users meet them.

usage: cluster_command_test.py HEADRACE FOLDER_OF_CASES
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

BINARY, CASES = sys.argv[1:3]
MANIFEST = os.path.join(CASES, "22-fsdp-over-tp-strided.json")


def run(*words):
    return subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=120)


class ClusterCommandTest(unittest.TestCase):
    def json(self, *words, status=0):
        r = run(*words, "--json")
        self.assertEqual(r.returncode, status, r.stdout + r.stderr)
        self.assertEqual(r.stderr, "")
        return json.loads(r.stdout)

    def file(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "mine.json")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text if isinstance(text, str) else json.dumps(text))
        return path

    def test_plan_of_a_dense_model(self):
        plan = self.json("plan", "--layout", "doc-h100-4b")
        # Qwen3-4B on TP 8, one domain: everything is cut but the norms, which all eight have.
        hidden, layers, heads, kv_heads, head, inter, vocabulary = 2560, 36, 32, 8, 128, 9728, 151936
        matrices = layers * hidden * (2 * heads * head + 2 * kv_heads * head + 3 * inter) + vocabulary * hidden
        norms = layers * (2 * hidden + 2 * head) + hidden
        self.assertEqual(plan["outcome"], "planned")
        self.assertEqual(plan["tensors"], layers * 11 + 2)
        self.assertEqual(plan["needed_bytes"], 2 * (matrices + 8 * norms))
        self.assertEqual(plan["wire_bytes"], plan["needed_bytes"])
        self.assertEqual(plan["domain_needed_bytes"], 2 * (matrices + norms))
        self.assertEqual(plan["domain_wire_bytes"], plan["domain_needed_bytes"])
        self.assertLessEqual(plan["sender_max_over_mean"], 1.02)
        # Eight trainers that hold everything and eight engine ranks: nothing has to cross.
        self.assertLess(plan["cross_rail_share"], 0.01)
        self.assertEqual(plan["cross_rail_share"], plan["cross_rail_bytes"] / plan["domain_wire_bytes"])
        for field in ("copies", "plan_seconds", "proof_seconds", "peak_bytes", "receiver_copies", "manifest_bytes",
                      "operations_max", "groups_max"):
            self.assertGreater(plan[field], 0, field)
        self.assertRegex(plan["digest"], "^[0-9a-f]{64}$")
        self.assertEqual(self.json("plan", "--layout", "doc-h100-4b")["digest"], plan["digest"])

    def test_plan_of_a_mixture_of_experts(self):
        for policy in ("auto", "hybrid"):
            plan = self.json("plan", "--model", "deepseek-v3-bf16", "--layout", "doc-h100-dsv3", "--policy", policy)
            self.assertEqual((plan["policy"], plan["tensors"]), (policy, 45395))
            self.assertEqual(plan["domain_wire_bytes"] == plan["domain_needed_bytes"], policy == "auto")
            self.assertEqual(plan["wire_bytes"] == plan["needed_bytes"], policy == "auto")
            self.assertLessEqual(plan["stage_sender_max_over_mean"], 1.02)

    def test_a_narrow_spine_takes_longer(self):
        wide, narrow = (self.json("simulate", "--layout", "pr2413-4b-pp4dp2-tp4dp2", "--spine", share)
                        for share in ("1", "0.05"))
        self.assertEqual((wide["spine_share"], narrow["spine_share"]), (1, 0.05))
        crossing = wide["cross_rail_bytes"] / (0.05 * 16 * 50e9)  # 16 NICs of 50 GB/s
        self.assertGreaterEqual(narrow["simulated_seconds"], crossing)
        self.assertLess(narrow["simulated_seconds"], 1.2 * crossing)
        self.assertLess(wide["simulated_seconds"], 0.5 * crossing)
        r = run("simulate", "--layout", "pr2413-4b-pp4dp2-tp4dp2", "--spine", "0.05")
        self.assertIn("at line rates, of which a spine carries 0.05 between rails, not measured", r.stdout)
        self.assertNotIn("chunks simulated", r.stdout)
        endless = self.json("simulate", "--layout", "pr2413-4b-pp4dp2-tp4dp2", "--spine", "1e-12", status=2)
        self.assertEqual(endless["code"], "out_of_bounds")
        r = run("simulate", "--layout", "doc-h100-4b", "--spine", "2", "--json")
        self.assertEqual(r.returncode, 2)
        self.assertIn("spine_share", r.stdout + r.stderr)

    def test_plan_for_people(self):
        r = run("plan", "--layout", "doc-h100-30b-bf16")
        self.assertEqual(r.returncode, 0, r.stderr)
        for words in ("proven", "Megatron TP1 PP2 DP8 EP8, 16 ranks", "TP8 DP2", "busiest sender", "across rails", "digest", "expert"):
            self.assertIn(words, r.stdout)

    def test_simulate(self):
        times = self.json("simulate", "--layout", "doc-h100-30b-bf16")
        self.assertEqual(times["outcome"], "simulated")
        self.assertGreaterEqual(times["simulated_seconds"], times["bound_seconds"])
        self.assertLessEqual(times["simulated_seconds"], 1.15 * times["bound_seconds"])
        self.assertAlmostEqual(sum(times["by_phase"].values()), times["simulated_seconds"], places=9)
        self.assertEqual(times["bound_seconds"], max(b["seconds"] for b in times["bounds"].values()))
        # 61 GB into domains of eight GPUs with 50 GB/s each.
        self.assertAlmostEqual(times["bounds"]["entering"]["seconds"], 61.06e9 / (8 * 50e9), delta=0.002)
        r = run("simulate", "--layout", "doc-h100-30b-bf16")
        for words in ("not measured", "the refit", "no schedule is faster than", "published", "0.74 to 1.00"):
            self.assertIn(words, r.stdout)

    def test_pages(self):
        for verb, timeline in (("plan", False), ("simulate", True)):
            path = self.file("")
            r = run(verb, "--layout", "pr2971-h100-30b-ep4tp2pp2-tp4dp4", "--page", path)
            self.assertEqual(r.returncode, 0, r.stderr)
            with open(path, encoding="utf-8") as f:
                page = f.read()
            root = ElementTree.fromstring(page.removeprefix("<!doctype html>"))
            text = " ".join(root.itertext())
            self.assertIn("qwen3-30b-a3b", text)
            self.assertIn("rank 3 to rank ", text)
            self.assertEqual("Timeline (simulated)" in text, timeline)
            self.assertEqual(len(root.findall(".//svg")), 4 if timeline else 3)
        r = run("plan", "--layout", "doc-h100-4b", "--page", "/no/such/folder/page.html", "--json")
        self.assertEqual((r.returncode, json.loads(r.stdout)["code"]), (2, "io"))

    def test_explain_a_tensor_of_a_cluster(self):
        tensor = "model.layers.7.self_attn.k_proj.weight"
        told = self.json("explain", tensor, "--layout", "pr2971-h100-30b-ep8pp2-tp8dp2")
        # Four KV heads of 128 rows over TP 8: each head on two ranks of both replicas.
        self.assertEqual((told["shape"], told["dtype"]), ([512, 2048], "BF16"))
        self.assertEqual(sum(part["bytes"] for part in told["parts"]), 512 * 2048 * 2)
        homes = {rank: 0 for rank in range(16)}
        for part in told["parts"]:
            self.assertNotIn("expert", part)
            self.assertIn(part["from"]["rank"], range(8))  # layer 7 is on the first stage
            for landing in part["lands"]:
                self.assertEqual(landing["buffer"], "model.layers.7.self_attn.qkv_proj.weight")
                self.assertEqual(landing["bytes"], part["bytes"])
                for rank in landing["ranks"]:
                    homes[rank] += landing["bytes"]
        self.assertEqual(set(homes.values()), {128 * 2048 * 2})
        self.assertEqual(told["transfer"], "reshard")
        told = self.json("explain", tensor, "--layout", "pr2971-h100-30b-ep8pp2-tp8dp2", "--policy", "hybrid")
        self.assertEqual((told["transfer"], told["reason"]), ("broadcast", "broadcast by the policy: QKV (k_proj)"))
        r = run("explain", tensor, "--layout", "pr2971-h100-30b-ep8pp2-tp8dp2")
        self.assertIn("linear_qkv.weight", r.stdout)
        self.assertIn(", reshard: each byte to who wants it", r.stdout)

    def test_explain_an_expert(self):
        told = self.json("explain", "model.layers.5.mlp.experts.77.down_proj.weight", "--layout", "doc-h100-30b-bf16")
        self.assertEqual(told["unit"], "expert")
        self.assertEqual(sum(part["bytes"] for part in told["parts"]), 2048 * 768 * 2)
        for part in told["parts"]:
            self.assertEqual(part["from"]["rank"] % 8, 77 // 16)  # EP 8 has sixteen experts on each rank
            for landing in part["lands"]:
                # The 77th of the stacked [128, 2048, 96].
                self.assertEqual(landing["first_byte"], 77 * 2048 * 96 * 2)

    def test_engines_of_different_layouts(self):
        layout = self.file({"id": "mine", "model": "qwen3-30b-a3b", "gpu": "H100",
                            "train": {"gpus": 8, "tp": 1, "ep": 8},
                            "gen": [{"gpus": 8, "tp": 8}, {"gpus": 8, "tp": 4, "ep": 4}]})
        plan = self.json("plan", "--layout", layout)
        self.assertEqual(plan["destination_ranks"], 16)
        self.assertIn("TP8, 8 ranks; TP4 DP2 EP4, 8 ranks", run("plan", "--layout", layout).stdout)
        self.assertEqual(plan["domain_wire_bytes"], plan["domain_needed_bytes"])
        told = self.json("explain", "model.layers.5.mlp.experts.77.down_proj.weight", "--layout", layout)
        bytes_of = {rank: 0 for rank in range(16)}
        first_bytes = {rank: [] for rank in range(16)}
        for part in told["parts"]:
            for landing in part["lands"]:
                for rank in landing["ranks"]:
                    bytes_of[rank] += landing["bytes"]
                    first_bytes[rank].append(landing["first_byte"])
        # The 77th of [128, 2048, 96] of the first engine; the 13th of the third EP rank's [32, 2048, 768], twice.
        whole = 2048 * 768 * 2
        self.assertEqual(list(bytes_of.values()), [whole // 8] * 8 + [0, 0, whole, 0] * 2)
        self.assertEqual({min(first_bytes[rank]) for rank in range(8)}, {77 * whole // 8})
        self.assertEqual({min(first_bytes[rank]) for rank in (10, 14)}, {13 * whole})

    def test_explain_a_tensor_of_a_manifest(self):
        with open(MANIFEST, encoding="utf-8") as f:
            tensor = json.load(f)["tensors"][0]
        told = self.json("explain", tensor["name"], MANIFEST)
        self.assertEqual(told["shape"], tensor["shape"])
        figures = self.json("plan", MANIFEST)
        self.assertEqual(sum(copy["bytes"] for copy in told["copies"]), figures["wire_bytes"])
        self.assertIn("source ", run("explain", tensor["name"], MANIFEST).stdout)

    def test_layouts_and_models_of_ones_own(self):
        layout = {"id": "mine", "model": "tiny-qwen3", "gpu": "H100", "train": {"gpus": 4, "tp": 2},
                  "gen": {"gpus": 8, "tp": 4}}
        plan = self.json("plan", "--layout", self.file(layout))
        self.assertEqual((plan["model"], plan["layout"], plan["source_ranks"]), ("tiny-qwen3", "mine", 4))
        r = subprocess.run([BINARY, "plan", "--layout", "-", "--json"], input=json.dumps(layout), capture_output=True,
                           text=True, timeout=120)
        self.assertEqual(json.loads(r.stdout).get("digest"), plan["digest"])
        other = self.json("plan", "--layout", self.file(layout), "--model", "tiny-qwen3-moe")
        self.assertEqual(other["model"], "tiny-qwen3-moe")
        self.assertIn("not of tiny-qwen3-moe", " ".join(other["notes"]))
        layout["train"]["tp"] = 3
        error = self.json("plan", "--layout", self.file(layout), status=2)
        self.assertEqual(error["code"], "shape_mismatch")

    def test_files_of_other_systems(self):
        m2n = self.file({"_comment": "as published", "train": {"num_gpus": 16, "tp_size": 2, "pp_size": 4, "dp_size": 2},
                         "generation": {"num_gpus": 8, "tp_size": 4, "dp_size": 2}})
        model = self.file({f"model.layers.{i}.mlp.{n}_proj.weight": {"shape": shape, "dtype": "BF16"}
                           for i in range(4) for n, shape in (("gate", [512, 256]), ("down", [256, 512]))})
        plan = self.json("plan", "--layout", m2n, "--model", model, "--gpu", "H100")
        self.assertEqual((plan["tensors"], plan["needed_bytes"]), (8, 2 * 4 * 2 * 2 * 512 * 256))
        self.assertEqual(self.json("plan", "--layout", m2n, "--gpu", "H100", status=2)["code"], "invalid_option")
        self.assertIn("--gpu", self.json("plan", "--layout", m2n, "--model", model, status=2)["message"])
        nemo = self.file({"cluster": {"num_nodes": 4, "gpus_per_node": 8}, "policy": {
            "model_name": "Qwen/Qwen3-30B-A3B",
            "megatron_cfg": {"enabled": True, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2,
                             "expert_model_parallel_size": 4},
            "generation": {"backend": "vllm", "vllm_cfg": {"tensor_parallel_size": 4, "pipeline_parallel_size": 1},
                           "colocated": {"enabled": False, "resources": {"num_nodes": 2, "gpus_per_node": 8}}}}})
        plan = self.json("plan", "--layout", nemo, "--gpu", "H100", "--model", "qwen3-30b-a3b")
        self.assertEqual((plan["source_ranks"], plan["destination_ranks"], plan["tensors"]), (16, 16, 18867))
        error = self.json("plan", "--layout", "doc-h100-4b", "--gpu", "H100", status=2)
        self.assertIn("leave --gpu out", error["message"])

    def test_bad_input(self):
        for words, code, mention in (
                (("--layout", "nosuch"), "invalid_option", "doc-h100-4b"),
                (("--layout", "doc-h100-4b", "--model", "nosuch"), "invalid_option", "qwen3-4b"),
                (("--layout", "peer-perplexity-k2"), "malformed", "train.tp"),
                (("--layout", self.file("{")), "malformed", "JSON"),
                (("--layout", "/no/such.json"), "io", "/no/such.json"),
                (("--layout", "doc-h100-4b", "--policy", "best"), "invalid_option", "policy"),
                ((), "invalid_option", "--layout")):
            for verb in ("plan", "simulate", "explain x"):
                r = run(*verb.split(), *words, "--json")
                told = json.loads(r.stdout)
                self.assertEqual(told["code"], code, words)
                self.assertEqual(r.returncode, 2, words)
                self.assertIn(mention, told["message"])
        error = self.json("explain", "nosuch", "--layout", "doc-h100-4b", status=2)
        self.assertEqual(error["code"], "unknown_tensor")
        self.assertEqual(self.json("plan", MANIFEST, "--layout", "doc-h100-4b", status=2)["code"], "invalid_option")


    def test_options_of_a_layout_beside_a_manifest(self):
        for words in (("--page", "/no/such/page.html"), ("--model", "qwen3-4b"), ("--gpu", "H100")):
            error = self.json("plan", MANIFEST, *words, status=2)
            self.assertEqual(error["code"], "invalid_option", words)
            self.assertIn(words[0], error["message"])

    def test_explain_a_draft_tensor(self):
        for tensor in ("eh_proj.weight", "mlp.experts.255.up_proj.weight"):
            error = self.json("explain", f"model.layers.61.{tensor}", "--layout", "doc-h100-dsv3", status=2)
            self.assertEqual(error["code"], "unknown_tensor")
            self.assertIn("draft", error["message"])

    def test_more_than_a_rank_can_list(self):
        layout = {"id": "mine", "model": "kimi-k3-bf16", "gpu": "H100", "train": {"gpus": 1024, "fsdp": 1024},
                  "gen": {"gpus": 32, "tp": 32}}
        error = self.json("plan", "--layout", self.file(layout), status=1)
        self.assertEqual(error["code"], "out_of_memory")
        self.assertIn("cuts them too finely", error["message"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=1)
