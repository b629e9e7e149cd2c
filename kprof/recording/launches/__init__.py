"""The launches of a rank: which are wanted, their numbers, buffers and regions, its progress."""
