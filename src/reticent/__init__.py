"""Serve a language model adapted on private text with a guarantee that can be stated, and audit what it covers."""

__version__ = "0.1.0"
