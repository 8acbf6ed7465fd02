"""Typed errors. Each carries a stable code, names what is wrong, and its class says what the caller can do.

The codes are those of planner/status.h ("uncovered", "peer_lost", ...). Python code that raises an error of its own
uses the nearest of them; "closed" (a method was called after close()) is the one code that exists in Python only.
"""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """The base of all errors of Headrace. Raise a subclass.

    code: stable spelling; message: what is wrong and what to do; tensor, buffer: names; rank: the rank, worker or
    publisher index that the error is about; peer: the other process ("publisher rank 2"). None where it is not known.
    str() is "code: message".
    """

    kind = ""  # what the caller can do; the spelling in JSON

    def __init__(
        self,
        code: str,
        message: str,
        *,
        tensor: str | None = None,
        buffer: str | None = None,
        rank: int | None = None,
        peer: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.tensor = tensor
        self.buffer = buffer
        self.rank = rank
        self.peer = peer

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive the default: worker processes send errors to their parents.
        return _from_json, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes and from_json turns back into an equal error of the same class."""
        return {
            "code": self.code,
            "kind": self.kind,
            "message": self.message,
            "tensor": self.tensor,
            "buffer": self.buffer,
            "rank": self.rank,
            "peer": self.peer,
        }

    @staticmethod
    def from_json(error: dict[str, Any]) -> Error:
        """The inverse of to_json. A kind of a later version becomes InternalError; KeyError: a field is missing."""
        made = _BY_KIND.get(error["kind"], InternalError)
        return made(
            error["code"],
            error["message"],
            tensor=error["tensor"],
            buffer=error["buffer"],
            rank=error["rank"],
            peer=error["peer"],
        )


class InputError(Error):
    """Fix the input: a manifest, an option, a file."""

    kind = "input"


class PeerError(Error):
    """A peer is gone, or the generation was given up: start again at a higher level."""

    kind = "peer"


class StateError(Error):
    """Fix the state first: a poisoned worker, buffers that moved, an object that was closed."""

    kind = "state"


class DeadlineError(Error):
    """A wait ended without its event."""

    kind = "deadline"


class CredentialsError(Error):
    """The token is wrong, or the peer belongs to another job."""

    kind = "credentials"


class ResourceError(Error):
    """Memory, files or disk do not suffice; the message says what was needed."""

    kind = "resource"


class DataLossError(Error):
    """Bytes that arrived are not the bytes that were sent."""

    kind = "data_loss"


class InternalError(Error):
    """A defect of Headrace."""

    kind = "internal"


_BY_KIND = {
    c.kind: c
    for c in (
        InputError,
        PeerError,
        StateError,
        DeadlineError,
        CredentialsError,
        ResourceError,
        DataLossError,
        InternalError,
    )
}


def _from_json(error: dict[str, Any]) -> Error:
    return Error.from_json(error)
