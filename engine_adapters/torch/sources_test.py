import unittest

import torch
from torch import nn

from headrace.errors import InputError
from headrace.torch.sources import current_tensors, places, refuse_unwanted, sources


def _wanted(**shapes):
    return {name: {"shape": list(shape), "dtype": "F32"} for name, shape in shapes.items()}


class SourcesTest(unittest.TestCase):
    def test_a_part_of_what_engines_read(self):
        tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}
        made = sources(tensors, _wanted(b=(4,), a=(2, 3), c=(5,)), None, 6)
        self.assertEqual([t["name"] for t in made.part["tensors"]], ["a", "b", "c"])
        self.assertEqual([(b["buffer"], b["rank"], b.get("convert")) for b in made.part["source"]],
                         [("a", 6, None), ("b", 6, "rne")])
        self.assertEqual(made.part["topology"]["source"], [{"rank": 6}])
        self.assertEqual(made.memory, {name: tensor.data_ptr() for name, tensor in tensors.items()})
        self.assertEqual(made.unwanted, set())

    def test_a_second_name_of_a_tied_weight_is_left_out(self):
        weight = nn.Parameter(torch.zeros(3, 2))
        tensors = {"embed": weight, "head": weight, "other": torch.zeros(3, 2)}
        made = sources(tensors, _wanted(embed=(3, 2)), None, 0)
        self.assertEqual([b["buffer"] for b in made.part["source"]], ["embed"])
        self.assertEqual(made.unwanted, {"other"})

    def test_a_tied_weight_that_engines_read_twice_is_offered_twice(self):
        weight = nn.Parameter(torch.zeros(3, 2))
        made = sources({"embed": weight, "head": weight.detach()}, _wanted(embed=(3, 2), head=(3, 2)), None, 0)
        self.assertEqual(made.memory["embed"], made.memory["head"])

    def test_a_part_of_the_same_memory_is_not_tied(self):
        weight = torch.zeros(4, 2)
        made = sources({"all": weight, "half": weight[:2]}, _wanted(all=(4, 2)), None, 0)
        self.assertEqual(made.unwanted, {"half"})

    def test_another_shape(self):
        with self.assertRaises(InputError) as caught:
            sources({"a": torch.zeros(2, 3)}, _wanted(a=(3, 2)), None, 1)
        error = caught.exception
        self.assertEqual((error.code, error.tensor, error.rank), ("shape_mismatch", "a", 1))

    def test_unwanted_on_all_ranks_that_have_it(self):
        refuse_unwanted([({"head"}, {"head", "embed"}), (set(), {"head", "embed"})])  # rank 0's shard is empty
        refuse_unwanted([(set(), {"a"}), (set(), {"b"})])
        with self.assertRaises(InputError) as caught:
            refuse_unwanted([({"value"}, {"value"}), (set(), {"embed"})])
        self.assertEqual((caught.exception.code, caught.exception.tensor), ("unwanted", "value"))

    def test_what_is_no_tensor(self):
        with self.assertRaises(InputError) as caught:
            current_tensors({"a": torch.zeros(1), "step": 3})
        self.assertEqual(caught.exception.tensor, "step")

    def test_places_change_with_memory_and_shape_alone(self):
        model = nn.Linear(3, 2)
        before = places(current_tensors(model))
        with torch.no_grad():
            model.weight.add_(1)
        self.assertEqual(places(current_tensors(model)), before)
        model.bias = nn.Parameter(model.bias.detach().clone())
        changed = places(current_tensors(model))
        self.assertEqual([name for name in before if changed[name] != before[name]], ["bias"])
        turned = dict(current_tensors(model), weight=model.weight.detach().t())
        self.assertNotEqual(places(turned)["weight"], before["weight"])


if __name__ == "__main__":
    unittest.main()
