#!/usr/bin/env python3
"""Every tensor of every model record, from the planner's units and from reference_models, and the published totals.

usage: models_test.py PRINT_MODELS RECORDS [unittest arguments]
"""
import os
import subprocess
import sys
import unittest
from typing import Any

import reference_models

PRINT_MODELS = os.path.abspath(sys.argv.pop(1))
RECORDS = reference_models.load_records(sys.argv.pop(1))

Tensors = dict[str, tuple[list[int], str]]


def printed(name: str) -> tuple[list[int], Tensors]:
    """What the units of a model are: [tensors, bytes, layers], and each tensor's shape and dtype."""
    lines = subprocess.run([PRINT_MODELS, name], check=True, capture_output=True, text=True).stdout.splitlines()
    word, said, *totals = lines[0].split()
    assert (word, said) == ("model", name), lines[0]
    tensors: Tensors = {}
    for line in lines[1:]:
        tensor, dtype, *shape = line.split()
        assert tensor not in tensors, f"{tensor} is in two units"
        tensors[tensor] = ([int(extent) for extent in shape], dtype)
    return [int(total) for total in totals], tensors


class ModelsTest(unittest.TestCase):
    def test_units_are_all_tensors(self) -> None:
        self.assertGreater(len(RECORDS), 30)
        facts = 0
        for name, record in RECORDS.items():
            with self.subTest(model=name):
                reference = dict(reference_models.build(record))
                (count, size, _), tensors = printed(name)
                self.assertEqual(sorted(reference.keys() - tensors.keys())[:5], [], "missing in the units")
                self.assertEqual(sorted(tensors.keys() - reference.keys())[:5], [], "only in the units")
                different = [(t, reference[t], tensors[t]) for t in reference if reference[t] != tensors[t]]
                self.assertEqual(different[:5], [])
                expected_count, _, expected_size = reference_models.stats(reference)
                self.assertEqual((count, size), (expected_count, expected_size))
                for fact in record.get("expect", []):
                    self.check_published(fact, tensors)
                    facts += 1
        self.assertGreater(facts, 25)

    def check_published(self, fact: dict[str, Any], tensors: Tensors) -> None:
        if fact["what"] == "tensors+shapes":  # a list of another project; its totals are facts of their own
            return
        count, params, size = reference_models.stats(tensors, fact.get("skip", ()))
        value = {"params": params, "bytes": size, "tensors_total": count}[fact["what"]]
        self.assertLessEqual(abs(value / fact["value"] - 1), fact.get("tol", 0.005), f"{fact} {value}")

    def test_counts_that_others_rely_on(self) -> None:
        main = [t for t in printed("deepseek-v3-bf16")[1] if ".layers.61." not in t]
        self.assertEqual(len(main), 45395)
        self.assertEqual(printed("kimi-k3-bf16")[0][0], 249756)
        self.assertEqual(printed("qwen3-32b")[0][:2], [707, 65524246528])


if __name__ == "__main__":
    unittest.main()
