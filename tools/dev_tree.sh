#!/bin/bash
# Makes DIR/headrace, the Python package as links into this checkout beside fresh libraries and a headrace command,
# so that PYTHONPATH=DIR runs the sources as they are. Run it again after files were added or C++ was changed.
# Usage: tools/dev_tree.sh DIR [BAZEL_STARTUP_OPTION...]
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$1/headrace/bin"
tree=$(cd "$1/headrace" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

targets=(//engine_adapters/c_api:libheadrace.so //cli:headrace //kernels/cuda:library_if_any)
bazel "$@" build --ui_event_filters=-info --noshow_progress --symlink_prefix=/ "${targets[@]}"
built=$(bazel "$@" info --symlink_prefix=/ bazel-bin 2>/dev/null)

# Files that are gone leave no link behind.
find "$tree" -type l -delete
for path in "$root"/engine_adapters/python/*.py "$root"/engine_adapters/python/py.typed; do
  ln -s "$path" "$tree/${path##*/}"
done
for package in vllm torch; do ln -s "$root/engine_adapters/$package" "$tree/$package"; done
# Copies, by renames: processes that have them open keep the old ones.
install_file() {
  install -m 755 "$1" "$2.new"
  mv "$2.new" "$2"
}
install_file "$built/engine_adapters/c_api/libheadrace.so" "$tree/libheadrace.so"
install_file "$built/cli/headrace" "$tree/bin/headrace"
kernels=$built/kernels/cuda/libheadrace_cuda.so
[ ! -e "$kernels" ] || install_file "$kernels" "$tree/libheadrace_cuda.so"
# What an installation would add: the version, and the entry points by which vLLM finds the plugin.
python3 - "$tree/../headrace-0.dist-info" <<'PYTHON'
import pathlib, sys, tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
groups = {"console_scripts": project["scripts"], **project["entry-points"]}
lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in groups.items()]
(folder / "entry_points.txt").write_text("\n".join(lines))
PYTHON
echo "dev tree: PYTHONPATH=${tree%/headrace}"
