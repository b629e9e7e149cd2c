"""Runs of an exchange between ranks, in threads, with one mistake planted: who is found to be at fault?

Nothing here depends on how fast anything is: a run is looked at when no block can get on any more,
which the flags say, and the clock of the watch is a number.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kprof.devices.build import BuildOptions, load_library
from kprof.devices.targets import Target
from kprof.hangs.asking import Answers, count_saved
from kprof.hangs.diagnosis import Cause, Kind, diagnose
from kprof.hangs.lines import read_waits
from kprof.hangs.report import Hang
from kprof.hangs.state import Condition, RunState
from kprof.hangs.watch import Directory, Watch
from kprof.recording.rank.recorder import Recorder
from sharing import sharing_memory

FOLDER = Path(__file__).parent
REGIONS = FOLDER / "regions.h"
AFTER_S = 60.0
_ARENA_BYTES = 1 << 19


class Fault(IntEnum):
    """The order of `Fault` in kernel.hip."""

    NONE = 0
    MISSING_SEND = 1
    WRONG_SLOT = 2
    WRONG_EPOCH = 3
    EQUAL = 4
    CYCLE = 5
    NEVER_LAUNCHES = 6
    DIES = 7
    GRID_TOO_LARGE = 8
    SLOW = 9
    ILLEGAL_ADDRESS = 10
    TRAP = 11


PLANTED = [fault for fault in Fault if Fault.NONE < fault < Fault.SLOW]

_NAMES = [
    "rank", "world", "num_slots", "epoch", "fault", "culprit", "victim", "slot", "num_resident",
    "is_per_warp", "num_steps",
]  # fmt: skip


class _Arguments(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("words", ctypes.c_uint64),
        ("counters", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in _NAMES),
    ]


@dataclass(frozen=True)
class Case:
    """A run: `faulty_call` has the fault, at `slot` between `culprit` and `victim`."""

    fault: Fault
    seed: int
    world: int
    num_slots: int
    num_calls: int
    faulty_call: int
    culprit: int
    victim: int
    slot: int
    is_per_warp: bool = False
    num_steps: int = 0
    is_host: bool = False

    @property
    def num_resident(self) -> int:
        """Blocks that have a place at once, where the grid is too large."""
        return self.slot + 1

    def has_fault(self, call: int) -> bool:
        """A mistake in the code stays; otherwise a send of the next call would make up for it."""
        if self.fault is Fault.SLOW:
            return call == self.faulty_call and not self.is_host
        return call >= self.faulty_call

    @staticmethod
    def draw(fault: Fault, seed: int) -> Case:
        """2 to 8 ranks, 2 to 6 blocks, up to 4 calls; the fault in any call but in the last."""
        of = random.Random(f"{fault.name} {seed}")
        world, num_slots, num_calls = of.randint(2, 8), of.randint(2, 6), of.randint(2, 4)
        culprit, victim = of.sample(range(world), 2)
        return Case(
            fault,
            seed,
            world,
            num_slots,
            num_calls,
            of.randrange(num_calls - 1),
            culprit,
            victim,
            of.randrange(num_slots - 1),
            of.random() < 0.5,
            of.randint(1, 4) if fault is Fault.SLOW else 0,
            fault is Fault.SLOW and of.random() < 0.5,
        )

    def is_named_by(self, cause: Cause | None) -> bool:
        """Whether a cause says what was planted."""
        if cause is None:
            return False
        wait = cause.waits[0]
        is_place = (wait.rank, wait.peer, wait.slot) == (self.victim, self.culprit, self.slot)
        is_ahead = self.fault is Fault.EQUAL
        is_place &= wait.held == wait.wanted + (1 if is_ahead else -1)
        is_place &= wait.wanted == wait.call.ordinal + 1
        is_culprit = cause.ranks == (self.culprit,)
        match self.fault:
            case Fault.MISSING_SEND | Fault.WRONG_SLOT:
                is_said = bool(cause.twice) == (self.fault is Fault.WRONG_SLOT)
                return cause.kind is Kind.NEVER_SENT and is_culprit and is_place and is_said
            case Fault.WRONG_EPOCH | Fault.EQUAL:
                return cause.kind is Kind.NOT_SEEN and is_culprit and is_place
            case Fault.CYCLE:
                pair = tuple(sorted((self.culprit, self.victim)))
                return cause.kind is Kind.CYCLE and cause.ranks == pair
            case Fault.NEVER_LAUNCHES:
                return cause.kind is Kind.NOT_LAUNCHED and is_culprit
            case Fault.DIES:
                return cause.kind is Kind.ENDED and is_culprit
            case Fault.GRID_TOO_LARGE:
                is_block = (cause.block, cause.num_blocks) == (self.num_resident, self.num_slots)
                return cause.kind is Kind.NOT_STARTED and is_culprit and is_block
            case _:
                return False


class Addresses(NamedTuple):
    """Where kernels find the flags of all ranks, what they are told, and the counters of their rank."""

    flags: int
    words: int
    counters: int


def arguments_of(case: Case, rank: int, call: int, addresses: Addresses) -> ctypes.Structure:
    """The arguments of a launch."""
    return _Arguments(
        *addresses,
        rank,
        case.world,
        case.num_slots,
        call + 1,
        case.fault if case.has_fault(call) else Fault.NONE,
        case.culprit,
        case.victim,
        case.slot,
        case.num_resident,
        case.is_per_warp,
        case.num_steps,
    )


@dataclass
class _Rank:
    """What a rank's thread is doing: in a launch, at the gate in front of its next, or done."""

    recorder: Recorder
    call: int = -1
    is_at_gate: bool = False
    num_passed: int = 0
    is_done: bool = False
    stack: tuple[str, ...] = ("exchange.py:1 in main",)


class World:
    """A case that runs, until the block in which it was made ends."""

    def __init__(self, case: Case, directory: Path) -> None:
        self.case, self.directory = case, directory
        self._library = load_library(FOLDER / "kernel.hip", BuildOptions(Target.CPU))
        self._flags = np.zeros((case.world, case.world, case.num_slots), np.uint32)
        self._words = np.zeros(2, np.uint32)
        # Of every rank: blocks of its launch that have ended, and that have come to the barrier.
        self._counters = np.zeros((case.world, 2), np.uint32)
        self._go_on = threading.Semaphore(0)
        self._ranks = [
            _Rank(
                Recorder(
                    directory,
                    rank=rank,
                    world_size=case.world,
                    regions=REGIONS,
                    arena_bytes=_ARENA_BYTES,
                )
            )
            for rank in range(case.world)
        ]
        self._threads = [
            threading.Thread(target=self._run_rank, args=(rank,)) for rank in range(case.world)
        ]
        self.source = _Source(self)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let all blocks return."""
        self._words[0] = 1
        for _ in range(2 * self.case.num_steps + 2):
            self._go_on.release()
        for thread in self._threads:
            thread.join()
        for rank in self._ranks:
            rank.recorder.abandon()

    def _run_rank(self, rank: int) -> None:
        case, state = self.case, self._ranks[rank]
        for call in range(case.num_calls):
            is_culprits = rank == case.culprit and call == case.faulty_call
            if is_culprits and case.fault is Fault.NEVER_LAUNCHES:
                break
            if is_culprits and case.is_host:
                self._pass_gates(state)
            self._counters[rank] = 0
            state.call = call
            self._launch(rank, call)
            if self._words[0]:
                break
            if is_culprits and case.fault is Fault.DIES:
                state.recorder.abandon()
                break
        state.is_done = True

    def _pass_gates(self, state: _Rank) -> None:
        """A host that takes long before its launch, and gets on."""
        for step in range(self.case.num_steps):
            state.is_at_gate = True
            self._go_on.acquire()
            state.is_at_gate = False
            state.stack = (f"loader.py:{step + 2} in load",)
            state.num_passed += 1

    def _launch(self, rank: int, call: int) -> None:
        case, recorder = self.case, self._ranks[rank].recorder
        buffer = recorder.launch(
            "exchange", num_blocks=case.num_slots, threads_per_block=1, tracks_per_block=1
        )
        addresses = Addresses(
            self._flags.ctypes.data, self._words.ctypes.data, self._counters[rank].ctypes.data
        )
        arguments = arguments_of(case, rank, call, addresses)
        seed = ctypes.c_uint64(case.seed + 1)
        error = self._library.run_exchange(
            ctypes.byref(arguments), case.num_slots, buffer.packed(), seed
        )
        assert error == 0
        recorder.finished()

    def wait_until_nothing_moves(self) -> None:
        """Until every block of every rank has ended or waits for a flag that nobody will set."""
        while not self._is_at_rest():
            time.sleep(0.001)

    def _is_at_rest(self) -> bool:
        before = self._places()
        waits = read_waits(self.directory)
        return (
            all(
                each.is_done
                or (each.is_at_gate and each.num_passed == int(self._words[1]))
                or self._is_stuck(rank, waits[rank].lines, each.call)
                for rank, each in enumerate(self._ranks)
            )
            and before == self._places()
        )

    def _places(self) -> list[tuple[int, bool, bool]]:
        return [(each.call, each.is_at_gate, each.is_done) for each in self._ranks]

    def _is_stuck(self, rank: int, lines: np.ndarray, call: int) -> bool:
        """Whether no block of a launch can get on."""
        case = self.case
        is_culprit = self.case.has_fault(call) and rank == case.culprit
        if is_culprit and case.fault is Fault.SLOW and int(self._words[1]) < case.num_steps:
            # All blocks have done the steps that they may do.
            return self._steps_done(rank) == case.num_slots * int(self._words[1])
        open_lines = lines[lines["launch"] == call]
        if not len(open_lines):
            return False
        num_absent = (
            case.num_slots - case.num_resident
            if (is_culprit and case.fault is Fault.GRID_TOO_LARGE)
            else 0
        )
        if len(open_lines) + int(self._counters[rank, 0]) + num_absent != case.num_slots:
            return False
        return not any(self._is_satisfied(rank, line, call) for line in open_lines)

    def _steps_done(self, rank: int) -> int:
        self.save(rank)
        return count_saved(self.directory).get(rank, 0) - self._events_before(rank)

    def _events_before(self, rank: int) -> int:
        """Events of the calls before the slow one: sends and waits of every block."""
        case = self.case
        return case.faulty_call * case.num_slots * 2 * (case.world - 1)

    def _is_satisfied(self, rank: int, line: np.void, call: int) -> bool:
        case = self.case
        if int(line["region"]) != 3:  # R_WAIT
            return int(self._counters[rank, 1]) >= case.num_slots
        peer, slot = int(line["payload"]) & 0xFF, int(line["payload"]) >> 8
        value = int(self._flags[rank, peer, slot])
        is_equal = case.fault is Fault.EQUAL and (rank, peer, slot, call) == (
            case.victim,
            case.culprit,
            case.slot,
            case.faulty_call,
        )
        return value == call + 1 if is_equal else value >= call + 1

    def has_died(self, rank: int) -> bool:
        """Whether the process of this rank would be gone."""
        case = self.case
        return case.fault is Fault.DIES and rank == case.culprit and self._ranks[rank].is_done

    def save(self, rank: int) -> None:
        """What a rank does when it is asked."""
        self._ranks[rank].recorder.save()

    def answers(self) -> Answers:
        """What all ranks that live say."""
        living = [rank for rank, each in enumerate(self._ranks) if each.recorder.is_recording]
        for rank in living:
            self.save(rank)
        stacks = {rank: self._ranks[rank].stack for rank in living}
        return Answers(stacks, count_saved(self.directory))

    def go_on(self, step: int) -> None:
        """Let the slow rank do its next step."""
        self._words[1] = step + 1
        if self.case.is_host:
            self._go_on.release()


class _Source(Directory):
    """Looks at a world whose ranks are threads of this process."""

    def __init__(self, world: World) -> None:
        super().__init__(world.directory)
        self._world = world

    def ask(self) -> Answers:
        return self._world.answers()

    def read(self, moving: frozenset[int], answers: Answers, now_s: float) -> RunState:
        """A thread that has died leaves its rank's lock to the process."""
        run = super().read(moving, answers, now_s)
        dead = {rank for rank in run.ranks if self._world.has_died(rank)}
        ended = {rank: replace(run.ranks[rank], condition=Condition.ENDED) for rank in dead}
        return replace(run, ranks=run.ranks | ended)


@contextlib.contextmanager
def running(case: Case, folder: Path) -> Iterator[World]:
    """The world of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    with sharing_memory(folder):
        world = World(case, folder)
        try:
            yield world
        finally:
            world.end()


def find_root(case: Case, folder: Path) -> Hang | None:
    """What a watch finds in a run that has come to a stand."""
    with running(case, folder) as world:
        world.wait_until_nothing_moves()
        watch = Watch(world.source, AFTER_S)
        findings = [watch.step(at) for at in (0.0, AFTER_S / 4, AFTER_S, 1.25 * AFTER_S)]
        assert findings[:3] == [None] * 3
        return findings[3]


def root_of(case: Case, folder: Path) -> tuple[Cause | None, RunState]:
    """The root in a run that has come to a stand, and its state."""
    with running(case, folder) as world:
        world.wait_until_nothing_moves()
        run = world.source.read(frozenset(), world.answers(), 0.0)
        return diagnose(run).root, run


def reports_of_slow_run(case: Case, folder: Path) -> list[Hang]:
    """What a watch says of a run that is slow and correct: it does a step in less than AFTER_S."""
    found = []
    with running(case, folder) as world:
        watch = Watch(world.source, AFTER_S)
        now_s = 0.0
        for step in range(case.num_steps):
            world.wait_until_nothing_moves()
            for _ in range(3):
                found.append(watch.step(now_s))
                now_s += AFTER_S / 4
            world.go_on(step)
    return [each for each in found if each is not None]
