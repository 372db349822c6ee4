"""Experiments: what a run's worlds, votes and releases are worth, measured on texts outside the corpus."""
