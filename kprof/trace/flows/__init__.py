"""Flows: which send released which wait. No other place decides that.

    launches.py   which launch answers which: the n-th launch that sends by a rule and the n-th that
                  waits by it; where their numbers differ, the latest one that sent
    pairing.py    within such launches: the n-th send of a (source, destination, slot) and the n-th
                  wait
    ends.py       reads sends and waits from the events, in slices that fit memory, and joins them
                  for the view `flows`

A join by position silently goes wrong when something is missing on one side. So whole launches are
matched first: nothing is ever dropped from the list of launches. Within launches, where a slot has
not as many sends as waits, they are joined only where their times leave one possibility; the others
count as unmatched.
"""
