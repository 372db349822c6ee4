"""Experiments on the corpus guarantee."""
