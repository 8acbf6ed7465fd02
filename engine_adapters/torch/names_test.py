import unittest

from headrace.errors import InputError
from headrace.torch.names import checkpoint_names, refuse_strangers, unwrapped


class NamesTest(unittest.TestCase):
    def test_wrappers_are_taken_off(self):
        for name, wanted in [
            ("model.layers.0.q.weight", "model.layers.0.q.weight"),
            ("module.model.norm.weight", "model.norm.weight"),
            ("_orig_mod.module.model.norm.weight", "model.norm.weight"),
            ("module._orig_mod.module.w", "w"),
            ("model.layers.0._checkpoint_wrapped_module.mlp._orig_mod.up.weight", "model.layers.0.mlp.up.weight"),
            ("_fsdp_wrapped_module.a._fsdp_wrapped_module.b", "a.b"),
            ("model.module.w", "model.module.w"),  # a part of the model that has this name
            ("module", "module"),
        ]:
            with self.subTest(name=name):
                self.assertEqual(unwrapped(name), wanted)

    def test_names_stay_without_a_map(self):
        self.assertEqual(checkpoint_names(["module.a", "b"], None), {"module.a": "a", "b": "b"})

    def test_a_mapping_renames_and_leaves_out(self):
        found = checkpoint_names(["_orig_mod.a", "b", "c"], {"a": "x.a", "b": None})
        self.assertEqual(found, {"_orig_mod.a": "x.a", "c": "c"})

    def test_a_function_is_asked_for_each(self):
        def names(name):
            return None if name.startswith("value") else "m." + name

        found = checkpoint_names(["module.a", "value.w"], names)
        self.assertEqual(found, {"module.a": "m.a"})

    def test_names_may_be_exchanged(self):
        self.assertEqual(checkpoint_names(["a", "b"], {"a": "b", "b": "a"}), {"a": "b", "b": "a"})

    def test_two_parameters_of_one_name(self):
        with self.assertRaises(InputError) as caught:
            checkpoint_names(["a", "b"], {"a": "b"})
        self.assertEqual((caught.exception.code, caught.exception.tensor), ("malformed", "b"))
        with self.assertRaises(InputError):
            checkpoint_names(["a", "module.a"], None)

    def test_what_is_no_name(self):
        for wrong in ("", 3):
            with self.assertRaises(InputError):
                checkpoint_names(["a"], lambda name: wrong)

    def test_a_mapping_of_parameters_that_no_rank_has(self):
        refuse_strangers(["module.a", "b"], {"a": "x", "b": None})
        refuse_strangers(["a"], None)
        refuse_strangers(["a"], lambda name: name)
        with self.assertRaises(InputError) as caught:
            refuse_strangers(["a"], {"a": "x", "z": "y"})
        self.assertEqual((caught.exception.code, caught.exception.tensor), ("unknown_tensor", "z"))


if __name__ == "__main__":
    unittest.main()
