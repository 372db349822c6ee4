"""Canaries: planted secrets, their exposure, their extraction, and the ε they imply."""
