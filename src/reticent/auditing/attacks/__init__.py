"""Membership-inference attacks: one pure function a file, over NumPy arrays and `TokenSignals`."""
