"""Durable deployment state: the sealed secret and posterior, committed before a token leaves."""
