"""Texts, and settings under which worlds of a tiny model learn enough of them to disagree."""

import reticent

TEXTS = ["the quick brown fox", "a stitch in time", "more haste less speed", "still waters run deep"]
TRAINING = reticent.BuildOptions(rank=2, adapt_layers="top:2", learning_rate=0.05, max_tokens=16)
