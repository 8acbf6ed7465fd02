"""libheadrace.so over ctypes: declarations, texts and errors. engine_adapters/c_api/headrace.h is the contract.

ctypes.CDLL gives up the interpreter's lock during every call, so that calls that wait stop no other Python thread. The
library is loaded at the first use, with its symbols kept to itself (RTLD_LOCAL).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from headrace.errors import Error, InternalError, StateError

_TEXT = ctypes.c_void_p  # a char* that hr_free takes: c_char_p would lose the address
_ADDRESSES = ctypes.POINTER(ctypes.c_void_p)
_OUT = ctypes.POINTER(ctypes.c_void_p)
_GENERATION = ctypes.POINTER(ctypes.c_uint64)

# Every function but hr_free, the ..._free and hr_receiver_serving returns an error text or NULL.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "hr_plan": (ctypes.c_char_p, ctypes.c_char_p, _OUT),
    "hr_coordinator_start": (ctypes.c_char_p, _OUT),
    "hr_coordinator_address": (ctypes.c_void_p, _OUT),
    "hr_coordinator_status": (ctypes.c_void_p, _OUT),
    "hr_coordinator_stop": (ctypes.c_void_p,),
    "hr_publisher_join": (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, _ADDRESSES, ctypes.c_size_t, _OUT),
    "hr_publisher_publish": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double, ctypes.c_size_t),
    "hr_publisher_await_release": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double),
    "hr_publisher_await_commit": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double),
    "hr_publisher_close": (ctypes.c_void_p, ctypes.c_double),
    "hr_publisher_status": (ctypes.c_void_p,),
    "hr_publisher_stats": (ctypes.c_void_p, _OUT),
    "hr_receiver_join": (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, _ADDRESSES, ctypes.c_size_t, _OUT),
    "hr_receiver_next_generation": (ctypes.c_void_p, ctypes.c_double, _GENERATION),
    "hr_receiver_stage": (
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_char_p,
        _ADDRESSES,
        ctypes.c_size_t,
        ctypes.c_size_t,
    ),
    "hr_receiver_apply": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t),
    "hr_receiver_commit": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t),
    "hr_receiver_abandon": (ctypes.c_void_p, ctypes.c_char_p),
    "hr_receiver_close": (ctypes.c_void_p, ctypes.c_double),
    "hr_receiver_carry": (ctypes.c_void_p, _OUT),
    "hr_receiver_status": (ctypes.c_void_p,),
    "hr_receiver_waiting_for": (ctypes.c_void_p, _OUT),
    "hr_receiver_stats": (ctypes.c_void_p, _OUT),
    "hr_checkpoint_open": (ctypes.c_char_p, _OUT),
    "hr_checkpoint_part": (ctypes.c_void_p, ctypes.c_int, _OUT),
    "hr_checkpoint_memory": (ctypes.c_void_p, _OUT),
}
_FREES = ("hr_free", "hr_coordinator_free", "hr_publisher_free", "hr_receiver_free", "hr_checkpoint_free")


@functools.cache
def library() -> ctypes.CDLL:
    """libheadrace.so beside this file. InternalError says where it was looked for and what to do."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libheadrace.so")
    if not os.path.exists(path):
        raise InternalError(
            "internal",
            f"{path} is missing: this copy of the package was not built. Install Headrace's wheel, or make a "
            "development tree by tools/dev_tree.sh.",
        )
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise InternalError(
            "internal",
            f"{path} cannot be loaded: {e}. Install the wheel that was made for this system; a development tree needs "
            "the packages of tools/setup.sh.",
        ) from e
    for name, arguments in _ARGUMENTS.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, _TEXT
    for name in _FREES:
        function = getattr(lib, name)
        function.argtypes, function.restype = (ctypes.c_void_p,), None
    lib.hr_receiver_serving.argtypes = (ctypes.c_void_p, _GENERATION)
    lib.hr_receiver_serving.restype = ctypes.c_int
    return lib


def _take(text: int) -> str:
    """Copies and frees a text of the library."""
    try:
        return ctypes.string_at(text).decode()
    finally:
        library().hr_free(text)


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns an error text; raises the Error that it describes."""
    error = getattr(library(), name)(*arguments)
    if error is not None:
        raise Error.from_json(json.loads(_take(error)))


def call_text(name: str, *arguments: Any) -> str:
    """The same for a function whose last parameter gives a text."""
    out = ctypes.c_void_p()
    call(name, *arguments, ctypes.byref(out))
    assert out.value is not None
    return _take(out.value)


def call_json(name: str, *arguments: Any) -> Any:
    """The same for a text that is JSON."""
    return json.loads(call_text(name, *arguments))


def call_handle(name: str, *arguments: Any) -> int:
    """The same for a function whose last parameter gives a handle."""
    out = ctypes.c_void_p()
    call(name, *arguments, ctypes.byref(out))
    assert out.value is not None
    return out.value


class Handle:
    """A handle of the library that is freed once, when its owner closed it or was collected and no call uses it.

    Thread rules: any thread. At the interpreter's exit what is left is freed, the newest first.
    """

    def __init__(self, owner: object, what: str, address: int, free: Callable[[int], None]) -> None:
        self._what = what
        self._address = address
        self._free = free
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._finalizer = weakref.finalize(owner, self._release)

    @contextlib.contextmanager
    def use(self) -> Iterator[int]:
        """The address, which is not freed inside. StateError "closed" after close()."""
        with self._lock:
            if self._closed:
                raise StateError("closed", f"this {self._what} was closed; make a new one")
            self._users += 1
        try:
            yield self._address
        finally:
            with self._lock:
                self._users -= 1
                last = self._closed and self._users == 0
            if last:
                self._free(self._address)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Frees the handle, as soon as no other thread is inside use(). Idempotent."""
        self._finalizer()

    def _release(self) -> None:
        with self._lock:
            last = not self._closed and self._users == 0
            self._closed = True
        if last:
            self._free(self._address)
