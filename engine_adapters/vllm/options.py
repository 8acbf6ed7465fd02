"""The options of the engine side, and where they come from.

Each option may stand in the init info (what the trainer sends with init_weight_transfer_engine) or in
`--additional-config '{"headrace": {...}}'` (what the server was started with). The init info wins. Unknown names and
wrong types are refused, never ignored.

| option           | type, default  | meaning |
|------------------|----------------|---------|
| coordinator      | str, required  | "host:port" of the job's coordinator |
| token            | str, required  | the job's token |
| job              | str, required  | the job's name |
| engine           | int, 0         | index of this engine in the job: all workers of one server share it |
| shadow           | str, required  | "host": a second set of buffers, while serving; "device": on the GPU; "off": the live ones |
| transport        | str, "host"    | how bytes travel |
| devices          | list, the core's | network devices of "ucx": ["eth0"] |
| tls              | mapping, none  | PEM files of this machine: {"ca", "certificate", "key", "server_name"}, all but ca optional |
| trust_network    | bool, false    | the token may cross a network without tls |
| chunk_bytes      | int, core's    | size of a message of a two-sided transport; equal at all members |
| staging_bytes    | int, core's    | cap on the chunks in flight |
| loader_bytes     | int, no cap    | cap on memory for tensors that go through the engine's own loader |
| join_timeout     | seconds, 120   | until all members have come, and then until they agreed |
| transfer_timeout | seconds, 120   | one generation: from the update to its last byte |
| commit_timeout   | seconds, 600   | from an engine's decision to its commit |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from headrace.driver import SHADOWS
from headrace.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options:
    """The table above. None: not given. Sizes are bytes, times are seconds."""

    coordinator: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    job: str | None = None
    engine: int = 0
    shadow: str | None = None
    transport: str = "host"
    devices: list[str] | None = None
    tls: dict[str, str] | None = None
    trust_network: bool = False
    chunk_bytes: int | None = None
    staging_bytes: int | None = None
    loader_bytes: int | None = None
    join_timeout: float = 120.0
    transfer_timeout: float = 120.0
    commit_timeout: float = 600.0

    def check_complete(self) -> None:
        """InputError invalid_option when an option without which no session can begin is missing."""
        for name in ("coordinator", "token", "job", "shadow"):
            if getattr(self, name) is None:
                raise _invalid(name, "is required: give it in the init info or in --additional-config")


def merge(init_info: Mapping[str, Any], additional_config: Mapping[str, Any] | None) -> Options:
    """The options of one session. `additional_config` is vLLM's own mapping; its "headrace" entry is read.

    InputError invalid_option: an unknown name, a wrong type or a value out of range; the message names it.
    """
    section = (additional_config or {}).get("headrace", {})
    given: dict[str, Any] = {}
    for place, values in (("--additional-config", section), ("the init info", init_info)):
        if not isinstance(values, Mapping):
            raise InputError("invalid_option", f'"headrace" in {place} is {_name(values)}, not a mapping of options')
        for name, value in values.items():
            if name not in _FIELDS:
                raise InputError(
                    "invalid_option", f'"{name}" in {place} is no option of headrace; there are: {", ".join(_FIELDS)}'
                )
            given[name] = _checked(name, value)
    return Options(**given)


_FIELDS = tuple(field.name for field in dataclasses.fields(Options))
_SIZES = ("chunk_bytes", "staging_bytes", "loader_bytes")
_TIMES = ("join_timeout", "transfer_timeout", "commit_timeout")


_TLS = ("ca", "certificate", "key", "server_name")


def _checked(name: str, value: Any) -> Any:
    if name == "trust_network":
        if not isinstance(value, bool):
            raise _invalid(name, f"must be true or false, not {_name(value)}")
        return value
    if name == "devices":
        if not isinstance(value, list) or not all(isinstance(device, str) and device for device in value):
            raise _invalid(name, "must be a list of names of network devices")
        return value
    if name == "tls":
        if not isinstance(value, Mapping) or not all(isinstance(file, str) and file for file in value.values()):
            raise _invalid(name, "must be a mapping to names of files")
        unknown = sorted(set(value) - set(_TLS), key=str)
        if unknown or "ca" not in value:
            wrong = f'has no "{unknown[0]}"' if unknown else 'lacks "ca"'
            raise _invalid(name, f"{wrong}; there are: {', '.join(_TLS)}")
        return dict(value)
    if name in _SIZES or name == "engine":
        least = 0 if name in ("engine", "loader_bytes") else 1
        if isinstance(value, bool) or not isinstance(value, int):
            raise _invalid(name, f"must be an integer, not {_name(value)}")
        if value < least:
            raise _invalid(name, f"is {value}, and must be at least {least}")
        return value
    if name in _TIMES:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _invalid(name, f"must be a number of seconds, not {_name(value)}")
        if not 0 < value < float("inf"):
            raise _invalid(name, f"is {value}, and must be positive and finite")
        return float(value)
    if not isinstance(value, str):
        raise _invalid(name, f"must be a string, not {_name(value)}")
    if not value:
        raise _invalid(name, "is empty")
    if name == "shadow" and value not in SHADOWS:
        raise _invalid(name, f'is "{value}"; there are {", ".join(SHADOWS)}')
    return value


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _invalid(name: str, what: str) -> InputError:
    return InputError("invalid_option", f'option "{name}" {what}')
