"""The page on attacks names every attack as the registry does."""

from pathlib import Path

import pytest

from reticent.auditing.attacks import ez_mia, min_k, rmia, zlib_entropy
from reticent.auditing.attacks.registry import ATTACKS
from reticent.auditing.attacks.wbc import WINDOWS

PAGE = (Path(__file__).parents[2] / "docs" / "audit-attacks.md").read_text()
ROWS = {line.split("|")[1].strip(" `"): line for line in PAGE.splitlines() if line.startswith("| `")}


def test_every_attack_has_one_row_with_its_source():
    assert list(ROWS) == [attack.name for attack in ATTACKS.values()]
    for name, row in ROWS.items():
        assert row.split("|")[-2].strip() == ATTACKS[name].source


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("zlib", f"level {zlib_entropy.LEVEL}"),
        ("min-k", f"k = {min_k.DEFAULT_FRACTION}"),
        ("ez-mia", f"at least {ez_mia.MIN_ERROR_TOKENS} such tokens"),
        ("wbc", ", ".join(map(str, WINDOWS))),
        ("rmia", f" = {rmia.GAMMA:g}, a tuned, or {rmia.UNSCALED_A:g}"),
    ],
)
def test_stated_settings_are_the_defaults(name, setting):
    assert setting in ROWS[name]
