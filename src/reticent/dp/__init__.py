"""The corpus guarantee: release of tokens from disjoint worlds, its accounting and its bounds. NumPy and SciPy only."""
