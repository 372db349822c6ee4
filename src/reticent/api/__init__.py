"""Composition behind the front door and the commands: runs, deployments and targets, opened by name."""
