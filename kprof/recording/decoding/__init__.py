"""From the bytes of arenas to tables of events."""
