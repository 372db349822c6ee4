"""A results file worked by hand, without rows and curve."""

from typing import Any


def results_with(**parts: Any) -> dict[str, Any]:
    """Results of a run from three to four o'clock, with some parts replaced."""
    return {
        "started": "2026-01-02T03:00:00+00:00",
        "finished": "2026-01-02T04:00:00+00:00",
        "machine": {
            "processor": "P",
            "threads": 2,
            "accelerator": None,
            "versions": dict.fromkeys(("torch", "transformers", "peft"), "1"),
        },
        "setting": {"model": "m", "num_worlds": 128, "dtype": "bfloat16", "smoke": False},
        "peaks": {"step_flops": 5e11, "many_flops": 6e11, "bytes_read": 19e9},
        "rows": [],
        "curve": None,
    } | parts
