"""The `headrace` command: what steers running engines is here, the rest is the binary that the package carries."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn, Sequence

from headrace.driver import PAUSE_MODES, SHADOWS, Driver
from headrace.engines import HttpEngine
from headrace.errors import Error, InputError
from headrace.progress import ProgressBar, human_bytes, human_seconds, table

EXIT_OK, EXIT_FAILED, EXIT_BAD_INPUT = 0, 1, 2

# Commands of the binary, and what they do.
_BINARY = Path(__file__).resolve().parent / "bin" / "headrace"
_BINARY_COMMANDS = {
    "plan": "plan a manifest and prove the plan",
    "rehearse": "move made-up weights through a manifest and check every byte",
    "demo": "swap a real model's weights into two engines that serve meanwhile",
}
_HANDED_ON = (*_BINARY_COMMANDS, "demo-trainer", "demo-worker", "rehearse-rank")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0; 1: the machine, a peer or a deadline failed; 2: bad input."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv and argv[0] in _HANDED_ON:
        return _hand_on(argv)
    parser = _parser()
    try:
        options = parser.parse_args(argv)
        options.run(options)
    except Error as error:
        return _fail(error, "--json" in argv)
    except KeyboardInterrupt:
        return 130
    return EXIT_OK


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError("invalid_option", f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    binary = "\n".join(f"  {name:<10} {does}" for name, does in _BINARY_COMMANDS.items())
    parser = _Parser(
        prog="headrace",
        description="Headrace: a trainer's weights, straight into the buffers of running inference engines.",
        epilog=f"without an engine (headrace COMMAND --help says more):\n{binary}\n\n"
        "exit status: 0; 1: the machine, a peer or a deadline failed; 2: bad input or options",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="running engines")

    def command(name: str, does: str, run: Any) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=does, description=does[0].upper() + does[1:] + ".", allow_abbrev=False)
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="print one JSON document")
        made.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for each wait (600)")
        made.add_argument("--api-key-file", metavar="FILE", help="holds the servers' key, where they ask for one")
        return made

    def engines(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--engine", action="append", required=True, metavar="URL", help="a vLLM server; repeat it for several"
        )
        does = "what becomes of running requests (keep)"
        made.add_argument("--pause", choices=PAUSE_MODES, default="keep", help=does)

    made = command("publish", "hot-swap a checkpoint directory into running servers", _publish)
    made.add_argument("directory", metavar="DIR", help="model.safetensors, or its index and shards")
    engines(made)
    made.add_argument("--shadow", choices=SHADOWS, help="where weights land; left out: as the servers are configured")
    made.add_argument("--transport", default="host", help="how bytes travel: host, ucx (host)")
    made.add_argument("--generation", type=int, metavar="N", help="left out: one more than the largest that is served")
    made.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where the coordinator listens; servers on other hosts must reach it (127.0.0.1:0)",
    )
    made.add_argument("--tls-certificate", metavar="FILE", help="PEM: the coordinator's own; needed beyond loopback")
    made.add_argument("--tls-key", metavar="FILE", help="PEM: its key")
    made.add_argument("--tls-ca", metavar="FILE", help="PEM: whose certificate it is; servers are configured with theirs")
    made.add_argument("--trust-network", action="store_true", help="beyond loopback without TLS")

    made = command("drive", "swap a published generation into servers: pause, update, cache resets, resume", _drive)
    engines(made)
    made.add_argument("--generation", type=int, required=True, metavar="G")
    made.add_argument("--shadow", choices=SHADOWS, help="left out: as the servers joined")
    does = "JSON with coordinator, token, job, and engine (the first one's number, 0): join it first; - reads stdin"
    made.add_argument("--init", metavar="FILE", help=does)

    made = command("status", "what a server's workers serve, and what they wait for", _status)
    made.add_argument("url", metavar="URL")

    made = command("explain", "how each parameter of a server's model is filled, and why", _explain)
    made.add_argument("url", metavar="URL")
    return parser


def _publish(options: argparse.Namespace) -> None:
    from headrace import core  # loads libheadrace.so
    from headrace.publish import publish

    files = (options.tls_certificate, options.tls_key, options.tls_ca)
    if any(files) and not all(files):
        raise InputError("invalid_option", "--tls-certificate, --tls-key and --tls-ca come together")
    engines = [_engine(url, options) for url in options.engine]
    bar = ProgressBar(sys.stderr)
    try:
        report = publish(
            options.directory,
            engines,
            shadow=options.shadow,
            transport=options.transport,
            generation=options.generation,
            pause_mode=options.pause,
            listen=options.listen,
            tls=core.ClientTls(options.tls_ca) if all(files) else None,
            coordinator_tls=core.ServerTls(options.tls_certificate, options.tls_key) if all(files) else None,
            trust_network=options.trust_network,
            timeout=options.timeout,
            progress=None if options.json else bar.update,
        )
    finally:
        bar.close()
    _print_swap(report, options.json)


def _drive(options: argparse.Namespace) -> None:
    engines = [_engine(url, options) for url in options.engine]
    job = _job(options.init) if options.init else {}
    shadow = options.shadow or job.get("shadow") or _joined_shadow(engines)
    known = {name: job.pop(name, None) for name in ("job", "token", "coordinator")}
    driver = Driver(
        engines, **known, options=job | {"shadow": shadow}, pause_mode=options.pause, deadline=options.timeout
    )
    if options.init:
        driver.init()
    _print_swap(driver.swap(options.generation), options.json)


def _status(options: argparse.Namespace) -> None:
    workers = _engine(options.url, options).status()
    if options.json:
        print(json.dumps({"outcome": "ok", "workers": workers}))
        return
    rows = [["worker", "serving", "staged", "streamed", "shadow", "job", "waits for", "last error"]]
    for worker in workers:
        error = worker["error"]
        rows.append(
            [
                str(worker["worker"]),
                "nothing" if worker["serving"] is None else str(worker["serving"]),
                "" if worker["staged"] is None else str(worker["staged"]),
                f"{human_bytes(worker['streamed_bytes'])} of {human_bytes(worker['needed_bytes'])}",
                worker["shadow"] or "",
                (worker["job"] or "") if worker["joined"] else "in none",
                worker["waiting_for"] or "",
                f"{error['code']}: {error['message']}" if error else "",
            ]
        )
    print(table(rows))


def _explain(options: argparse.Namespace) -> None:
    workers = _engine(options.url, options).explain()
    if options.json:
        print(json.dumps({"outcome": "ok", "workers": workers}))
        return
    for worker in workers:
        parameters = worker["parameters"]
        rows = [["parameter", "install", "bytes", "from", "reason"]]
        rows += [[p["name"], p["install"], human_bytes(p["bytes"]), _origin(p), p["reason"]] for p in parameters]
        print(f"worker {worker['worker']}\n\n{table(rows)}\n")
        for install in ("direct", "loader", "kept"):
            found = [p["bytes"] for p in parameters if p["install"] == install]
            if found:
                print(f"  {install:<8}{len(found):>6} parameters   {human_bytes(sum(found))}")
        print(
            f"\n  memory: shadow {human_bytes(worker['shadow_bytes'])}, loader {human_bytes(worker['loader_bytes'])}\n"
        )


def _print_swap(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"outcome": "ok"} | report))
        return
    rows = [["engine", "server", "waited", "transfer", "verify", "pause", "commit", "bytes"]]
    for engine in report["engines"]:
        seconds, workers = engine["seconds"], engine["workers"]

        def slowest(field: str) -> str:
            return human_seconds(max((w[field] for w in workers if field in w), default=0.0))

        rows.append(
            [
                str(engine["engine"]),
                engine["name"],
                human_seconds(seconds["staged"]) if "staged" in seconds else "",
                slowest("transfer_seconds"),
                slowest("verify_seconds"),
                human_seconds(seconds["paused"]),
                slowest("commit_seconds"),
                human_bytes(sum(w.get("bytes", 0) for w in workers)),
            ]
        )
    print(f"Generation {report['generation']} is live.\n\n{table(rows)}")
    for engine in report["engines"]:
        for note in engine["notes"]:
            print(f"\nengine {engine['engine']}: {note}")


def _engine(url: str, options: argparse.Namespace) -> HttpEngine:
    key = _read(options.api_key_file).strip() if options.api_key_file else None
    return HttpEngine(url, api_key=key, timeout=options.timeout)


def _job(file: str) -> dict[str, Any]:
    try:
        job = json.loads(_read(file))
    except ValueError as error:
        raise InputError("malformed", f'"{file}" is not JSON: {error}') from None
    if not isinstance(job, dict):
        raise InputError("malformed", f'"{file}" must hold an object with coordinator, token and job')
    return job


def _joined_shadow(engines: list[HttpEngine]) -> str:
    shadows = {worker["shadow"] for engine in engines for worker in engine.status()}
    if len(shadows) != 1 or None in shadows:
        raise InputError("invalid_option", "say --shadow host, device or off: the servers do not all say the same")
    return str(shadows.pop())


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("io", f'cannot read "{file}": {error}') from None


def _origin(parameter: dict[str, Any]) -> str:
    """The checkpoint's tensors: nothing for one of the same name, without the part that is the parameter's too."""
    names = parameter["tensors"]
    if names == [parameter["name"]]:
        return ""
    parent = parameter["name"].rpartition(".")[0].rpartition(".")[0] + "."
    shown = [name.removeprefix(parent) for name in names[:3]]
    return ", ".join(shown) + (f", +{len(names) - 3}" if len(names) > 3 else "")


def _hand_on(argv: list[str]) -> int:
    try:
        os.execv(_BINARY, [str(_BINARY), *argv])
    except OSError as error:
        message = f"{_BINARY} cannot be run: {error.strerror}; this installation of headrace lacks its binary"
        return _fail(InputError("io", message), "--json" in argv)


def _fail(error: Error, as_json: bool) -> int:
    bad_input = isinstance(error, InputError)
    if as_json:
        document: dict[str, Any] = {"outcome": "error" if bad_input else "failed"}
        document |= {"code": error.code, "message": error.message}
        report = getattr(error, "report", None)
        print(json.dumps(document if report is None else document | {"report": report}))
    else:
        print(f"headrace: {error}", file=sys.stderr)
    return EXIT_BAD_INPUT if bad_input else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
