"""Published measurements, each repeated by one command with its result beside it."""
