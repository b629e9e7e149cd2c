"""Explanations: what would a run gain if one thing were as it usually is?

`spans` reads calls as columns, `graph` finds what depends on what in them, `replay` runs them again with edits.
"""
