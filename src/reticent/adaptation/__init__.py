"""Adapting a frozen base model: all worlds at once, or one model."""
