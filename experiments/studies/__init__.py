"""Studies that only this repository's experiments use: baselines, attackers and their figures."""
