"""Findings: what would make a run shorter, by how much, and what makes that doubtful.

kinds         one file per kind of finding: candidates, facts, sentence, advice, figures, docs
facts         what is known of a finding, and what a region took as tables show it
finding       what a finding is, and what a kind has to say
thresholds    every threshold, with its evidence
candidates    what could be as it usually is
greedy        which candidates pay, one after the other
described     from a candidate that pays to a finding
when          in which calls
explanation   all of that for a trace, or against another recording
limits        what the design of a kernel costs at most, where nobody is to blame
growth        what grew since another recording
longer_path   what the critical path has more of than in another recording
doubt         what a doubt is
doubts        what this recording cannot say
counts        findings that rest on numbers of events
places        where the trace shows a finding
found         all that can be said about a run
rest          what no finding explains, and what a typical call is made of
parts         where the time of all blocks goes, and waits under their causes
words         words that kinds share
find          all of that for one summary
"""

from kprof.analysis.findings.doubt import Doubt, DoubtKind
from kprof.analysis.findings.explanation import (
    Explanation,
    explain_growth,
    explain_trace,
)
from kprof.analysis.findings.finding import Finding, Kind
from kprof.analysis.findings.found import Findings, Rest
from kprof.analysis.findings.limits import Limit, LimitKind
from kprof.analysis.findings.parts import Part, breakdown
from kprof.analysis.findings.search import find
from kprof.analysis.findings.when import When

__all__ = [
    "Doubt",
    "DoubtKind",
    "Explanation",
    "Finding",
    "Findings",
    "Kind",
    "Limit",
    "LimitKind",
    "Part",
    "Rest",
    "When",
    "breakdown",
    "explain_growth",
    "explain_trace",
    "find",
]
