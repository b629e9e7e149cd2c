"""A module per format that can be imported, called as `kprof import --kind` calls it; each defines FORMAT."""
