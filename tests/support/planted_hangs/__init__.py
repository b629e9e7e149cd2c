"""Runs of an exchange between ranks, with a mistake planted."""
