"""One session of one engine worker: the native receiver, and with a shadow the thread that streams into it.

    session = Receiving(receiver, restate, shadow=True, transfer_timeout=120)
    session.obtain(g)            # every worker of the engine holds g and voted yes
    session.apply(g)             # g is in the live buffers; the host loads what goes through its own code
    session.commit(g)            # every worker of the engine has come here; the next one may come
    carried = session.close(60)

With a shadow a daemon thread takes announced generations in order and stages them while the engine serves; obtain()
waits for it, and after each it waits for the commit. Without one, obtain() stages into the live buffers in the
caller's thread.

The native receiver wants its calls from one thread at a time. The turn is passed with the state: the thread has it
while "waiting", the host's thread while "held" and "off".

After an error that ends the session, every call raises that error. Nothing that is served changes by it. A member that
is lost need not end it: where the job waits for it, or goes on without it, generations come again (docs/operations.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.errors import DeadlineError, Error, InternalError, StateError

logger = logging.getLogger("vllm.headrace")

# How long a wait for an announcement may keep the receiver from being closed, in seconds.
_POLL = 0.05


class Receiving:
    """See above. obtain, apply, commit, abandon and close from one thread; the properties from any."""

    def __init__(
        self,
        receiver: Any,
        restate: Callable[[], dict[str, Any]],
        *,
        shadow: bool,
        transfer_timeout: float,
        on_error: Callable[[Error], None],
        stream: Callable[[], int] = lambda: 0,
        use_gpu: Callable[[], None] = lambda: None,
    ) -> None:
        """receiver: a joined headrace.core.Receiver, owned from now on. restate: the live buffers as they are now;
        called in the thread that stages, before each generation. transfer_timeout: seconds. on_error: told, once and
        in whichever thread finds it, each generation that was given up and what ended the session. stream: the one that
        the engine's steps are on, for the core; called in the threads of apply() and obtain(). use_gpu:
        makes the worker's GPU the current one of the thread that streams: another one would get a context here."""
        self._receiver = receiver
        self._restate = restate
        self._transfer_timeout = transfer_timeout
        self._on_error = on_error
        self._stream_of_steps = stream
        self._use_gpu = use_gpu
        self._changed = threading.Condition()
        self._state = "waiting" if shadow else "off"
        self._next: int | None = None  # taken from the receiver, not staged yet (without a shadow)
        self._staging: int | None = None
        self._staged: int | None = None
        self._committed: int | None = None  # the last one of this session
        self._gave_up: tuple[int, Error] | None = None  # the last generation that failed and left the session alive
        self._error: Error | None = None  # what ended the session
        self._closing = False
        self._thread: threading.Thread | None = None
        if shadow:
            self._thread = threading.Thread(target=self._stream, name="headrace-stream", daemon=True)
            self._thread.start()

    @property
    def joined(self) -> bool:
        """The session stands: no error ended it and it was not closed. Notices a death that no call met yet."""
        return self._end_of_session() is None and not self._closing

    @property
    def staging(self) -> int | None:
        """The generation that streams now."""
        with self._changed:
            return self._staging

    @property
    def staged(self) -> int | None:
        """The generation that every worker of the engine voted for and that awaits its commit."""
        with self._changed:
            return self._staged

    @property
    def serving(self) -> int | None:
        """What the receiver says may be served; None: poisoned. Not after close(): its result says it."""
        return self._receiver.serving

    @property
    def committed(self) -> int | None:
        """The last generation that this session committed."""
        with self._changed:
            return self._committed

    def carry(self) -> dict[str, Any]:
        """What the next session takes over, as things are now."""
        return self._receiver.carry()

    @property
    def stats(self) -> dict[str, Any]:
        return self._receiver.stats

    @property
    def waiting_for(self) -> str:
        return self._receiver.waiting_for

    def obtain(self, generation: int) -> None:
        """Returns when `generation` is staged on all workers of the engine; waits at most transfer_timeout for it.

        StateError generation_not_growing: it, or a later one, was committed in this session. StateError malformed:
        another generation comes first and awaits its own update. DeadlineError: nobody published it in time. The
        generation's own error where it was given up; the session's where that ended.
        """
        deadline = time.monotonic() + self._transfer_timeout
        self._check_growing(generation)
        if self._thread is None:
            self._obtain_in_place(generation, deadline)
            return
        with self._changed:
            while self._staged is None:
                self._check_alive()
                if self._gave_up is not None and self._gave_up[0] == generation:
                    raise self._gave_up[1]
                remaining = deadline - time.monotonic()
                # A generation that streams ends by the receiver's own deadline, with a message that names the peer.
                if remaining <= 0 and self._staging is None:
                    raise self._not_published(generation)
                self._changed.wait(max(remaining, _POLL))
            self._check_alive()
            if self._staged != generation:
                raise _other_first(generation, self._staged)

    def apply(self, generation: int) -> None:
        """Writes the staged `generation` to the live buffers, after the engine's steps that are in flight. Then the host
        loads what goes through its own code: until the commit nobody asks for the live buffers, which it may take apart
        for that."""
        self._tell(generation, lambda: self._receiver.apply(generation, self._stream_of_steps()))

    def commit(self, generation: int) -> None:
        """After apply(): returns when all workers of the engine hold `generation`; the thread takes the next one. After
        an error, here and in apply(), `serving` says what it leaves: it ended the session, or the engine lost a worker
        for whom the job waits, and gave the generation up."""
        self._tell(generation, lambda: self._receiver.commit(generation))
        with self._changed:
            self._staged, self._committed = None, generation
            if self._thread is not None:
                self._state = "waiting"
            self._changed.notify_all()

    def abandon(self, error: Error) -> None:
        """The host failed after live bytes may have changed: ends the session by `error` for all members and leaves
        the worker poisoned. Only between obtain() and commit()."""
        self._end(error)
        self._receiver.abandon(error)

    def close(self, timeout: float) -> dict[str, Any]:
        """Leaves the session and returns what the next one takes as `carried`. Never raises for a session that is
        dead already. Waits for a generation that streams, which ends by transfer_timeout at the latest."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._transfer_timeout + timeout)
            if self._thread.is_alive():
                raise InternalError("internal", "the streaming thread does not end; the worker must be restarted")
        try:
            self._receiver.close(timeout)
        except Error as error:
            logger.info("Headrace: the session was left without a farewell: %s", error)
        return self._receiver.carry()

    def _tell(self, generation: int, call: Callable[[], None]) -> None:
        with self._changed:
            self._check_alive()
        try:
            call()
        except Error as error:
            if self._end_of_session() is None:
                self._give_up(generation, error)
            raise

    def _obtain_in_place(self, generation: int, deadline: float) -> None:
        self._check_alive()
        try:
            if self._next is None:
                self._next = self._receiver.next_generation(max(deadline - time.monotonic(), 0.0))
        except Error as error:
            if self._end_of_session() is not None:
                self._end(error)
                raise
            if isinstance(error, DeadlineError):
                raise self._not_published(generation) from error
            raise
        if self._next != generation:
            raise _other_first(generation, self._next)
        self._stage(generation)

    def _stage(self, generation: int) -> None:
        """Raises what became of the generation; the session is ended where that was the end of it."""
        with self._changed:
            self._staging, self._next, self._gave_up = generation, None, None
        gone: Error | None = None
        try:
            memory = self._restate()
        except Error as error:
            # The receiver must hear of it, to vote: the others wait for this worker. It finds all buffers gone.
            gone, memory = error, {}
        try:
            self._receiver.stage(generation, memory, self._stream_of_steps() if self._thread is None else 0)
        except Error as found:
            error = gone or found
            with self._changed:
                self._staging = None
            if self._end_of_session() is not None:
                self._end(error)
            else:
                self._give_up(generation, error)
            raise error from None
        with self._changed:
            self._staging, self._staged = None, generation
            if self._thread is not None:
                self._state = "held"
            self._changed.notify_all()

    def _give_up(self, generation: int, error: Error) -> None:
        """The session goes on; the same generation may come again."""
        self._on_error(error)
        with self._changed:
            self._staged, self._gave_up = None, (generation, error)
            if self._thread is not None:
                self._state = "waiting"
            self._changed.notify_all()

    def _stream(self) -> None:
        try:
            self._use_gpu()
            while self._my_turn():
                try:
                    generation = self._receiver.next_generation(_POLL)
                except Error as error:
                    # Who is lost may come back, for as long as the session stands. One that left does not.
                    if error.code not in ("deadline", "peer_lost") or self._end_of_session() is not None:
                        raise
                    continue
                try:
                    self._stage(generation)
                except Error as error:
                    if self._error is not None:
                        raise
                    logger.warning("Headrace: generation %d was given up: %s", generation, error)
        except Error as error:
            self._end(error)
            logger.warning("Headrace: the session ended: %s", error)
        except BaseException as defect:  # obtain() must not wait for a thread that is gone
            self._end(InternalError("internal", f"the streaming thread failed: {defect!r}"))
            logger.exception("Headrace: the streaming thread failed")

    def _my_turn(self) -> bool:
        with self._changed:
            while self._state == "held" and not self._closing and self._error is None:
                # A publisher that dies now is noticed by the commit; nothing but the host's thread ends this wait.
                self._changed.wait()
            return not self._closing and self._error is None

    def _end_of_session(self) -> Error | None:
        """What ended it, noticed by a call or not: a publisher may die while nothing is asked of the receiver."""
        with self._changed:
            if self._error is not None or self._closing:
                return self._error
        try:
            self._receiver.status()
        except Error as error:
            self._end(error)
            return error
        return None

    def _end(self, error: Error) -> None:
        with self._changed:
            self._staging = self._staged = None
            self._changed.notify_all()
            if self._error is not None:
                return
            self._error = error
        self._on_error(error)

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise StateError("aborted", "the session was closed")

    def _check_growing(self, generation: int) -> None:
        # Only this session's: a new incarnation of the job counts from 1 again.
        if self._committed is not None and generation <= self._committed:
            raise StateError(
                "generation_not_growing",
                f"generation {generation} was asked for, and {self._committed} was committed already",
            )

    def _not_published(self, generation: int) -> DeadlineError:
        return DeadlineError(
            "deadline",
            f"generation {generation} was not published within {self._transfer_timeout:g} s; "
            f"waiting for {self._receiver.waiting_for or 'nobody'}",
        )


def _other_first(generation: int, other: int) -> StateError:
    return StateError(
        "malformed",
        f"generation {generation} was asked for, but {other} comes first: generations are committed in order, "
        "one update each",
    )
