import unittest

import torch

from headrace.errors import InputError
from headrace.torch import dtypes


class DtypesTest(unittest.TestCase):
    def test_the_spellings_are_those_of_safetensors(self):
        # safetensors.torch's own table is the oracle, where torch has the type and the manifest the name.
        from safetensors.torch import _TYPES

        for name, dtype in _TYPES.items():
            if "F4" in name or name.endswith("FNUZ"):
                continue
            with self.subTest(name=name):
                self.assertEqual((dtypes.spelling(dtype), dtypes.torch_dtype(name)), (name, dtype))

    def test_what_has_no_counterpart(self):
        for call in (
            lambda: dtypes.spelling(torch.complex128),
            lambda: dtypes.spelling(torch.float4_e2m1fn_x2),
            lambda: dtypes.torch_dtype("F6_E2M3"),
            lambda: dtypes.torch_dtype("bfloat16"),
        ):
            with self.assertRaises(InputError) as caught:
                call()
            self.assertEqual(caught.exception.code, "dtype_mismatch")


if __name__ == "__main__":
    unittest.main()
