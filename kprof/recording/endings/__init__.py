"""How a process that records ends, and what it says then."""
