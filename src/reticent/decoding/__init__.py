"""From contexts to released tokens: candidates, public coins, votes and the token loop.

The public model names the candidates, and each world votes for one of them:

>>> import numpy as np
>>> from reticent.decoding.votes import greedy_votes, top_candidates
>>> candidates = top_candidates(np.array([0.1, 3.0, -1.0, 2.0]), k=2)
>>> worlds = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
>>> candidates.tolist(), greedy_votes(worlds, candidates).tolist()
([1, 3], [1, 1, 3])
"""
