"""Whether a machine can do what kprof relies on: `kprof doctor`, and its `--first-run` on a GPU."""
