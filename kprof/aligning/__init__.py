"""Captures put onto one clock after they were written, and captures of several hosts as one."""
