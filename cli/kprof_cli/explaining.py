"""`kprof explain`: what would make the run shorter, and by how much?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from kprof.trace.selection import SelectionText
from kprof_cli.options import (
    JsonOption,
    RunArgument,
    selecting,
)
from kprof_cli.output import note, print_json, say
from kprof_cli.reading import open_trace

if TYPE_CHECKING:
    from kprof.analysis.explain import TraceExplanation


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explain)


@selecting
def explain(
    run: RunArgument,
    is_json: JsonOption = False,
    *,
    selection: SelectionText,
) -> None:
    """Say what would make the run shorter, and by how much: calls are replayed with one thing changed."""
    from kprof.analysis.explain import explain_trace

    trace = open_trace(run, selection)
    explanation = explain_trace(trace)
    targets = frozenset(info.target for info in trace.ranks)
    if is_json:
        print_json(_as_json(explanation, targets))
    else:
        _print(explanation, targets)


def _print(explanation: TraceExplanation, targets: frozenset[str]) -> None:
    from kprof.analysis.explain.sentences import advice, limit_sentence, rest, sentence
    from kprof.analysis.wording import members

    if explanation.warm_up:
        note(f"{members('call', explanation.warm_up)} left out: a warm-up")
    if len(explanation.ordinals) + len(explanation.warm_up) < explanation.num_calls:
        chosen = members("call", explanation.ordinals)
        note(f"of {explanation.num_calls} calls these were replayed: {chosen}")
    for number, finding in enumerate(explanation.findings, 1):
        say(f"{number}. {sentence(finding, len(explanation.ordinals))}")
        say(f"   {advice(finding, targets)}")
    say(rest(explanation))
    for limit in explanation.limits:
        say(f"   {limit_sentence(limit)}")


def _as_json(explanation: TraceExplanation, targets: frozenset[str]) -> dict[str, Any]:
    from kprof.analysis.explain.sentences import advice, limit_sentence, sentence

    count = len(explanation.ordinals)
    return {
        "findings": [
            {"sentence": sentence(finding, count), "advice": advice(finding, targets)}
            | asdict(finding)
            | {"kind": finding.kind.value, "when": finding.when.value, "link": finding.link}
            for finding in explanation.findings
        ],
        "limits": [
            {"sentence": limit_sentence(limit)} | asdict(limit) | {"kind": limit.kind.value}
            for limit in explanation.limits
        ],
        "explained_share": explanation.explained_share,
        "calls": list(explanation.ordinals),
        "warm_up_calls": list(explanation.warm_up),
        "num_calls": explanation.num_calls,
        "total_ns": explanation.total_ns,
    }
