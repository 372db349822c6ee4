"""A number with a confidence interval, as results record it."""

from pydantic import Field

from reticent._settings import FiniteModel


class Estimate(FiniteModel):
    """A number with a two-sided interval of the given confidence."""

    value: float
    low: float
    high: float
    confidence: float = Field(gt=0, lt=1)
