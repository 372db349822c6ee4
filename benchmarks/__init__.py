"""Reticent against its peers: ratios measured within one run, parity first.

Run `python -m benchmarks` from the repository's root, or `make bench`. Only the public interface of `reticent` is used.
"""
