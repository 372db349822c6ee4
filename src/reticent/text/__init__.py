"""Texts before a model sees them: corpora and their formats, near-duplicates, templates and tokenisation."""
