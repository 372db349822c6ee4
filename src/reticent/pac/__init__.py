"""The PAC-private release mechanism, its posterior, bounds and accounting. NumPy and SciPy only."""
