#!/usr/bin/env python3
"""SIGKILL of real processes in every state of the protocol, which each job is brought to and held in (rounds.py), over
`host` and `ucx`, with a shadow and in place. After each death

  - a generation that another publisher can finish is committed by every engine;
  - the workers of an engine meet one fate, no wait ends by its deadline, and no request ever met two generations, while
    requests go on all the time;
  - who died comes back as a new process, an engine takes the newest generation late, and the next one is whole.

usage: kills_test.py MEMBER [unittest arguments]
HEADRACE_KILLS sets how many (60), HEADRACE_TEST_SEED which.
"""
import collections
import os
import random
import sys
import time
import unittest

from job import PUBLISHERS, WORKERS, Job, Violation
from rounds import Round, Victim

MEMBER = os.path.abspath(sys.argv.pop(1))
SEED = int(os.environ.get("HEADRACE_TEST_SEED", "1"))
KILLS = int(os.environ.get("HEADRACE_KILLS", "60"))

STATES = ("joining", "planning", "planned", "idle", "copying", "published", "announced", "sending", "streaming",
          "voted", "decided", "applying", "applied", "committed")
REPLICA, ALONE = Victim("publisher", 0), Victim("publisher", 2)
FIRST, SECOND, ONLY = (Victim("worker", rank) for rank in range(3))
COORDINATOR = Victim("coordinator")


def cases(transport: str, shadow_of_first: bool, two_hosts: bool) -> list[tuple[Victim, str]]:
    # A worker that relays holds up the others of its engine: none votes before the others have their bytes.
    voted = [] if transport == "ucx" and two_hosts else ["voted"]
    sending = ["sending"] if transport == "ucx" else []
    found = []
    for publisher in (REPLICA, ALONE):
        found += [(publisher, state) for state in (
            "joining", "planning", "planned", "idle", "copying", "published", "announced", *sending, "streaming",
            *voted, "decided", "applying", "applied", "committed")]
    for worker in (FIRST, SECOND, ONLY):
        of_two = [*voted, "committed"] if worker.rank < 2 else []
        applying = ["applying"] if shadow_of_first == (worker.rank < 2) else []
        found += [(worker, state) for state in (
            "joining", "planned", "idle", "announced", "streaming", "decided", "applied", *of_two, *applying)]
    found += [(COORDINATOR, state) for state in (
        "joining", "planned", "idle", "copying", "published", "announced", *sending, "streaming", *voted,
        "decided", "applying", "applied", "committed")]
    return found


class Line:
    """Of the table: what became of the engines that lived."""

    def __init__(self) -> None:
        self.kills = self.committed = self.gave_up = self.poisoned = self.late = 0
        self.end = self.healed = 0.0


class Table:
    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], Line] = collections.defaultdict(Line)

    def print(self) -> None:
        print(f"{'killed':<30}{'state':<12}{'kills':>6}{'committed':>11}{'gave up':>9}{'poisoned':>10}"
              f"{'taken late':>12}{'slowest end':>13}{'healed':>8}")
        for (who, state), line in sorted(self.lines.items(), key=lambda item: (item[0][0], STATES.index(item[0][1]))):
            print(f"{who:<30}{state:<12}{line.kills:>6}{line.committed:>11}{line.gave_up:>9}{line.poisoned:>10}"
                  f"{line.late:>12}{line.end:>11.2f} s{line.healed:>6.2f} s")


class Deaths:
    """A job and who dies in it."""

    def __init__(self, job: Job, rng: random.Random, table: Table):
        self.job, self.rng, self.table = job, rng, table
        self.round: Round | None = None  # the last one

    def begin(self, joining: list[Victim]) -> None:
        """Starts the job, in which those die while they wait for the last one to join."""
        job = self.job
        job.start_coordinator()
        members = [Victim("publisher", rank) for rank in PUBLISHERS] + [FIRST, SECOND, ONLY]
        dying = {(victim.kind, victim.rank) for victim in joining}
        last = self.rng.choice([m for m in members if (m.kind, m.rank) not in dying])
        for member in members:
            if member is not last:
                self.start(member)
        name = f"publisher rank {last.rank}" if last.kind == "publisher" else "engine %d worker %d" % WORKERS[last.rank]

        def only_last(words: str) -> bool:
            return words == f"{name} to join"

        for victim in joining:
            job.await_words(only_last)
            killed = time.monotonic()
            victim.process(job).kill()
            if victim.kind == "coordinator":
                job.start_coordinator()
            else:
                dead = victim.process(job).name
                job.await_words(lambda words: dead in words)
                self.start(victim)
            job.await_words(only_last)
            self.count(victim, "joining", killed, killed_end=time.monotonic())
        job.await_words(only_last)
        self.start(last)
        job.joined(*job.publishers.values(), *job.workers())
        job.calm()

    def count(self, victim: Victim, state: str, killed: float, killed_end: float) -> Line:
        line = self.table.lines[victim.name, state]
        line.kills += 1
        line.end = max(line.end, killed_end - killed)
        line.healed = max(line.healed, time.monotonic() - killed)
        return line

    def start(self, victim: Victim) -> None:
        if victim.kind == "publisher":
            self.job.start_publisher(victim.rank)
        elif victim.kind == "worker":
            self.job.start_worker(victim.rank)

    def one(self, victim: Victim, state: str) -> None:
        if victim.kind == "publisher" and victim.rank != 2:
            victim = Victim("publisher", self.rng.choice((0, 1)))
        if state == "idle":
            self.idle(victim)
        elif state in ("planning", "planned"):
            self.planning(victim, state)
        else:
            self.in_a_generation(victim, state)

    def in_a_generation(self, victim: Victim, state: str) -> None:
        self.round = a_round = Round(self.job, victim, state, self.rng)
        a_round.drive()
        killed = time.monotonic()
        a_round.kill()
        a_round.finish()
        ended = time.monotonic()
        late = self.bring_back(victim)
        self.job.calm()
        line = self.count(victim, state, killed, ended)
        for fate in a_round.fates.values():
            line.committed += fate == "committed"
            line.gave_up += fate in ("gave up", "not reached")
        line.poisoned += a_round.poisoned
        line.late += late

    def bring_back(self, victim: Victim) -> int:
        """As a new process; an engine with or without the workers that lived. Returns the workers that took the newest
        generation, which all publishers have."""
        job = self.job
        if victim.kind == "publisher":
            job.joined(job.start_publisher(victim.rank))
        if victim.kind != "worker":
            return 0
        engine = job.engines[WORKERS[victim.rank][0]]
        anew = {victim.rank}
        if self.rng.random() < 0.5:
            anew = set(engine.ranks)
            for rank in anew - {victim.rank}:
                engine.workers[rank].kill()
        job.joined(*[job.start_worker(rank) for rank in sorted(anew)])
        lacking = [r for r in engine.ranks if engine.workers[r].must("step")["serving"] != job.generation]
        job.catch_up(engine, job.generation, lacking)
        return len(lacking)

    def idle(self, victim: Victim) -> None:
        killed = time.monotonic()
        victim.process(self.job).kill()
        if victim.kind == "coordinator":
            self.job.start_coordinator()
        late = self.bring_back(victim)
        self.job.calm()
        self.count(victim, "idle", killed, time.monotonic()).late += late

    def planning(self, victim: Victim, state: str) -> None:
        """A replica that left in order comes back, and with it a new epoch. "planned": the victim waits for the other
        replica, which is held in its planning."""
        job = self.job
        comes = victim.rank if victim.kind == "publisher" and victim.rank < 2 else 0
        before = job.coordinator.must("status")["epoch"]
        job.publishers[comes].leave()
        job.await_epoch_after(before)
        job.await_words(lambda words: words == "")
        held = victim.process(job) if state == "planning" else job.publishers[1 - comes]
        if held is job.publishers[comes]:
            held = job.start_publisher(comes, hold="plan")
        else:
            held.hold("plan")
            job.start_publisher(comes)
        held.wait_held("plan")
        others = [p.name for p in [*job.publishers.values(), *job.workers()] if p is not held]
        job.await_words(lambda words: "to plan" in words and not any(name in words for name in others))
        killed = time.monotonic()
        dead = victim.process(job)
        dead.kill()
        if victim.kind == "coordinator":
            job.start_coordinator()
        if not held.killed:
            held.release()
        committed = 0
        if dead is job.publishers[comes]:  # the others go on
            generation = job.begin_generation()
            job.publish([r for r in PUBLISHERS if r != comes])
            job.all_at_once(lambda engine: job.catch_up(engine, generation), job.engines)
            committed = len(job.engines)
        ended = time.monotonic()
        self.start(victim)
        job.joined(job.publishers[comes])
        if victim.kind != "coordinator":
            job.joined(victim.process(job))
        job.calm()
        self.count(victim, state, killed, ended).committed += committed


class KillsTest(unittest.TestCase):
    def test_kills(self) -> None:
        rng = random.Random(SEED)
        table = Table()
        served: collections.Counter = collections.Counter()
        begin = time.monotonic()
        left = KILLS
        while left > 0:
            ways = [("host", True, False), ("ucx", False, True), ("ucx", True, False), ("host", False, True)]
            if rng.random() < 0.5:  # a short run sees two of them
                ways = ways[2:] + ways[:2]
            for i, way in enumerate(ways):
                mine = rng.sample(all_of := cases(*way), len(all_of))
                mine = mine[:min(left, max(10, left // (len(ways) - i)))]
                self.job(way, mine, rng, table, served)
                left -= len(mine)
        table.print()
        print(f"{KILLS} kills in {time.monotonic() - begin:.0f} s; requests: {served['served']} served, "
              f"{served['cut']} cut by a death, {served['refused']} refused, 0 mixed")

    def job(self, way: tuple[str, bool, bool], mine: list, rng: random.Random, table: Table,
            served: collections.Counter) -> None:
        job = Job(MEMBER, *way)
        what = "%s, shadow_of_first %s, two_hosts %s, HEADRACE_TEST_SEED=%d" % (*way, SEED)
        try:
            deaths = Deaths(job, rng, table)
            what_next = "joining"
            joining = [victim for victim, state in mine if state == "joining"]  # never publisher 1
            deaths.begin(joining)
            for victim, state in mine:
                if state == "joining":
                    continue
                what_next = f"{victim.name} (rank {victim.rank}) killed in '{state}'"
                deaths.one(victim, state)
        except Violation as violation:
            self.fail(f"{what}: {what_next}: {violation}\n{job.coordinator.tell('status')}\n{deaths.round}")
        finally:
            job.end()
        for engine in job.engines:
            self.assertEqual(engine.mixed, [], what)
            served["served"] += sum(engine.served.values())
            served["cut"] += engine.cut
            served["refused"] += engine.refused


if __name__ == "__main__":
    print(f"HEADRACE_TEST_SEED={SEED}, {KILLS} kills", file=sys.stderr)
    unittest.main()
