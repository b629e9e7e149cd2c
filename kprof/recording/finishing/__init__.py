"""From the files of an unfinished recording to a capture."""
