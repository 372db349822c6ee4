"""What the commands that touch a deployment share."""

from pathlib import Path

from reticent._files import sha256_of_file
from reticent.errors import RunDirectoryError


def run_id(run_dir: Path) -> str:
    """The identity of a run: the SHA-256 of its manifest, which names every other file by hash.

    Raises:
        RunDirectoryError: there is no manifest.
    """
    manifest = run_dir / "manifest.json"
    try:
        return sha256_of_file(manifest)
    except OSError as error:
        raise RunDirectoryError(
            f"{run_dir} is no run directory: cannot read {manifest.name} ({error.strerror}); "
            "build one with `reticent worlds build`"
        ) from error
