"""Simulated runs with known causes of lost time, to measure kprof's conclusions.

A scenario is a program (who works, sends and waits, in which order), sizes, noise and causes.
`simulate` runs it, event by event, and gives an ordinary capture. The random numbers belong to the
operations, not to the order in which they are drawn: the same scenario without one of its causes is
the same run, and the difference is what the cause costs.

    scenario = draw_scenario(numpy.random.default_rng(7))
    run = simulate(scenario)
    run.trace()                                             # as `Trace.open` gives it for a recording
    true_gains(scenario)                                    # ns of all calls, per cause

Nothing in here is shared with the analyses: an error in one of them must not hide in the other.
"""

from simulation.causes import Cause, Kind, When
from simulation.draw import draw_balanced, draw_scenario
from simulation.run import Run
from simulation.scenario import Scenario, gain_ns, simulate, true_gains
from simulation.topologies import HELD_BACK, TOPOLOGIES, Sizes

__all__ = [
    "HELD_BACK", "TOPOLOGIES", "Cause", "Kind", "Run", "Scenario", "Sizes", "When", "draw_balanced",
    "draw_scenario", "gain_ns", "simulate", "true_gains",
]  # fmt: skip
