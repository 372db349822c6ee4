"""Estimates with intervals, ROC curves and means with standard errors. NumPy and SciPy alone.

>>> from reticent.stats.intervals import clopper_pearson
>>> from reticent.stats.roc import auc
>>> round(auc([2.0, 1.5, 0.3], [0.1, 0.4, 0.2]), 3)
0.889
>>> [round(end, 3) for end in clopper_pearson(9, 10)]
[0.555, 0.997]
"""
