"""Training of adapters: all worlds together, or one model by any of ten techniques."""
