"""Defaults of a corpus deployment, for help texts and plans: numbers alone, so that reading them costs nothing."""

from typing import Final

DEFAULT_CLIP: Final = 0.5
DEFAULT_GAIN: Final = 2.0
DEFAULT_TEMPERATURE: Final = 1.0
DEFAULT_CANDIDATES: Final = 200
LARGEST_DEFAULT_DELTA: Final = 1e-6
