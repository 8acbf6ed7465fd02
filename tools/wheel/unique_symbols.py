"""Makes the unique symbols of shared objects ordinary ones.

gcc binds statics of inline functions and templates as STB_GNU_UNIQUE, which the dynamic loader resolves once for the
whole process, RTLD_LOCAL or not: two copies of gRPC of one version, ours and the host's, would share some statics and
not others. As ordinary global symbols they are found in their own library's scope only.

Only 64-bit little-endian ELF files, the ones that a wheel of this platform holds.
"""

from __future__ import annotations

import struct
from pathlib import Path

_SHT_DYNSYM = 11
_STB_GLOBAL = 1
_STB_GNU_UNIQUE = 10


def make_ordinary(path: Path) -> int:
    """Rewrites `path` in place; returns how many symbols were unique. ValueError: not such an ELF file."""
    data = bytearray(path.read_bytes())
    count = 0
    for offset in _dynamic_symbols(data, path):
        info = data[offset + 4]
        if info >> 4 == _STB_GNU_UNIQUE:
            data[offset + 4] = _STB_GLOBAL << 4 | info & 0xF
            count += 1
    if count:
        path.write_bytes(data)
    return count


def _dynamic_symbols(data: bytes | bytearray, path: Path) -> range:
    """The offsets of the Elf64_Sym entries of .dynsym."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
    (sections,) = struct.unpack_from("<Q", data, 40)  # e_shoff
    size, count = struct.unpack_from("<HH", data, 58)  # e_shentsize, e_shnum
    for i in range(count):
        # sh_type behind sh_name; sh_offset, sh_size, ..., sh_entsize
        (kind,) = struct.unpack_from("<I", data, sections + i * size + 4)
        if kind == _SHT_DYNSYM:
            offset, length = struct.unpack_from("<QQ", data, sections + i * size + 24)
            (entry,) = struct.unpack_from("<Q", data, sections + i * size + 56)
            return range(offset, offset + length, entry)
    raise ValueError(f"{path} has no dynamic symbols")
