"""How fast a request is decoded, and what it loses in a stretch of time."""

from __future__ import annotations

import json
import threading
import time
import urllib.request

Span = tuple[float, float]


class Decoding(threading.Thread):
    """Runs requests one after the other, without an end, and notes when each token came."""

    def __init__(self, url: str, tokens: int = 900) -> None:
        super().__init__(daemon=True)
        self._url, self._tokens, self._stopping = url, tokens, False
        self.requests: list[list[float]] = []  # time.monotonic of each token
        self.start()

    def run(self) -> None:
        while not self._stopping:
            self._decode()

    def stop(self) -> None:
        self._stopping = True
        self.join()

    def wait_for_tokens(self, count: int) -> None:
        """Until the running request has that many."""
        while not self.requests or len(self.requests[-1]) < count:
            time.sleep(0.01)

    def _decode(self) -> None:
        body = {"model": "model", "prompt": [5, 6, 7], "max_tokens": self._tokens, "temperature": 0, "stream": True}
        data = json.dumps({**body, "ignore_eos": True, "return_token_ids": True}).encode()
        request = urllib.request.Request(self._url + "/v1/completions", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as response:
            times: list[float] = []
            self.requests.append(times)
            for line in response:
                if self._stopping:
                    return  # the server notices, and ends it
                if line.startswith(b"data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    times += [time.monotonic()] * len(choice.get("token_ids") or [])


def token_seconds(times: list[float], span: Span) -> list[float]:
    """How long each token took that was begun and ended in the span."""
    return [end - begin for begin, end in zip(times, times[1:]) if span[0] <= begin and end <= span[1]]


def lost_seconds(times: list[float], span: Span, frozen: Span, alone: float) -> float | None:
    """What a request lost in the span: how much longer than `alone` (seconds) the tokens took that touch it. Time in
    which the engine was paused (`frozen`) is not counted. None when the request did not run all through the span."""
    if not times or times[0] > span[0] or times[-1] < span[1]:
        return None
    lost = 0.0
    for begin, end in zip(times, times[1:]):
        if begin < span[1] and end > span[0]:
            lost += end - begin - max(0.0, min(end, frozen[1]) - max(begin, frozen[0])) - alone
    return lost
