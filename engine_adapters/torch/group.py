"""The trainer's ranks as one: what one of them raises is raised on all, so that no rank waits for one that gave up."""

from typing import Any, Callable, TypeVar

import torch.distributed as dist

from headrace.errors import Error, PeerError

T = TypeVar("T")


class Group:
    """A process group, or this process alone when torch.distributed is not in use.

    Methods are collective: all ranks call them in the same order. A collective that torch itself ends (a rank died)
    raises PeerError `peer_lost`.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._alone = group is None and not (dist.is_available() and dist.is_initialized())
        self.rank = 0 if self._alone else dist.get_rank(group)
        self.size = 1 if self._alone else dist.get_world_size(group)

    def each(self, call: Callable[[], T]) -> list[T]:
        """call() on every rank; returns what each of them returned. Values must be picklable.

        Where it raises, every rank raises the cause: the first rank's error that is not just the loss of another one
        (PeerError, DeadlineError), or else the first. What is no Error of Headrace is a PeerError `aborted` for the
        other ranks.
        """
        own: Exception | None = None
        value: Any = None
        try:
            value = call()
        except Exception as error:  # raised again below, when all ranks know of it
            own = error
        outcomes = self._gather((value, None if own is None else _told(own, self.rank)))
        failed = {rank: error for rank, (_, error) in enumerate(outcomes) if error is not None}
        if failed:
            causes = [rank for rank, error in failed.items() if error["kind"] not in ("peer", "deadline")]
            cause = (causes or list(failed))[0]
            if cause == self.rank:
                raise own
            raise Error.from_json(failed[cause]) from own
        return [value for value, _ in outcomes]

    def first(self, call: Callable[[], T]) -> T:
        """call() on rank 0 alone; all ranks return what it returned, or raise what it raised."""
        return self.each(lambda: call() if self.rank == 0 else None)[0]

    def _gather(self, value: Any) -> list[Any]:
        if self._alone:
            return [value]
        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value, group=self._group)
        except RuntimeError as error:
            raise PeerError("peer_lost", f"trainer rank {self.rank} lost the other ranks: {error}") from error
        return values


def _told(error: Exception, rank: int) -> dict[str, Any]:
    if isinstance(error, Error):
        return error.to_json()
    return PeerError("aborted", f"trainer rank {rank} failed: {type(error).__name__}: {error}", rank=rank).to_json()
