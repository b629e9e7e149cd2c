"""Replays of calls: events become a graph, and the graph says what an edit would gain.

No words and no thresholds for readers: `findings` decides what is worth a sentence.

load           the graph of a call, or of as many calls as can be replayed at once
spans          the innermost spans of calls, as columns
graph          what every span waits for
locks          who holds a lock when
waves          which block's place a later block takes
replay         runs the graph again with edits
turns          who gets a lock or a free place in a replay
elements       everything that takes time by itself: what edits shorten
queues         what-ifs of queues between the warps of a block
columns        small steps over sorted columns
critical_path  the chain of spans that a call's length is made of, and what made senders late
design         edits of a design: no transfer time, waits in the order of arrival
what_if        the gain of a few fixed edits
"""
