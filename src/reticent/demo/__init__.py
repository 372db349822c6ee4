"""The synthetic clinic-letter corpus and the guided demonstration."""
