"""Overlapping worlds: who is in which, and the run directory that holds their adapters.

Each unit is in exactly half of the worlds, and worlds are of nearly equal size:

>>> from reticent.worlds.assignment import membership_matrix
>>> members = membership_matrix(num_units=6, num_worlds=4, seed=0)
>>> members.sum(axis=1).tolist(), members.sum(axis=0).tolist()
([2, 2, 2, 2, 2, 2], [3, 3, 3, 3])
"""
