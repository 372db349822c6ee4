"""The PAC-private release mechanism, its posterior, bounds and accounting. NumPy and SciPy only.

A million tokens at 2⁻³² nats each, seen by someone who knows all 128 worlds:

>>> from reticent.pac.bounds import attack_success
>>> total_nats = 1_000_000 * 2.0**-32
>>> f"a record's half: {attack_success(total_nats, 1 / 2):.2%}; the world: {attack_success(total_nats, 1 / 128):.2%}"
"a record's half: 51.08%; the world: 0.98%"
"""
