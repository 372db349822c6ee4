"""The public model and all worlds in one batched forward."""
