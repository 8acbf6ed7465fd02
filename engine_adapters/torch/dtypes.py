"""Torch's dtypes under the manifest's names, which are those of safetensors (docs/manifest.md)."""

import torch

from headrace.errors import InputError

# Torch has no name for F6_*; its F4 packs two elements into one, so that shapes differ from the manifest's.
_SPELLINGS = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
_DTYPES = {spelling: dtype for dtype, spelling in _SPELLINGS.items()}


def spelling(dtype: torch.dtype) -> str:
    """The manifest's name of a torch dtype. InputError `dtype_mismatch` when it has none."""
    if dtype not in _SPELLINGS:
        raise InputError("dtype_mismatch", f"{dtype} cannot be sent; known are {', '.join(sorted(_DTYPES))}")
    return _SPELLINGS[dtype]


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a manifest's name. InputError `dtype_mismatch` when torch has none."""
    if name not in _DTYPES:
        raise InputError("dtype_mismatch", f"torch has no dtype for {name!r}; known are {', '.join(sorted(_DTYPES))}")
    return _DTYPES[name]
