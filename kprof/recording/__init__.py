"""From the arena of a rank to its file: the recorder of a process, decoding, `kprof record`."""
