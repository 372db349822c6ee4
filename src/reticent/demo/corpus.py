"""The demonstration's corpus and run: made once, found again, and finished where they were interrupted."""

from pathlib import Path

from reticent.api.runs import Run, build_worlds
from reticent.demo.letters import Letter, read_letters, write_letters
from reticent.demo.settings import DemoFolder, DemoSettings
from reticent.errors import InvalidValueError, StorageError
from reticent.protocols import Progress


def prepare_letters(folder: DemoFolder, settings: DemoSettings) -> tuple[Letter, ...]:
    """Return the private letters, written unless they are there, with held-out ones about other patients beside them.

    Raises:
        InvalidValueError: what is there is another number of letters.
        CorpusError, StorageError, ReticentError: a file cannot be read or written, or Faker is not installed.
    """
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder.root}: {error.strerror}; choose another --out") from error
    letters = _written_once(folder.letters, folder.truth, settings.letters, settings.seed, settings.planted)
    _written_once(folder.held_out, folder.held_out_truth, settings.held_out, settings.seed + 1, 0)
    return letters


def prepare_run(folder: DemoFolder, settings: DemoSettings, progress: Progress) -> Run:
    """Return the worlds over the letters: built, finished where a build stopped, or found as they are.

    Raises:
        RunDirectoryError: the run that is there was built with other settings.
        ReticentError: the build cannot continue.
    """
    return build_worlds(
        folder.letters,
        out=folder.run,
        model=settings.model,
        worlds=settings.worlds,
        unit_key="patient",
        options=settings.training,
        resume=True,
        progress=progress,
    )


def _written_once(path: Path, truth: Path, count: int, seed: int, planted: int) -> tuple[Letter, ...]:
    if not path.is_file():
        # The ground truth is written first; without the letters it is what an interrupted call left.
        truth.unlink(missing_ok=True)
        return write_letters(path, count, seed, truth_path=truth, planted=planted)
    letters = read_letters(path, truth)
    if len(letters) != count:
        raise InvalidValueError(
            f"{path} holds {len(letters)} letters, and {count} are asked for; choose another --out, or delete "
            f"{path.parent} to start over"
        )
    return letters
