"""The public model and all worlds evaluated together: prompts, decode steps, caches, whole texts."""
