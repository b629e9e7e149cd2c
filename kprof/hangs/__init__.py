"""Kernels that hang: who waits for whom, and who is the root.

state.py       what is known of every rank at one moment
diagnosis.py   that state -> the root in a sentence; a pure function, with graph.py
lines.py       the memory that ranks share with whoever watches them: waits that last long
evidence.py    reads the state of a run that is under way
now.py         the waits of this moment, for people who look on
watch.py       decides when nothing moves any more
report.py      the words, and hang.json
"""

from typing import Final

# What `kprof record` takes where nobody says.
DEFAULT_HANG_AFTER_S: Final = 60.0
