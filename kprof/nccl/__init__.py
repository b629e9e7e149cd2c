"""The collectives of NCCL and RCCL, as a profiler plugin of ours has recorded them.

plugin.cpp writes a ring per process, ring.py reads it, collectives.py makes spans of it, and
capture.py puts these among the events of the ranks.
"""
