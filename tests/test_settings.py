"""Settings and records that never change: one home for what pydantic is asked of them."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

import reticent
from reticent._settings import FiniteModel, FrozenModel, readable_settings
from reticent.errors import InvalidValueError

SOURCES = Path(reticent.__file__).parent


class Size(FrozenModel):
    width: int


class Rate(FiniteModel):
    value: float


def test_a_frozen_model_never_changes_and_has_no_other_fields():
    size = Size(width=3)
    with pytest.raises(ValidationError):
        size.width = 4
    with pytest.raises(ValidationError):
        Size(width=3, height=4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_finite_model_goes_to_json_and_back(value):
    rate = Rate(value=0.25)
    assert Rate.model_validate_json(rate.model_dump_json()) == rate
    with pytest.raises(ValidationError):
        Rate(value=value)
    with pytest.raises(ValidationError):
        rate.value = 0.5


def test_a_refusal_names_what_the_settings_belong_to():
    with pytest.raises(InvalidValueError, match=r"^sizes: width: .*got 'wide'$"), readable_settings("sizes"):
        Size(width="wide")


def test_no_module_repeats_the_base():
    copies = [
        str(path.relative_to(SOURCES))
        for path in sorted(SOURCES.rglob("*.py"))
        if re.search(r"ConfigDict\([^)]*frozen=True", path.read_text())
    ]
    assert copies == ["_settings.py"]
