"""Six plants in a real kernel on two ranks: what explanations say of each, against the run without it."""
