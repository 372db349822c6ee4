"""Membership-inference attacks: one pure function a file, over NumPy arrays and `TokenSignals`.

>>> import numpy as np
>>> from reticent.auditing.attacks.likelihood import likelihood
>>> from reticent.protocols import TokenSignals
>>> signals = TokenSignals(np.log([0.5, 0.25]), *np.zeros((3, 2)), rank=np.array([1, 2]))
>>> round(likelihood(signals), 3)
-1.04
"""
