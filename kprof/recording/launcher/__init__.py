"""The side of kprof: it runs a workload, passes signals on, and stops what hangs."""
