"""Flows: which send released which wait. This is the only place that decides it.

    launches.py   which launch answers which: the n-th launch that sends by a rule and the n-th that waits by it, or
                  where their numbers differ the latest one that sent
    pairing.py    within such launches: the n-th send of a (source, destination, slot) and the n-th wait
    ends.py       reads sends and waits from the events, in slices that fit memory
    table.py      fills the view `flows` that SQL sees

A join by position goes wrong without a word when something is missing on one side. So whole launches are matched first,
from the list of launches, of which nothing is ever dropped. Within launches, sends and waits of a slot whose numbers
differ are joined only where their times leave one possibility; the others count as unmatched.
"""
