"""Overlapping worlds: who is in which, and the run directory that holds their adapters."""
