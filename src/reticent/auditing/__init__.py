"""Attacks on adapted models: signals computed once, pure functions of them, and metrics with intervals."""
