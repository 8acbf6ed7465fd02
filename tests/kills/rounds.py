"""One generation in which a process is killed: brings the job into a state, holds it there, and looks at what becomes
of it afterwards."""
import concurrent.futures
import random
import threading

from job import PUBLISHERS, WORKERS, Dead, Engine, Job, Process, Violation

STEPS = ("next", "stage", "apply", "commit")


class Victim:
    def __init__(self, kind: str, rank: int = 0):
        self.kind, self.rank = kind, rank

    @property
    def name(self) -> str:
        if self.kind == "publisher":
            return "publisher without a replica" if self.rank == 2 else "publisher with a replica"
        if self.kind == "worker":
            return "the only worker of an engine" if self.rank == 2 else "one of two workers"
        return "coordinator"

    def process(self, job: Job) -> Process:
        if self.kind == "publisher":
            return job.publishers[self.rank]
        return job.engines[WORKERS[self.rank][0]].workers[self.rank] if self.kind == "worker" else job.coordinator


class Round:
    def __init__(self, job: Job, victim: Victim, state: str, rng: random.Random):
        self.job, self.victim, self.state, self.rng = job, victim, state, rng
        self.generation = job.begin_generation()
        if victim.kind == "worker":
            number = WORKERS[victim.rank][0]
        elif state in ("voted", "committed"):
            number = 0  # of two workers
        elif state == "applying":
            number = 0 if job.engines[0].shadow else 1
        else:
            number = rng.randrange(2)
        self.engine, self.other = job.engines[number], job.engines[1 - number]
        self.done: dict[int, str] = {}  # by worker: the last step that went well
        self.failed: dict[int, tuple[str, dict]] = {}  # the step that did not, and its answer
        self.decided: list[Engine] = []  # before the kill
        self._background: dict[int, concurrent.futures.Future] = {}  # by worker
        self._held: list[Process] = []
        self._paused: set[int] = set()
        self._pausing = threading.Lock()
        self._published: set[int] = set()
        self._publishing: list = []
        self.noticed = False  # the coordinator had seen the death before anybody went on
        self.fates: dict[int, str] = {}  # by engine: "committed", "gave up", "not reached", "gone"
        self.poisoned = 0  # workers

    def __str__(self) -> str:
        return (f"engine {self.engine.number} {'with' if self.engine.shadow else 'without'} a shadow, decided before: "
                f"{[e.number for e in self.decided]}, held: {[p.name for p in self._held]}, noticed before the "
                f"release: {self.noticed}, steps done: {self.done}, failed: {self.failed}")

    # ---- towards the state

    def worker(self, rank: int) -> Process:
        return self.job.engines[WORKERS[rank][0]].workers[rank]

    def progress(self, rank: int, last: str) -> None:
        """One worker's steps up to `last`, or until one fails."""
        engine, worker = self.job.engines[WORKERS[rank][0]], self.worker(rank)
        for step in STEPS[:STEPS.index(last) + 1]:
            if rank in self.failed or (rank in self.done and STEPS.index(self.done[rank]) >= STEPS.index(step)):
                continue
            if step == ("apply" if engine.shadow else "stage"):
                self._pause(engine)
            if worker.killed:
                return
            answer = self._ended(worker, step)
            if answer is None:
                return
            if answer["code"]:
                self.failed[rank] = (step, answer)
            else:
                self.done[rank] = step
                if step == "next" and answer["generation"] != self.generation:
                    raise Violation(f"{worker.name} was told of {answer['generation']}, not of {self.generation}")

    def _ended(self, worker: Process, step: str) -> dict | None:
        """The step's answer; None when the worker was killed meanwhile."""
        try:
            return worker.tell(step, generation=self.generation)
        except Dead:
            return None

    def all_to(self, engines, last: str) -> None:
        self.job.all_at_once(lambda rank: self.progress(rank, last), [r for e in engines for r in e.ranks])

    def _start(self, ranks, last: str) -> None:
        self._background.update((rank, self.job.submit(self.progress, rank, last)) for rank in ranks)

    def _hold(self, process: Process, where: str) -> None:
        process.hold(where)
        self._held.append(process)

    def _pause(self, engine: Engine) -> None:
        with self._pausing:
            if engine.number not in self._paused:
                engine.pause()
                self._paused.add(engine.number)

    def publish(self, ranks) -> None:
        ranks = [r for r in ranks if r not in self._published]
        self._published.update(ranks)
        self.job.publish(ranks)

    def _publish_held(self, rank: int) -> None:
        publisher = self.job.publishers[rank]
        self._hold(publisher, "copy")
        self._published.add(rank)
        self._publishing.append((publisher, publisher.ask({"do": "publish", "generation": self.generation})))
        publisher.wait_held("copy")

    def drive(self) -> None:
        victim, state, rng = self.victim, self.state, self.rng
        publisher = victim.rank if victim.kind == "publisher" else rng.choice(PUBLISHERS)
        others = [r for r in PUBLISHERS if r != publisher]
        # Where nobody can take over, what survivors publish afterwards waits for the one that died.
        early = publisher == 2 or rng.random() < 0.5
        if state == "copying":
            if early:
                self.publish(others)
            self._publish_held(publisher)
            return
        if state == "published":
            self.publish([publisher])
            return
        self.publish(PUBLISHERS)
        self.all_to(self.job.engines, "next")
        if state == "sending":
            self._hold(self.job.publishers[publisher], "send")
            self._start(range(len(WORKERS)), "stage")
            self.job.publishers[publisher].wait_held("send")
            return
        if rng.random() < 0.5:
            self.all_to([self.other], "commit")
            self.decided.append(self.other)
        if state != "announced":
            self._drive_engine()

    def _drive_engine(self) -> None:
        engine, state = self.engine, self.state
        mine = self.victim.rank if self.victim.kind == "worker" else self.rng.choice(engine.ranks)
        if state == "streaming":
            self._hold(self.worker(mine), "stream")
            self._start(engine.ranks, "stage")
            self.worker(mine).wait_held("stream")
            return
        if state == "voted":
            peer = 1 - mine
            self._hold(self.worker(peer), "stream")
            self._start(engine.ranks, "stage")
            self.worker(peer).wait_held("stream")
            self.job.await_words(
                lambda words: f"engine 0 worker {peer} to vote on generation {self.generation}" in words)
            return
        self.all_to([engine], "stage")
        self.decided.append(engine)
        if state == "applying":
            self._hold(self.worker(mine), "apply")
            self._start(engine.ranks, "apply")
            self.worker(mine).wait_held("apply")
        if state in ("applied", "committed"):
            self.all_to([engine], "apply")
        if state == "committed":  # by one, either the victim or its peer
            first = self.rng.choice((0, 1))
            self._start([first], "commit")
            self.job.await_words(
                lambda words: f"engine 0 worker {1 - first} to commit generation {self.generation}" in words)

    # ---- afterwards

    def kill(self) -> None:
        epoch = self.job.coordinator.must("status")["epoch"]
        self.victim.process(self.job).kill()
        self.noticed = noticed = self.rng.random() < 0.5
        if self.victim.kind == "coordinator":
            if noticed:
                self.job.start_coordinator()
        # A commit that is under way puts the next epoch off; in "sending" nobody knows who has all bytes.
        elif noticed and self.engine not in self.decided and self.state != "sending":
            self.job.await_epoch_after(epoch)
        for process in self._held:
            if not process.killed:
                process.release()
        if self.victim.kind == "coordinator" and not noticed:
            self.job.start_coordinator()

    def finish(self) -> None:
        """Whoever lives goes as far as it gets."""
        for publisher, future in self._publishing:
            if publisher.killed:
                continue
            answer = publisher.result(future, "publish")
            if answer["code"]:
                raise Violation(f"{publisher.name}, publish: {answer['message']}")
        if not (self.alone and self.state in ("copying", "published")):
            living = [r for r in PUBLISHERS if not self.job.publishers[r].killed]
            self.publish(living)
            self.job.all_at_once(self._carry_on, range(len(WORKERS)))
        self._check()
        for number in self._paused:
            self.job.engines[number].resume()

    def _carry_on(self, rank: int) -> None:
        if rank in self._background:
            self._background[rank].result()
        if not self.worker(rank).killed:
            self.progress(rank, "commit")

    @property
    def alone(self) -> bool:
        return self.victim.kind == "publisher" and self.victim.rank == 2

    def _check(self) -> None:
        """All workers of an engine met the same fate, and the right one."""
        self.fates = {engine.number: self._fate(engine) for engine in self.job.engines}
        everywhere = self.victim.kind == "coordinator" or (self.victim.kind == "publisher" and not self.alone)
        must = list(self.job.engines) if everywhere else [e for e in self.decided if not self._lost_worker(e)]
        if self.victim.kind == "worker":  # the other engine
            must.append(self.job.engines[1 - WORKERS[self.victim.rank][0]])
        for engine in must:
            if self.fates[engine.number] != "committed":
                raise Violation(f"engine {engine.number} did not commit generation {self.generation}: {self.failed}")
        hopeless = self.alone and self.noticed and self.engine not in self.decided and self.state != "sending"
        if hopeless and self.fates[self.engine.number] == "committed":
            raise Violation(f"engine {self.engine.number} committed what nobody could finish")
        codes = {"": True, "peer_lost": not everywhere}
        for rank in PUBLISHERS:
            if rank in self._published and not self.job.publishers[rank].killed:
                answer = self.job.publishers[rank].tell("await", generation=self.generation)
                if not codes.get(answer["code"]):
                    raise Violation(f"publisher rank {rank}, await: {answer['code']}: {answer['message']}")

    def _lost_worker(self, engine: Engine) -> bool:
        return self.victim.kind == "worker" and WORKERS[self.victim.rank][0] == engine.number

    def _fate(self, engine: Engine) -> str:
        living = [r for r in engine.ranks if not engine.workers[r].killed]
        if not living:
            return "gone"
        fates = set()
        for rank in living:
            answer = engine.workers[rank].must("step")
            serving, holds = answer["serving"], answer["holds"]
            if serving is not None and serving != holds:
                raise Violation(f"engine {engine.number} worker {rank} may serve {serving} and holds {holds}")
            if rank in self.failed:
                step, why = self.failed[rank]
                dead = self.victim.process(self.job).name
                if why["code"] != "peer_lost" or dead not in why["message"]:
                    raise Violation(f"worker {rank}, {step}: {why['code']}: {why['message']}")
                if engine.shadow and step in ("next", "stage") and serving != self.generation - 1:
                    raise Violation(f"worker {rank} gave up in {step} and serves {serving}")
                fates.add("gave up")
            elif self.done.get(rank) == "commit":
                if serving != self.generation:
                    raise Violation(f"worker {rank} committed {self.generation} and serves {serving}")
                fates.add("committed")
            elif serving == self.generation - 1:
                fates.add("not reached")
            else:
                raise Violation(f"worker {rank} did nothing and serves {serving}")
            if serving is None:
                self.poisoned += 1
        if len(fates) != 1:
            raise Violation(f"engine {engine.number}: {fates}: {self.done}, {self.failed}")
        return fates.pop()

