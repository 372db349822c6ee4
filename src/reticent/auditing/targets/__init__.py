"""Targets of an audit, opened as scorers: models, adapters, adapted folders, endpoints."""
