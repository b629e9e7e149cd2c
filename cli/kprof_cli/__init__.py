"""The `kprof` command: parse, call one function of the library, print."""
