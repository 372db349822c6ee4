"""The grid of techniques, data sets and attacks, run for real: results and what they support."""
