"""A small run, built by the command."""

from pathlib import Path

from reticent.cli import main as cli
from reticent.models.base import BaseModelRecord
from reticent.training.settings import LoraSettings
from reticent.worlds.manifest import MANIFEST_NAME, MEMBERSHIP_NAME, SCHEMA_VERSION, WORLDS_NAME, Manifest


def build_small_run(corpus: Path, model: Path, out: Path, max_tokens: int) -> Path:
    """Four worlds of rank 2 in the last two blocks, trained far enough to disagree."""
    options = ["--worlds", "4", "--rank", "2", "--adapt-layers", "top:2", "--learning-rate", "0.05"]
    options += ["--max-tokens", str(max_tokens), "--model", str(model), "--out", str(out)]
    assert cli.main(["worlds", "build", str(corpus), *options]) == 0
    return out


def write_manifest(folder: Path, *, membership: bool = True) -> None:
    """Write a valid manifest without the files it names; `membership` says whether it names who is in which world."""
    files = {WORLDS_NAME: "0" * 64} | ({MEMBERSHIP_NAME: "0" * 64} if membership else {})
    base = BaseModelRecord(name="base", class_name="LlamaForCausalLM", content_hash="0" * 64, tokenizer_hash="0" * 64)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION, created="2026-01-01", num_worlds=8, base=base, lora=LoraSettings(), files=files
    )
    (folder / MANIFEST_NAME).write_text(manifest.model_dump_json())
