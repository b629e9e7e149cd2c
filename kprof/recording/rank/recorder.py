"""The recorder: hands kernels their buffers and writes what they recorded into the capture.

In a workload, one per rank:

    recorder = kprof.recorder(regions="regions.h", device="cuda")
    recorder.align(group)                                      # collective: at the start and end
    buffer = recorder.launch("dispatch", num_blocks=304, threads_per_block=256)
    my_extension.dispatch(x, buffer.arena, buffer.launch)      # kprof::make_buffer(arena, launch)

Under `kprof record` this records; without it `kprof.recorder()` returns a recorder that is off,
whose buffers are null, and the workload runs at full speed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Final

from kprof.capture.printable import utf8
from kprof.devices import gpu
from kprof.errors import CaptureError, KprofError, RecorderError
from kprof.recording.endings import complaints, lifetime
from kprof.recording.endings.signals import deferring_signals
from kprof.recording.launches.launch_buffer import NULL_BUFFER, LaunchBuffer, new_tuple
from kprof.recording.launches.wanted import EVERYTHING, Schedule, Wanted
from kprof.recording.rank import saver
from kprof.recording.rank.null_recorder import DEFAULT_ALIGN_EVERY_S
from kprof.recording.rank.recorder_state import State, check_rank
from kprof.recording.rank.whole_launches import WholeLaunches
from kprof.recording.retention.retention import EVERYTHING_THAT_FITS, NO_RING, Retention

if TYPE_CHECKING:
    from kprof.clocks.alignment import Calibration
    from kprof.devices.groups import Group
    from kprof.recording.arenas.ledger import Ledger
    from kprof.recording.arenas.turns import Room
    from kprof.recording.launches.delays import Delays
    from kprof.recording.launches.launch_log import Plan
    from kprof.recording.rank.overhead import LaunchTimer
    from kprof.regions import RegionsLike

DEFAULT_ARENA_BYTES: Final = 64 << 20


class Recorder(WholeLaunches):
    """Records one rank into an unfinished capture directory, which `kprof record` (or `session`)
    turns into a capture.

    `device` is "cpu" or a torch device ("cuda", "cuda:3"). A `retention` other
    than the default uses several arenas in turn. Then launch every kernel before the next call of
    `launch` or `step`, on the stream that is current during these calls. Where graphs are captured,
    only `step` switches arenas. Raises RankTakenError when this rank has
    a recorder already, in this process or another, ArenaError when there is no memory for the arena
    or it holds no chunk, TargetError when there is no such device, CaptureError when the directory
    cannot be written.

    Later on the disk never ends the workload: when it refuses, the recorder says in one line what
    is lost and is off.
    """

    _state: State
    # Told of every launch that is recorded, with its number, in this order.
    _observers: tuple[Callable[[Plan, int], None], ...]

    def __init__(
        self,
        directory: Path,
        *,
        rank: int,
        world_size: int,
        regions: RegionsLike = None,
        device: str = "cpu",
        arena_bytes: int = DEFAULT_ARENA_BYTES,
        timer: LaunchTimer | None = None,
        wanted: Wanted = EVERYTHING,
        schedule: Schedule | None = None,
        retention: Retention = EVERYTHING_THAT_FITS,
        delays: Delays | None = None,
    ) -> None:
        from kprof.capture.claims import Claim
        from kprof.recording.launches.launch_log import LaunchLog
        from kprof.recording.rank.opening import announce, open_parts
        from kprof.recording.retention.policies import start_drainer

        check_rank(rank, world_size)
        self.rank, self.world_size = rank, world_size
        self._directory, self._timer, self._schedule = directory, timer, schedule
        self._num_calls = self._num_steps = self._num_torch_traces = self._launcher = 0
        self._launches, self._has_filter = LaunchLog(regions, wanted), wanted.has_filter
        self._retention, self._has_missed_ring = retention, False
        self._drainer = None
        self._ledger: Ledger | None = None
        self._enter(State.RECORDING)
        self._claim = Claim(directory, rank)
        self._numbers = self._claim.progress
        try:
            who = directory, rank, world_size, device, retention
            how = arena_bytes, self._launches, self._claim, delays
            parts = open_parts(*who, *how, has_schedule=schedule is not None)
            self._facts, self._clocks, self._waits, self._turns = parts[:4]
            self._keeper, self._progress, self._ledger, self._is_capturing = parts[4:]
            self._observers = () if timer is None else (timer.observe,)
            self._set_paused(not self._is_active())
            announce(self._directory, self.rank, self.world_size, self, self._waits)
            policy = self._keeper, self._retention, self._stop_for, self.note
            self._drainer = start_drainer(*policy, world_size)
            self.device = gpu.with_number(device)
            self._enter(self._state)
        except BaseException:
            self._enter(State.CLOSED)
            self._let_go()
            self._remove_ledger()
            raise

    def launch(
        self,
        kernel: str,
        regions: RegionsLike = None,
        *,
        num_blocks: int = 0,
        threads_per_block: int = 0,
        tracks_per_block: int = 0,
        is_replayed: bool = False,
        shares_chunks: bool = False,
    ) -> LaunchBuffer:
        """The buffer for the next launch of `kernel`; `regions` where they are not the recorder's.

        `tracks_per_block` (warps per block for per-warp tracks, 1 for a track per block) reserves
        every track's first chunk: opening a track then waits for nothing, and happens once. Half of
        the arena is kept for that, until a launch without it comes. A launch in a CUDA (HIP) graph
        is recorded with every replay, as a launch of its own; its kernel opens each track once.
        `is_replayed`: the caller hands the buffer to several runs, one after the other.
        `shares_chunks`: each block has one event, and blocks share chunks (see kprof.abi). Raises
        RecorderError or RegionError for what no launch has, which is not recorded.
        """
        key = kernel, num_blocks, threads_per_block, tracks_per_block
        try:
            plan = self._plans.get(key)
        except TypeError:  # What no launch has, like a list of blocks.
            plan = None
        if plan is None or plan.regions is not regions:
            if self._state.is_closed:
                return self._launch_closed(kernel)
            plan = self._launches.plan(*key, regions)
        self._num_calls = self._numbers[1] = self._num_calls + 1
        is_captured = is_replayed or self._is_capturing()
        if self._is_selecting and not is_captured and not self._is_wanted(plan):
            return NULL_BUFFER
        self._launcher = get_ident()
        number = self._launches.add(plan)
        self._numbers[0] = number + 1
        for observe in self._observers:
            observe(plan, number)
        if is_captured:
            return self._keeper.captured_buffer(plan, number, plan.num_blocks * shares_chunks)
        arena = self._turns.active
        if self._has_filter:
            return arena.filtered_buffer(number, plan.num_blocks, plan.tracks_per_block)
        if shares_chunks:
            return arena.sharing_buffer(number, plan.num_blocks)
        if plan.num_tracks:
            return arena.reserved_buffer(number, plan.tracks_per_block, plan.num_tracks)
        return new_tuple(LaunchBuffer, (arena.address, number) + (arena.claims or arena.open()))

    def _is_wanted(self, plan: Plan) -> bool:
        """Whether to record a launch, in a pause or a window of calls; the policy hears of it."""
        is_wanted = self._state is State.RECORDING and self._launches.is_wanted(plan)
        if self._drainer is not None:
            self._drainer.note_launch(plan.kernel.name, plan.num_tracks, is_wanted=is_wanted)
            if is_wanted and self._turns.is_left_out:
                self._launches.leave_out(plan)
                return False
        return is_wanted

    def _launch_closed(self, kernel: str) -> LaunchBuffer:
        """A null buffer if kprof closed the recorder: in a forked child, or at exit."""
        if self._state is State.CLOSED:
            raise RecorderError(
                f"rank {self.rank}: launch of {kernel!r} after the recorder was closed"
            )
        if self._state is State.INHERITED:
            self._state = State.OFF
            lifetime.tell_of_child(self._directory, self.rank, kernel)
        if self._state is State.FAILED:
            self._progress.note_unrecorded()
        return NULL_BUFFER

    def pause(self) -> None:
        """Record nothing from here on: launches get null buffers, replays of graphs on this stream
        write nothing.

        What is paused is not counted either, so pause all ranks between the same two calls. A graph
        may be captured meanwhile. Raises RecorderError while one is being captured: every replay
        would pause again.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Record again, also in graphs that were captured before or during the pause.

        See `pause`.
        """
        self._set_paused(False)

    def note_capture(self, *, is_end: bool) -> Room | None:
        """A graph is captured from here on, or its capture is about to end, on the current stream.

        Launches in it that share chunks get places in every replay that `note_replay` is told of:
        it wants the room that this returns at the end.
        """
        return None if self._state.is_closed else self._turns.note_capture(is_end=is_end)

    def note_replay(self, graph: int = 0, room: Room | None = None) -> None:
        """A graph, which this number names, is about to be replayed on the current stream.

        Where arenas are used in turn, its launches may use the next one. `kprof record --inductor`
        calls this before every replay, unless the room is ready (`Room.take`).
        """
        if not self._state.is_closed and not self._is_capturing():
            if self._drainer is not None:
                self._drainer.note_replay(graph, room)
            self._turns.announce(room)

    def note_replayed(self, graph: int, room: Room | None, *, was_ready: bool) -> None:
        """The graph was replayed on the current stream: gets its room ready for the next time."""
        if not self._state.is_closed and not self._is_capturing():
            if self._drainer is not None:
                self._drainer.note_replayed(graph, room, was_ready=was_ready)
            elif room is not None:
                self._turns.prepare(room)

    def step(self) -> None:
        """A step of the workload has ended: the schedule says whether the next one is recorded.

        Where arenas are used in turn, graphs may write to the next one from here on: call this on
        the stream on which they are replayed, or on one that waits for their replays and that they
        wait for.
        """
        if self._state.is_closed:
            return
        if self._drainer is not None:
            self._drainer.note_step(is_captured=self._is_capturing())
        self._num_steps += 1
        self._progress.note_step()
        self._num_calls = self._numbers[1] = self._num_calls + 1
        self._set_paused(not self._is_active())

    def finished(self) -> None:
        """Say that all launches so far have finished.

        It helps to find out why other ranks wait.
        """
        self._waits.note_finished(self._launches.region_ids.num_launches)

    def explain_timeout(self, waited_s: float) -> str:
        """Why kernels of this rank have given up waiting after `waited_s`, in a sentence; empty
        where nothing is known.

        Call it before the launch is said to have finished. Asks all ranks of this host, which takes
        some seconds, and keeps the answer in the capture (hang.json).
        """
        if self._state.is_closed:
            return ""
        self.save()
        return self._waits.explain_timeout(waited_s)

    def listen(self) -> Path:
        """Let other processes ask this one what it does; returns the directory that it records
        into."""
        self._waits.listen()
        return self._directory

    def _is_active(self) -> bool:
        return self._schedule is None or self._schedule(self._num_steps)

    def _set_paused(self, is_paused: bool) -> None:
        is_paused = is_paused or not self._launches.wanted.has_rank(self.rank)
        if self._state.is_closed or is_paused == (self._state is State.PAUSED):
            return
        if self._is_capturing():
            raise RecorderError(
                f"rank {self.rank}: a graph is being captured; pause and resume between its replays"
            )
        self._turns.set_off(is_paused)
        self._enter(State.PAUSED if is_paused else State.RECORDING)

    def _enter(self, state: State) -> None:
        self._state = state
        self.is_recording = state in (State.RECORDING, State.PAUSED, State.CLOSED)
        has_window, has_policy = self._launches.wanted.has_window, self._drainer is not None
        self._is_selecting = state is State.PAUSED or has_window or has_policy
        is_odd = has_window or self._has_filter or self._timer is not None
        self._is_plain = state is State.RECORDING and not is_odd
        # A launch that finds no plan looks at the state.
        self._plans = {} if state.is_closed else self._launches.plans

    def dump(self, why: str) -> None:
        """Ask all ranks to write what their rings hold; without a ring, a line on stderr says so,
        once.

        Returns at once. A rank writes after its next call of the recorder, without waiting for the
        device.
        """
        from kprof.recording.retention.flight import ask_for_dump

        if self._state.is_closed:
            return
        if self._retention.ring_bytes:
            ask_for_dump(self._directory, why, self.rank)
        elif not self._has_missed_ring:
            self._has_missed_ring = True
            complaints.complain(f"rank {self.rank}: dump({why!r}) writes nothing: {NO_RING}")

    def align(self, group: Group) -> None:
        """Calibrate the ranks' clocks against each other. Collective: all ranks, before and after
        the launches.

        Takes some milliseconds. The calibration never overlaps a kernel that this rank has waited
        for.
        """
        self._clocks.align(group)

    def align_if_due(self, group: Group, every_s: float = DEFAULT_ALIGN_EVERY_S) -> bool:
        """Calibrate if the last calibration is about `every_s` old; True if it did. For between two
        calls.

        All ranks must call this equally often: the number of calls says when, so that nobody has to
        ask the others. After each calibration rank 0 says after how many calls the next one is due.
        A call that is not due costs a comparison.
        """
        return self._clocks.align_if_due(group, every_s)

    @property
    def calibrations(self) -> Sequence[Calibration]:
        """What every calibration so far measured, pair by pair."""
        return self._clocks.calibrations

    def note(self, text: str) -> None:
        """Keep a sentence about this rank in the capture; `kprof info` and the report show it."""
        text = utf8(text)
        self._facts.notes.append(text)
        self._claim.journal.note(text)

    def torch_trace(self, profile: object) -> None:
        """Keep what the PyTorch profiler saw in the capture: `kprof export` draws it above the
        blocks of this rank.

        `profile` is a torch.profiler.profile that has stopped, or the path of a file that its
        export_chrome_trace wrote; `torch.profiler.profile(on_trace_ready=recorder.torch_trace)`
        does it by itself. The clocks are tied later, by the kernels that both saw. Raises
        RecorderError.
        """
        from kprof.capture.torch_traces import store_torch_trace

        if self._state.is_closed:
            raise RecorderError(f"rank {self.rank}: torch_trace after the recorder was closed")
        store_torch_trace(profile, self._directory, self.rank, self._num_torch_traces)
        self._num_torch_traces += 1

    def flush(self) -> None:
        """Read the arena back and empty it; does nothing where only the slowest calls are kept.

        The caller makes sure that no kernel that records is running.
        """
        if self._state.is_closed:
            return
        self._turns.wait()
        with self._unless_the_disk_refuses():
            (self._drainer or self._keeper).keep_all()

    def save(self) -> None:
        """Write what the arena holds now, whatever runs on the device, and leave it as it is; for
        any thread.

        The next save or flush writes the same part again. Does nothing while another thread writes
        for long.
        """
        if self._state.is_closed:
            return
        try:
            self._waits.save(self._keeper, self._facts.ticks_per_cycle)
        except Exception as error:
            complaints.complain(f"rank {self.rank}: cannot save what it recorded: {error}")

    def close(self) -> None:
        """Flush, finish the rank's files and let go of the arena. Called at exit.

        A second call does nothing.
        """
        self._close(State.CLOSED)

    def _close(self, state: State, cut_short: str = "") -> None:
        if self._state.is_closed:
            return
        saver.note_closing()
        self._turns.wait()
        with deferring_signals():
            if self._state.is_closed:
                return
            self._enter(state)
            if self._drainer is not None:
                self._drainer.close()
            if self._state is not state:
                # The drainer has failed meanwhile.
                return
            try:
                with self._unless_the_disk_refuses():
                    (self._drainer or self._keeper).keep_rest()
                    self._finish(cut_short)
            finally:
                self._let_go()
                self._turns.outlive_graphs()
        if self._timer is not None:
            self._timer.finish()

    def close_at_exit(self) -> None:
        """Close when the process ends.

        Failures are one line on stderr, and later launches do nothing.
        """
        cut_short = lifetime.describe_running(self._launcher)
        try:
            self._close(State.OFF, cut_short)
        except Exception as error:
            self._give_up(error, goes_on=not self._state.is_closed)
            self._enter(State.OFF)
            self._let_go()

    def abandon(self) -> None:
        """Be off: this is a forked child, and the recorder is its parent's."""
        self._enter(State.INHERITED)
        self._let_go()
        if self._ledger is not None:
            self._ledger.make_private()
            self._ledger = None

    def _finish(self, cut_short: str) -> None:
        """Write everything but the events."""
        from kprof.recording.rank.closing import finish_rank, summarise_rank

        self._clocks.write()
        asked = self._num_calls - self._num_steps, self._num_steps if self._schedule else None
        info = finish_rank(self._keeper, self._facts, *asked, cut_short, self.note)
        self._remove_ledger()
        summarise_rank(self._directory, info, self.world_size)

    def _remove_ledger(self) -> None:
        """What the arenas hold is written, or lost."""
        if self._ledger is not None:
            self._ledger.remove()

    def _let_go(self) -> None:
        lifetime.discard(self._directory, self.rank)
        self._claim.release()

    @contextlib.contextmanager
    def _unless_the_disk_refuses(self) -> Iterator[None]:
        """A full disk or a directory that is gone must not end the workload."""
        try:
            yield
        except CaptureError as error:
            self._stop_for(error)

    def _stop_for(self, error: Exception) -> None:
        """Be off from here on."""
        goes_on, was_paused = not self._state.is_closed, self._state is State.PAUSED
        self._give_up(error, goes_on=goes_on)
        # What is launched in a pause is not lost.
        self._enter(State.OFF if was_paused else State.FAILED)
        if not self._outlives(error):
            self._remove_ledger()
        self._let_go()

    def _give_up(self, error: Exception, *, goes_on: bool = True) -> None:
        """Say what is lost; with `goes_on`, more launches may come."""
        is_kept = self._outlives(error)
        lost = self._directory, self.rank, error, len(self._launches.waiting())
        is_told = lifetime.give_up(*lost, is_kept=is_kept, goes_on=goes_on)
        self._progress.note_told(is_told=is_told and not is_kept)

    def _outlives(self, error: Exception) -> bool:
        """Whether the arenas outlive this process with all that they hold: a fault of the GPU
        leaves them as they are, and so does a disk that refuses, unless the recording is gone."""
        is_whole = self._ledger is not None and self._ledger.is_whole
        leaves = isinstance(error, CaptureError) or not isinstance(error, KprofError)
        return leaves and is_whole and lifetime.is_there(self._directory)
