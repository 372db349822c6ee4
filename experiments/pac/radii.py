"""PMixED's radii that meet a target at a horizon: functions of a few numbers, worth keeping since some take seconds."""

import json
from pathlib import Path

from experiments.pac.results import write_file
from experiments.studies.pmixed import PMixedSettings
from experiments.studies.pmixed_calibration import DELTA, Reading, calibrate_pmixed


class Radii:
    """Calibrated settings, kept in a JSON file.

    Args:
        path: the file.
        target_success: what a reading of the accounting may concede to an attacker.
    """

    def __init__(self, path: Path, target_success: float) -> None:
        self._path = path
        self._target = target_success
        self._known: dict[str, float] = json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def settings(
        self, num_shards: int, sampling_rate: float, max_order: int, horizon: int, reading: Reading
    ) -> PMixedSettings:
        """The settings with the largest radius that meets the target over `horizon` tokens."""
        key = f"{num_shards} {sampling_rate!r} {max_order} {horizon} {reading} {self._target!r} {DELTA!r}"
        if key not in self._known:
            found = calibrate_pmixed(num_shards, sampling_rate, max_order, horizon, self._target, reading)
            self._known[key] = found.beta
            write_file(self._path, json.dumps(self._known, indent=2).encode())
        return PMixedSettings(num_shards, sampling_rate, max_order, self._known[key])
