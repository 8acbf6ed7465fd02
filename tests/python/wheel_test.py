"""What is in the installed wheel, and what its library shows to the process that loads it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DISTRIBUTION = importlib.metadata.distribution("headrace")
SITE = Path(str(DISTRIBUTION.locate_file("")))
LIBRARY = SITE / "headrace/libheadrace.so"
KERNELS = SITE / "headrace/libheadrace_cuda.so"
TOOLKIT = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc"
BUNDLED = sorted(SITE.glob("headrace.libs/*"))


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def run_python(script: str, *arguments: str) -> str:
    # -I: neither PYTHONPATH nor the working directory, only what is installed.
    return run(sys.executable, "-I", "-c", script, *arguments)


class SymbolsTest(unittest.TestCase):
    def test_only_the_c_interface_is_exported(self) -> None:
        exported = [line.split()[-1] for line in run("nm", "-D", "--defined-only", str(LIBRARY)).splitlines()]
        self.assertIn("hr_plan", exported)
        self.assertEqual([name for name in exported if not name.startswith("hr_")], [])

    def test_gpu_kernels_are_there_where_a_toolkit_was(self) -> None:
        self.assertEqual(KERNELS.exists(), TOOLKIT.exists())
        if not KERNELS.exists():
            self.skipTest("built without a CUDA toolkit")
        exported = [line.split()[-1] for line in run("nm", "-D", "--defined-only", str(KERNELS)).splitlines()]
        self.assertEqual(exported, ["HeadraceKernels"])
        self.assertNotIn("cuda", run("readelf", "-d", str(KERNELS)).replace(KERNELS.name, ""))
        # It loads without a driver.
        run_python(f"import ctypes; ctypes.CDLL({str(KERNELS)!r}).HeadraceKernels.restype = ctypes.c_void_p")

    def test_no_symbol_is_unique_in_the_process(self) -> None:
        self.assertGreater(len(BUNDLED), 10)
        for path in (LIBRARY, *BUNDLED):
            symbols = run("readelf", "-W", "--dyn-syms", str(path))
            self.assertIn("GLOBAL", symbols, path)
            self.assertNotIn(" UNIQUE ", symbols, path)

    def test_bundled_libraries_have_names_of_their_own(self) -> None:
        for path in BUNDLED:
            self.assertRegex(path.name, r"^[\w+.-]+-[0-9a-f]{8}\.so[.0-9]*$")
            self.assertIn(f"[{path.name}]", run("readelf", "-d", str(path)), "its SONAME")

    def test_nothing_but_the_c_library_comes_from_the_system(self) -> None:
        maps = run_python(
            "import json\n"
            "from headrace import core\n"
            "before = open('/proc/self/maps').read()\n"
            "core.plan({'tensors': [], 'source': [], 'destination': []})\n"
            "print(json.dumps([before, open('/proc/self/maps').read()]))"
        )
        before, after = (set(re.findall(r"\S+\.so[.0-9]*$", text, re.MULTILINE)) for text in json.loads(maps))
        self.assertNotIn(str(LIBRARY), before)  # an import alone loads nothing
        loaded = {Path(path) for path in after - before}
        self.assertIn(LIBRARY, loaded)
        outside = {path.name.split(".")[0] for path in loaded if SITE not in path.parents}
        self.assertLessEqual(outside, {"libstdc++", "libgcc_s", "libm", "libz", "libpthread", "libdl", "librt", "libc"})


class ContentTest(unittest.TestCase):
    def test_fits_every_python(self) -> None:
        text = DISTRIBUTION.read_text("WHEEL") or ""
        self.assertIn("Root-Is-Purelib: false", text)
        self.assertRegex(text, r"(?m)^Tag: py3-none-manylinux_2_\d+_x86_64$")
        self.assertEqual(DISTRIBUTION.metadata["Requires-Python"], ">=3.10")
        self.assertIsNone(DISTRIBUTION.requires)

    def test_files(self) -> None:
        names = {str(path) for path in DISTRIBUTION.files or []}
        for name in ("core.py", "errors.py", "py.typed", "vllm/plugin.py", "torch/__init__.py", "bin/headrace"):
            self.assertIn(f"headrace/{name}", names)
        self.assertEqual([name for name in names if "test" in Path(name).name], [])

    def test_entry_points(self) -> None:
        points = {(p.group, p.name, p.value) for p in DISTRIBUTION.entry_points}
        self.assertEqual(
            points,
            {
                ("console_scripts", "headrace", "headrace.cli:main"),
                ("vllm.general_plugins", "headrace", "headrace.vllm.plugin:register"),
            },
        )
        self.assertEqual(run_python("import headrace; print(headrace.__version__)").strip(), DISTRIBUTION.version)

    def test_the_command_runs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "empty.json"
            path.write_text('{"tensors": [], "source": [], "destination": []}')
            figures = json.loads(run(str(SITE / "headrace/bin/headrace"), "plan", "--json", str(path)))
        self.assertEqual(figures["outcome"], "planned")
        again = json.loads(
            run_python(
                "import json; from headrace import core\n"
                "print(json.dumps(core.plan({'tensors': [], 'source': [], 'destination': []})))"
            )
        )
        for its_own in ("outcome", "stream_list", "decisions"):
            del figures[its_own]
        self.assertEqual({**figures, "plan_seconds": 0}, {**again, "plan_seconds": 0})

    def test_a_package_without_its_library_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(
                SITE / "headrace", Path(folder) / "headrace", ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
            said = run_python(
                "import sys; sys.path.insert(0, sys.argv[1])\n"
                "from headrace import core, errors\n"
                "try: core.plan({})\n"
                "except errors.InternalError as e: print(e)",
                folder,
            )
        self.assertIn(f"{folder}/headrace/libheadrace.so is missing", said)
        self.assertIn("tools/dev_tree.sh", said)


if __name__ == "__main__":
    unittest.main()
