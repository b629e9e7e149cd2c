"""The capture on disk, `run.kprof/`: the product. Needs neither torch nor a GPU."""
