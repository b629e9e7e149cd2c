"""What depends on what inside one call: the critical path through it, and replays of it with
something changed."""
