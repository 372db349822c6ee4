"""Estimates with intervals, ROC curves and means with standard errors. NumPy and SciPy alone."""
