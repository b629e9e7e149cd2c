"""Which events are kept: those that fit, all, the latest, or those of the slowest calls."""
