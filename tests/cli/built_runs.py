"""A small run, built by the command."""

from pathlib import Path

from reticent.cli import main as cli


def build_small_run(corpus: Path, model: Path, out: Path, max_tokens: int) -> Path:
    """Four worlds of rank 2 in the last two blocks, trained far enough to disagree."""
    options = ["--worlds", "4", "--rank", "2", "--adapt-layers", "top:2", "--learning-rate", "0.05"]
    options += ["--max-tokens", str(max_tokens), "--model", str(model), "--out", str(out)]
    assert cli.main(["worlds", "build", str(corpus), *options]) == 0
    return out
