"""Findings: what would make the run shorter, by how much, and what makes that doubtful.

model     what a finding and a doubt are
doubts    banners: what the recording cannot say, and which findings that takes out
counts    findings that rest on numbers of events and on no time
made_of   what a typical call is made of, and how fast that is
waits     the waits that remain, under their causes
places    where the trace shows a finding
words     sentences
rest      what no finding explains
breakdown where the time of all blocks goes
search    all of that for one summary
"""

from kprof.analysis.findings.model import Caused, Doubt, DoubtKind, Finding, Findings, Rest
from kprof.analysis.findings.parts import Part, breakdown
from kprof.analysis.findings.search import find

__all__ = [
    "Caused",
    "Doubt",
    "DoubtKind",
    "Finding",
    "Findings",
    "Part",
    "Rest",
    "breakdown",
    "find",
]
