"""One clock for all ranks: ping-pong, offsets, paths through calibrations, bounds."""
