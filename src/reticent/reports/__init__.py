"""Measurements as documents: a report model, figures, and HTML, Markdown, CSV and JSON renderings."""
