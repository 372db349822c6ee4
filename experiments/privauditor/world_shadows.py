"""Attacks that need shadow models, for nothing: worlds of one run are each other's shadows.

    reticent benchmark gain --data ../shared/data --out build/gain
    python -m experiments.privauditor.world_shadows build/gain

Builds a run on the texts of the finished grid `gain`, as many members to a world as the grid's cells have, and audits
some of its worlds with LiRA, with RMIA tuned on the other worlds, and with attacks that know the base alone. Writes
the result beside this file as JSON and as Markdown: figures and hashes, no text. An interrupted build resumes.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

import reticent
from experiments.pac.results import write_file
from reticent._settings import FrozenModel
from reticent.auditing.results import AttackResult
from reticent.benchmark.records import source_revision
from reticent.errors import InvalidValueError, ReticentError
from reticent.reports.grid import pool_estimates
from reticent.stats.estimate import Estimate

HERE = Path(__file__).parent
NAME = "gain-worlds"
ATTACKS = ("likelihood", "reference", "rmia", "lira")


@dataclass(frozen=True)
class ShadowSettings:
    """Settings of the run and of its audits.

    Attributes:
        num_worlds: worlds of the run; all but the audited one are shadows.
        audited: how many worlds are audited.
        num_texts: texts of the run; each is in half of the worlds.
        epochs: of training, from the base.
        max_tokens: texts are cut here.
        model: the base.
        dtype: to compute in.
    """

    num_worlds: int = 32
    audited: int = 3
    num_texts: int = 256
    epochs: int = 8
    max_tokens: int = 64
    model: str = "smollm2-135m"
    dtype: str = "bfloat16"


class WorldFigures(FrozenModel):
    """One attack on the audited worlds.

    Attributes:
        attack: its name.
        auc: pooled over the worlds, with the mean ends of their intervals.
        low_fpr_rate: the true-positive rate at 1 % false positives, likewise; None where texts are too few for it.
    """

    attack: str
    auc: Estimate
    low_fpr_rate: Estimate | None


class WorldShadows(FrozenModel):
    """The result, with all that makes it again."""

    command: str
    revision: str | None
    settings: dict[str, int | str]
    data_sha256: str
    figures: tuple[WorldFigures, ...] = Field(min_length=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = argparse.ArgumentParser("python -m experiments.privauditor.world_shadows", description=__doc__)
    parser.add_argument("grid", type=Path, help="the folder that `reticent benchmark gain --out` made")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the files (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        result = audit_worlds(options.grid, ShadowSettings())
        write_file(options.out / f"{NAME}.json", (result.model_dump_json(indent=2) + "\n").encode())
        write_file(options.out / f"{NAME}.md", page(result).encode())
    except ReticentError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def audit_worlds(grid: Path, settings: ShadowSettings) -> WorldShadows:
    """Build the run beside the grid, or finish it, and audit its first worlds.

    Raises:
        InvalidValueError: the folder holds no texts of one data set.
        ReticentError: the run cannot be built or audited.
    """
    folders = sorted(path.parent for path in grid.glob("data/*/corpus.json"))
    if len(folders) != 1:
        raise InvalidValueError(
            f"{grid} holds the texts of {len(folders)} data sets, not of one; run `reticent benchmark gain` first"
        )
    corpus = folders[0] / "corpus.jsonl"
    out = grid / "worlds"
    run = reticent.build_worlds(
        corpus,
        out=out,
        model=settings.model,
        worlds=settings.num_worlds,
        limit=settings.num_texts,
        options=reticent.BuildOptions(
            epochs=settings.epochs,
            learning_rate=1e-3,
            batch_size=16,
            max_tokens=settings.max_tokens,
            dtype=settings.dtype,  # type: ignore[arg-type]
        ),
        resume=out.exists(),
    )
    by_attack: dict[str, list[AttackResult]] = {name: [] for name in ATTACKS}
    for world in range(settings.audited):
        audit = reticent.audit(
            run,
            members=corpus,
            limit=settings.num_texts,
            attacks=ATTACKS,
            out=grid / f"world-{world}",
            options=reticent.AuditOptions(world=world, cache=grid / "world-signals", seed=world),
        )
        for attack in audit.result.attacks:
            by_attack[attack.name].append(attack)
    return WorldShadows(
        command=f"python -m experiments.privauditor.world_shadows {grid.name}",
        revision=source_revision(),
        settings=vars(settings),
        data_sha256=json.loads((folders[0] / "corpus.json").read_text("utf-8"))["sha256"],
        figures=tuple(_figures(name, found) for name, found in by_attack.items() if found),
    )


def _figures(name: str, found: Sequence[AttackResult]) -> WorldFigures:
    rates = [rate for attack in found if (rate := attack.tpr_at(0.01)) is not None]
    return WorldFigures(
        attack=name,
        auc=pool_estimates([attack.auc for attack in found]),
        low_fpr_rate=pool_estimates(rates) if rates else None,
    )


def page(result: WorldShadows) -> str:
    """The result as Markdown."""
    settings = result.settings
    rows = "".join(f"| {row.attack} | {_text(row.auc)} | {_text(row.low_fpr_rate)} |\n" for row in result.figures)
    return (
        "# Worlds as each other's shadow models\n\n"
        f"{settings['audited']} of {settings['num_worlds']} worlds of one run are audited, each with the others as its "
        f"shadow models: {settings['num_texts']} texts of {settings['max_tokens']} tokens, half of them in each world, "
        f"{settings['epochs']} epochs of LoRA on {settings['model']}. LiRA learns from the shadows what a text scores "
        "when it is a member and when it is not; RMIA takes its reference and its scale from them. The shadows cost "
        "one pass of the run's engine, and no training.\n\n"
        "| attack | AUC | TPR at 1 % FPR |\n|---|---|---|\n"
        f"{rows}\n95 % intervals, the mean ends over the audited worlds. Made by `{result.command}` at revision "
        f"`{result.revision}`.\n"
    )


def _text(estimate: Estimate | None) -> str:
    if estimate is None:
        return "too few texts"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
