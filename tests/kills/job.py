"""A job of real processes: a coordinator, three publishers and the three workers of two engines, whose requests go on
while its processes are killed and started again.

Publishers 0 and 1 are replicas of each other; publisher 2 alone holds a tensor. Engine 0 has two workers, engine 1 one.
Both workers of engine 0 want one tensor whole. Where publishers and workers are said to be on different hosts, `ucx`
relays it.
"""
import collections
import concurrent.futures
import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time

# Beyond every deadline of a member (30 s). What takes longer waits for ever.
LONG = 45.0
PUBLISHERS = (0, 1, 2)
WORKERS = ((0, 0), (0, 1), (1, 0))  # engine, worker; by rank
STEPS_PER_REQUEST = 3


def manifest(two_hosts: bool) -> dict:
    tensors = {"a": [256, 256], "n": [96, 128], "b": [128, 192]}
    whole = {"tensors": [{"name": n, "shape": s, "dtype": "BF16"} for n, s in tensors.items()], "source": [],
             "destination": [], "topology": {"source": [], "destination": []}}

    def add(side: str, rank: int, name: str, offset: list[int], shape: list[int]) -> None:
        whole[side].append({"rank": rank, "buffer": name, "dtype": "BF16", "shape": shape,
                            "pieces": [{"tensor": name, "tensor_offset": offset, "shape": shape,
                                        "buffer_offset": [0, 0]}]})

    for rank in (0, 1):
        add("source", rank, "a", [0, 0], [256, 256])
        add("source", rank, "n", [0, 0], [96, 128])
    add("source", 2, "b", [0, 0], [128, 192])
    for rank in (0, 1):
        add("destination", rank, "a", [128 * rank, 0], [128, 256])
        add("destination", rank, "b", [0, 96 * rank], [128, 96])
        add("destination", rank, "n", [0, 0], [96, 128])
    for name, shape in tensors.items():
        add("destination", 2, name, [0, 0], shape)
    whole["topology"]["source"] = [{"rank": r, "host": "trainer" if two_hosts else "engine"} for r in PUBLISHERS]
    whole["topology"]["destination"] = [{"rank": r, "host": "engine", "engine": f"e{e}"}
                                        for r, (e, _) in enumerate(WORKERS)]
    return whole


class Violation(AssertionError):
    """What must never happen."""


class Dead(Exception):
    """The process was killed."""


class Process:
    def __init__(self, binary: str, name: str, first: dict):
        self.name = name
        self._process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lock = threading.Lock()
        self._pending: dict[int, concurrent.futures.Future] = {}
        self._ids = 0
        self._held: queue.Queue[str] = queue.Queue()
        self.killed = False
        self._gone = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.started = self.ask(first)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        for line in self._process.stdout:
            answer = json.loads(line)
            if "held" in answer:
                self._held.put(answer["held"])
                continue
            with self._lock:
                self._pending.pop(answer["id"]).set_result(answer)
        with self._lock:
            self._gone = True
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_exception(self._end())

    def _end(self) -> Exception:
        return Dead(self.name) if self.killed else Violation(f"{self.name} ended: {self._process.wait(LONG)}")

    def ask(self, order: dict) -> concurrent.futures.Future:
        future: concurrent.futures.Future = concurrent.futures.Future()
        with self._lock:
            if self._gone:
                future.set_exception(self._end())
                return future
            self._ids += 1
            self._pending[self._ids] = future
            try:
                self._process.stdin.write(json.dumps({**order, "id": self._ids}) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # the reader tells
        return future

    def tell(self, do: str, **more: object) -> dict:
        """Asks and waits for the answer."""
        return self.result(self.ask({"do": do, **more}), do)

    def result(self, future: concurrent.futures.Future, what: str) -> dict:
        try:
            answer = future.result(LONG)
        except concurrent.futures.TimeoutError:
            raise Violation(f"{self.name} waits beyond its deadline: {what}") from None
        if answer["code"] == "deadline":
            raise Violation(f"{self.name}, {what}: {answer['message']}")
        return answer

    def hold(self, where: str) -> None:
        self.must("arm", hold=where)

    def must(self, do: str, **more: object) -> dict:
        answer = self.tell(do, **more)
        if answer["code"]:
            raise Violation(f"{self.name}, {do} {more}: {answer['code']}: {answer['message']}")
        return answer

    def wait_held(self, where: str) -> None:
        try:
            held = self._held.get(timeout=LONG)
        except queue.Empty:
            raise Violation(f"{self.name} never came to '{where}'") from None
        assert held == where, (held, where)

    def release(self) -> None:
        self.ask({"do": "release"})

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.killed = True
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(LONG)
        self._reader.join(LONG)
        with contextlib.suppress(BrokenPipeError):  # what was not read
            self._process.stdin.close()
        self._process.stdout.close()

    def leave(self) -> None:
        self.must("leave")
        self.killed = True
        self._process.stdin.close()
        if self._process.wait(LONG) != 0:
            raise Violation(f"{self.name} left with status {self._process.returncode}")
        self._reader.join(LONG)
        self._process.stdout.close()


class Engine:
    """Its front end: requests in lock-step over all workers, by a thread that never ends, unless it is paused."""

    def __init__(self, number: int, shadow: bool):
        self.number, self.shadow = number, shadow
        self.workers: dict[int, Process] = {}  # by rank
        self.served: collections.Counter = collections.Counter()  # requests by generation
        self.cut = self.refused = 0
        self.mixed: list[str] = []
        self._changed = threading.Condition()
        self._pauses = 0
        self._busy = False
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def ranks(self) -> list[int]:
        return [rank for rank, (engine, _) in enumerate(WORKERS) if engine == self.number]

    def pause(self) -> None:
        with self._changed:
            self._pauses += 1
            self._changed.wait_for(lambda: not self._busy)

    def resume(self) -> None:
        with self._changed:
            self._pauses -= 1
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join(LONG)

    def step(self) -> list[dict]:
        """All workers' step; Dead when one is gone."""
        workers = [self.workers[rank] for rank in self.ranks]
        asked = [(worker, worker.ask({"do": "step"})) for worker in workers]
        return [worker.result(future, "step") for worker, future in asked]

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._pauses == 0)
                if self._over:
                    return
                self._busy = True
            try:
                self.request()
            except Dead:
                self.cut += 1
            except Violation as violation:
                self.mixed.append(str(violation))
            except KeyError:
                pass  # a worker is being started
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._over, timeout=0.003)  # leave the machine to the others

    def request(self) -> int | None:
        """A request over all workers; the generation that it met, None when the engine refuses it."""
        met = set()
        for step in range(STEPS_PER_REQUEST):
            answers = self.step()
            serving = {answer["serving"] for answer in answers}
            if step == 0 and (None in serving or len(serving) != 1):
                self.refused += 1
                return None
            met |= serving | {answer["holds"] for answer in answers}
            if len(met) != 1:
                raise Violation(f"a request to engine {self.number} met {met}: {answers}")
        generation = met.pop()
        self.served[generation] += 1
        return generation


class Job:
    def __init__(self, binary: str, transport: str, shadow_of_first: bool, two_hosts: bool):
        self._binary, self.transport, self._two_hosts = binary, transport, two_hosts
        self._port = 0
        self.generation = 0
        self.coordinator: Process | None = None
        self.publishers: dict[int, Process] = {}
        self.engines = [Engine(0, shadow_of_first), Engine(1, not shadow_of_first)]
        self._pool = concurrent.futures.ThreadPoolExecutor(16)

    def start_coordinator(self) -> None:
        # Those that a killed process had accepted may hold its port for a moment.
        until = time.monotonic() + LONG
        while True:
            process = Process(self._binary, "the coordinator", {
                "role": "coordinator", "token": "secret", "port": self._port, "publishers": len(PUBLISHERS),
                "workers": [2, 1]})
            answer = process.result(process.started, "start")
            if answer["code"] == "" or answer["code"] != "address_in_use" or time.monotonic() > until:
                break
            process.kill()
        if answer["code"]:
            raise Violation(f"the coordinator: {answer['message']}")
        self.coordinator, self._port = process, answer["port"]

    def _member(self, name: str, role: dict, hold: str) -> Process:
        return Process(self._binary, name, {
            **role, "token": "secret", "port": self._port, "transport": self.transport, "chunk_bytes": 4096,
            "manifest": manifest(self._two_hosts), **({"hold": hold} if hold else {})})

    def start_publisher(self, rank: int, hold: str = "") -> Process:
        self.publishers[rank] = self._member(f"publisher rank {rank}", {"role": "publisher", "rank": rank}, hold)
        return self.publishers[rank]

    def start_worker(self, rank: int, hold: str = "") -> Process:
        engine, worker = WORKERS[rank]
        process = self._member(f"engine {engine} worker {worker}", {
            "role": "receiver", "rank": rank, "engine": engine, "worker": worker,
            "shadow": self.engines[engine].shadow}, hold)
        self.engines[engine].workers[rank] = process
        for generation in range(max(1, self.generation - 1), self.generation + 1):
            process.ask({"do": "know", "generation": generation})
        return process

    def workers(self) -> list[Process]:
        return [worker for engine in self.engines for worker in engine.workers.values()]

    def joined(self, *processes: Process) -> None:
        for process in processes:
            answer = process.result(process.started, "join")
            if answer["code"]:
                raise Violation(f"{process.name} did not join: {answer['code']}: {answer['message']}")

    def submit(self, f, *arguments):
        return self._pool.submit(f, *arguments)

    def all_at_once(self, f, what) -> list:
        return [future.result() for future in [self._pool.submit(f, each) for each in what]]

    def await_words(self, holds) -> str:
        """Until `holds` what the coordinator says that it waits for."""
        until = time.monotonic() + LONG
        while True:
            words = self.coordinator.must("status")["waiting_for"]
            if holds(words):
                return words
            if time.monotonic() > until:
                raise Violation(f"the coordinator goes on waiting for '{words}'")

    def await_epoch_after(self, epoch: int) -> None:
        """Until the coordinator has drawn its conclusions: another epoch, or none for want of a member."""
        until = time.monotonic() + LONG
        while True:
            status = self.coordinator.must("status")
            if status["epoch"] > epoch or "publisher rank 2" in status["waiting_for"]:
                return
            if time.monotonic() > until:
                raise Violation(f"the coordinator never noticed: {status}")

    def begin_generation(self) -> int:
        """Paints the next one; nobody publishes yet."""
        self.generation += 1
        asked = [(p, p.ask({"do": "paint", "generation": self.generation})) for p in self.publishers.values()]
        asked += [(w, w.ask({"do": "know", "generation": self.generation})) for w in self.workers()]
        for process, future in asked:
            if not process.killed:
                process.result(future, "paint")
        return self.generation

    def publish(self, ranks) -> None:
        self.all_at_once(lambda r: self.publishers[r].must("publish", generation=self.generation), ranks)

    def catch_up(self, engine: Engine, target: int, ranks: list[int] | None = None) -> None:
        """Workers take what is announced until they have `target`."""

        def take(rank: int) -> None:
            worker = engine.workers[rank]
            while True:
                generation = worker.must("next")["generation"]
                if generation > target:
                    raise Violation(f"{worker.name} was told of generation {generation}, not of {target}")
                if engine.shadow:
                    worker.must("stage", generation=generation)
                engine.pause()
                try:
                    if not engine.shadow:
                        worker.must("stage", generation=generation)
                    worker.must("commit", generation=generation)
                finally:
                    engine.resume()
                if generation == target:
                    return

        self.all_at_once(take, engine.ranks if ranks is None else ranks)

    def calm(self) -> None:
        """A generation without a death: everybody gets it, and serves it."""
        generation = self.begin_generation()
        self.publish(PUBLISHERS)
        self.all_at_once(lambda engine: self.catch_up(engine, generation), self.engines)
        self.all_at_once(lambda p: p.must("await", generation=generation), self.publishers.values())
        for engine in self.engines:
            engine.pause()
            try:
                met = engine.request()
            finally:
                engine.resume()
            if met != generation:
                raise Violation(f"engine {engine.number} serves {met}, not generation {generation}")
            if engine.mixed:
                raise Violation("; ".join(engine.mixed))

    def end(self) -> None:
        for engine in self.engines:
            engine.end()
        for process in [*self.publishers.values(), *self.workers(), *([self.coordinator] if self.coordinator else [])]:
            if not process.killed:
                process.kill()
        self._pool.shutdown()
