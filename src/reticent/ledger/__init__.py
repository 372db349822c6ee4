"""Durable deployment state: the sealed secret and posterior, and every release, committed before a token leaves."""
