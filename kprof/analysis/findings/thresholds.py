"""All thresholds of findings in one table, each with the evidence that it comes from.

Evidence is one of:

    chance    follows from how often chance alone would reach it
    accuracy  chosen on simulated runs of which the truth is known, and held by the bars of
              `benchmarks/explanation_accuracy.py`; a case that needs it is named
    judged    what a reader wants to hear about; no measurement can say it

Lengths of display lists stand where they are used.
"""

from __future__ import annotations

from math import log
from typing import Final

from kprof.analysis.replay.elements import Family

# --- What is worth a sentence -----------------------------------------------------------------

# A finding saves this share of the calls. accuracy: 490 balanced runs of 3 to 30 % noise gain less.
LEAST_GAIN: Final = 0.03
# The same for one place in one call. accuracy: rare spikes of lognormal noise gain up to 5 %.
LEAST_GAIN_ONCE: Final = 0.06
# The same for events that are few, but in nearly all calls. accuracy: rare spikes of noise.
LEAST_GAIN_RARE: Final = 0.1
# What is by design is said from here on. judged: the ends of a chain of blocks cost 5 %, and four
# engineers call that no fault.
LEAST_GAIN_BY_DESIGN: Final = 0.1
# judged: nobody mends a ninth thing before measuring again.
MOST_FINDINGS: Final = 8
# A rank with so many times the items is named even where that costs little. judged: readers of the
# counts ask about it (`rest.below`).
MANY_MORE: Final = 1.5

# --- Which of several candidates is meant -----------------------------------------------------

# Candidates gain about as much from this part of the best gain on. accuracy: a slow rank and its
# slow blocks differ by less, two causes by more; 0.85 is that of the first draft, which named 37 of
# 40 patterns.
ABOUT_AS_MUCH: Final = 0.85
# Places that have only their excess in common are one finding if together they gain so many times
# what they gain one by one. accuracy: links between two hosts, none of which pays by itself.
TOGETHER: Final = 1.25
# Causes that hide each other: where none gains anything, up to so many are tried together; up to so
# many that are all needed are named, if they gain this share of the calls, and without any of them
# less than this part of it. accuracy: all candidates of a balanced run gain less.
MOST_TRIED_TOGETHER: Final = 12
MOST_TOGETHER: Final = 3
LEAST_GAIN_TOGETHER: Final = 0.05
NEEDED_TOGETHER: Final = 0.6
# One class of elements names a finding if it has this part of the gain. accuracy: as above.
OF_ONE_CLASS: Final = 0.85
# One region names a finding if it has this part of what is saved. accuracy: regions of planted
# causes; the rest are gaps around them.
OF_ONE_REGION: Final = 0.85
# Most of one candidate lies in another from here on. judged: a majority.
MOSTLY_WITHIN: Final = 0.5
# Two candidates that share this part of their elements are one cause. judged: nearly all.
ONE_CAUSE: Final = 0.9

# Nothing gains more than the waits and the work that carry it. judged: rounding to a clock's steps.
MOST_BEYOND_CARRIED: Final = 1.05

# --- What is not looked at --------------------------------------------------------------------

# Share of a call. accuracy: a tenth of what makes a finding; less only takes time.
FLOOR: Final = 0.003
# What can be taken off a place in a call, as a share of it. accuracy: gaps, transfers and starts
# wait for others more often than work does, so small ones are effects.
LEAST_SAVED: Final = {
    Family.OWN: 0.004,
    Family.GAP: 0.015,
    Family.TRAVEL: 0.015,
    Family.LAUNCH: 0.03,
}
# Calls with less than this part of the worst call's saving do not have it. accuracy: causes in 3
# of 12 calls keep their calls under 30 % noise.
LEAST_OF_CALL: Final = 0.15

# --- When one of several comparable places stands out (`candidates/excess.py`) --------------------

# The usual time is this quantile. accuracy: the median fails where half of the ranks are slow.
LOW: Final = 0.3
# Of ranks, blocks or calls, more than this part have to be as good as the usual one. accuracy: as
# above; a third may be good.
FEW: Final = 0.34
# The spread is that between the lowest sixth of the low ones and all of these. accuracy: the upper
# part holds the causes.
LOWEST: Final = 1 / 6
# No recording is more even than this, as a logarithm. accuracy: clocks step.
LEAST_SPREAD: Final = 0.01
# The same of a place between two recordings. accuracy: pairs of runs without a change.
LEAST_SPREAD_BETWEEN: Final = 0.02
# Of so many places in a call on, calls are compared by their places. chance: of fewer, no median.
LEAST_PLACES_OF_CALL: Final = 4
# What all places have in more than this part of the calls is another size of call. judged: every
# third call may be slow, and of 14 these are 5; of two sizes, the larger is every second one.
OTHER_SIZES: Final = 0.38
# Fewer are slow calls, not sizes, if they are so many times as far above the others (in logarithms)
# as those are apart. judged: two calls 30 times slower were 12 times; sizes that double are once.
FAR_ABOVE: Final = 3.0
# A cell stands out from 1.25 times on, a group, whose mean is known better, from 1.1 times.
# accuracy: 30 % noise with up to 64 ranks.
CELL: Final = log(1.25)
GROUP: Final = log(1.1)
# chance: 4.5 standard deviations are one in 300 000, and a run has up to 100 000 cells.
SIGMAS: Final = 4.5
# chance: cells up to 3 standard deviations (one in 700) count as usual.
NORMAL_SIGMAS: Final = 3.0
# This part of a group's cells has its excess. accuracy: growing causes miss some of the first.
MOST_OF_GROUP: Final = 0.7
# Half of the places of a group have at least this part of its excess. accuracy: one of two slow
# ranks is not both.
SHARED_BY_PLACES: Final = 0.5
# Against division by nothing, far below any clock's step.
LEAST_FLOOR_NS: Final = 1e-3
# Of an excess, single elements account for it from this part on, when each takes so many times as
# long. accuracy: one delay in a block of many events keeps the block's noise.
BY_OUTLIERS: Final = 0.5
OUTLIER_RATIO: Final = 2.0
# Places have more than comparable ones from this ratio on. chance: random routing of 100 items.
UNEVEN: Final = 1.3

# --- When places belong together (`candidates/grouping.py`) -------------------------------------

# Excesses are alike that differ by less than this part. accuracy: one cause on several ranks
# differs by the noise of 30 %.
ALIKE: Final = 0.3
# A single element that takes longer once is chance unless it takes so many times as long; a few,
# so many. accuracy: balanced runs with rare spikes of 4 times stay silent.
ONCE_RATIO: Final = 5.0
FEW_RATIO: Final = 2.5
# Less is no chance either if none of the others takes nearly as many times as long (this part of
# the logarithm), and this is less likely where one element in 500 does. chance: the only one of
# 950, two in one of 3 places, or 5 in 8 calls, one in each. accuracy: of 450 balanced runs, many
# with events of two to four times the length, 1 has a finding (3 with 0.5), and a block slow once
# is named in 38 of 40 (31 with 0.1). Of one that moves from call to call less: three events in 12
# calls are as many as chance gives.
UNLIKELY: Final = 0.3
UNLIKELY_TO_MOVE: Final = 0.05
RARE: Final = 1 / 500
NEARLY_AS_MUCH: Final = 0.7
# One place in so many of the calls is a straggler that moves; in fewer, or with calls that have two
# places, long events are spread by chance. accuracy: rare long events of all ranks were silent.
OFTEN_BY_CHANCE: Final = 0.5
# A rank has more long events than chance gives any of the ranks. accuracy: six of 16 balanced runs
# with a finding had one long event, "on rank 20".
UNLIKELY_ON_A_RANK: Final = 1e-3
# It is not rare from this share of the calls on. accuracy: causes in 3 of 20 calls.
OFTEN: Final = 0.15
# Places that are alike have this part of their classes in common. accuracy: slow ranks of a tree.
SHARED_CLASSES: Final = 0.5
# A place that is slow in so many classes is slow in all it does. judged.
WHOLE: Final = 3
# Two things come together if this part of their calls is the same. accuracy: moving stragglers
# share none, ranks of one host nearly all.
SAME_CALLS: Final = 0.6
# A late start comes with slow work in all but this part of its calls, and in so many at least.
# chance: 5 of 5 calls by chance is one in 32.
ALL_BUT_FEW: Final = 0.9
NOT_BY_CHANCE: Final = 5
# A block of a slow rank belongs to the rank if this part of its calls are the rank's. accuracy.
CALLS_OF_OUTER: Final = 0.7
# Places, each in calls of its own, that make a cause that moves. chance: of two, one is noise.
LEAST_TO_MOVE: Final = 3
# A cause that moves is in at most this part of the calls at one place. judged: else it is there.
MOST_AT_ONE_PLACE: Final = 0.5

# --- In which calls (`when.py`) -------------------------------------------------------------------

# Of fewer calls nobody can say that they take longer and longer. chance: 4 rise in one of 24 runs.
CALLS_THAT_GROW: Final = 5
GROWTH_CORRELATION: Final = 0.8
# With a step of more than this part of the whole rise, calls are of two or three sizes, in their
# order. accuracy: what grows evenly by 0.3 to 5 times in 6 calls has steps of up to 0.4.
STEP_OF_SIZES: Final = 0.45
# In all calls, from this part of them on. accuracy: noise hides a cause in one of ten.
NEARLY_ALL_CALLS: Final = 0.9

# --- Elements that stand out all over the run (`candidates/outliers.py`) ------------------------

# They take so many times as long as usual, by so many standard deviations. chance: 5 are one in
# 3 million; accuracy: every 16th event 20 times as long, and 30 % noise.
ITEM_RATIO: Final = 2.0
ITEM_SIGMAS: Final = 5.0
# The spread of elements is at least this. accuracy: as LEAST_SPREAD, for single events.
LEAST_ITEM_SPREAD: Final = 0.02
# So many of all elements are slow. accuracy: fewer are chance, more are the usual ones.
LEAST_SLOW_ITEMS: Final = 0.01
MOST_SLOW_ITEMS: Final = 0.6
# They are in this part of the places where chance would put them. chance.
LEAST_PLACES: Final = 0.6
# Of fewer elements no quantile tells. chance.
LEAST_ELEMENTS: Final = 16
# Of the elements of a place in a call at most this part: else the place is slow. accuracy.
MOST_OF_CELL: Final = 0.75
# Of the time lost at most this part is one place's (or twice what chance gives it). accuracy.
MOST_OF_PLACE: Final = 0.5
# One of them loses at most so many times as much as the median one. accuracy: rare spikes on top.
MOST_SAVED: Final = 5.0
# A low quantile needs so many values, the spread so many. chance.
LEAST_KNOWN: Final = 4
LEAST_TOLD: Final = 16

# --- The first event of every track (`kinds/cold_start.py`) -------------------------------------

# First events take so many times as long as later ones. As ITEM_RATIO: `skinny_gemm-ring` has 4.0.
COLD_RATIO: Final = 2.0
# So many later events on a track, all as usual, tell that the first one is cold. judged: of fewer
# the first may be another phase of the kernel under the same name, and is stated as a difference.
LATER_THAN_COLD: Final = 4
# So many tell every n-th event from the first or last one. chance: with fewer they are the same.
LATER_PER_TRACK: Final = 7
# This part of the first ones is slow, and of the later ones usual. In `skinny_gemm-ring` all are;
# of an event in ten, later ones that are as slow would be every n-th.
NEARLY_ALL_COLD: Final = 0.95

# --- Links (`kinds/slow_transfer.py`) -----------------------------------------------------------

# The spread of transfers where too few were seen to tell. accuracy: lognormal noise of 20 %.
LINK_SPREAD: Final = 0.2
# Of so many transfers on, a link tells its spread. chance.
ENOUGH_TRANSFERS: Final = 4
# The best transfers: this quantile of upper bounds. accuracy: hidden transfers.
BEST_TRANSFERS: Final = 0.05
# A link that is slow in this part of the calls that can tell is slow in the others. accuracy:
# transfers that nobody waited for.
IN_MOST_CALLS: Final = 0.7
# A wait for a slow link hides the others into its rank, unless work before the next wait takes this
# part of the delay: then the work does. accuracy: sums take up to 0.3 of it, a matmul 0.47.
WORK_BETWEEN: Final = 0.4
# Links that may be as slow as one would have been waited for so many times, and for each time that
# they were, so many. chance: what is expected twice fails to come once in 7 times, what is expected
# 8 times comes once in 300 times only once; that one link is slow is likelier then.
WOULD_BE_SEEN: Final = 2
NOT_SEEN: Final = 8
# One link's clocks may be off one way, the other's the other way.
CLOCKS_OF_TWO_LINKS: Final = 2.0
# A link between groups of ranks takes so many times as long as one within. accuracy: two hosts.
SLOW_LINK: Final = 1.5
# One link between groups is that link.
LEAST_LINKS: Final = 2
# A network between hosts takes so many times as long as a link within one, and is no fault: so do
# most. judged: two engineers, one of whom took 2.5 for normal, the other one 4 for slow.
SLOW_NETWORK: Final = 3.5

# --- Numbers of items (`kinds/uneven_work.py`, `kinds/uneven_blocks.py`) ------------------------

# A region is uneven by design if it is so in more than this part of its launches. judged.
MOST_LAUNCHES: Final = 0.5
# Blocks whose number of items is another one in a call are so many, or two, where that stands out.
# judged: of more it is how blocks take tiles from a counter.
MOST_TO_SWING: Final = 0.1
# Of so many ranks that alone do something, one may have more than the others. chance: of two,
# either one may be the usual one.
LEAST_PEERS: Final = 3
# Tables show an excess of items from this ratio on; else these are handled elsewhere. judged.
IS_MORE: Final = 1.2
# Regions are named of which a rank has so many times as many. judged.
MUCH_MORE: Final = 1.5
# Where most blocks have some work, those are counted that have this part of it. judged.
MOST_OF_WORK: Final = 0.8
# A count stands out from 1.5 times the median of the others. chance: 4 standard deviations of a
# Poisson count are one in 30 000; random routing must not make a finding.
MIN_RATIO: Final = 1.5
MIN_SIGMAS: Final = 4.0

# --- Words and tables around findings ---------------------------------------------------------

# Slow events are "in block 3" if it has this part of them. judged: a majority.
MOST_OF_SLOW_EVENTS: Final = 0.5
# Work differs between recordings from this ratio on. judged: less nobody would mention.
LEAST_RATIO: Final = 1.05
# A wait under its cause has this part of the blocks' time. judged.
LEAST_WAIT_SHARE: Final = 0.005
# Blocks that work for this part of their time need no explanation. judged.
IS_BUSY: Final = 0.8
# What is lost beside the findings is little below this share. judged.
IS_LITTLE: Final = 0.05
# A part of a typical call is named from this share on. judged.
LEAST_PART: Final = 0.1
# Near a copy's speed there is hardly more to be had. judged, after the speeds in docs/peers.md.
NEAR_CEILING: Final = 0.7

# --- Doubts -----------------------------------------------------------------------------------

# A rank that lost this share of its events looks idle where it was busy. judged.
BEYOND_USE: Final = 0.2
# Below this share of lost events counts are still right. judged: below the least ratio of counts.
HARMLESS_LOSS: Final = 0.01
# A rank whose core others had for more of its time says little about time. judged: above it, what
# the scheduler takes is more than the least gain that is named.
BUSY_CORE_SHARE: Final = 0.05
# Blocks that stand for all are chosen so that they fit with this much to spare. judged: blocks
# have different numbers of events.
TO_SPARE: Final = 0.8
LEAST_BLOCKS: Final = 2

# --- The design (`limits.py`) -------------------------------------------------------------------

# A launch is of few blocks if it leaves two of three processors idle... judged.
FEW_BLOCKS: Final = 1 / 3
# ...and one of them works for this long, and for this part of the call: else few blocks are right.
LONG_NS: Final = 20_000.0
LONG_SHARE: Final = 0.5
