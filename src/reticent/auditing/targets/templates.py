"""The template that a target's texts are read with: as stored, with what an audit's options change."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reticent._settings import readable_settings
from reticent.text.template import TextTemplate
from reticent.training.adapted_folder import ADAPT_NAME, read_adapted_manifest


def stored_template(folder: Path) -> TextTemplate | None:
    """The template that an adapted folder says it was trained with; None for any other target.

    Raises:
        RunDirectoryError: the folder's record is damaged.
    """
    return read_adapted_manifest(folder).template if (folder / ADAPT_NAME).is_file() else None


def full_template(stored: TextTemplate | None, changes: Mapping[str, Any]) -> TextTemplate:
    """The stored template, or the default, with other values of some fields.

    Raises:
        InvalidValueError: it cannot be used.
    """
    with readable_settings("template"):
        return TextTemplate(**((stored or TextTemplate()).model_dump() | dict(changes)))
