"""Write experiments/README.md: the paper's numbers beside ours, and a sentence where they differ."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.pac.common import HERE
from experiments.pac.comparisons import AGREES, COMPARISONS, WIDEST_BAND, Comparison, Ours
from experiments.pac.operating_point import FILE_NAME, OperatingPoint
from experiments.pac.settings import Domain
from reticent._files import atomic_write_bytes

EXPERIMENTS: Mapping[str, str] = {
    "sweep": "unanimity and the gain kept against how worlds are trained; chooses the operating point",
    "stability": "how often all worlds agree, and their probability inside the candidates",
    "utility": "accuracy and gain kept for every budget, mechanism and control; distance from the worlds' own mixture",
    "composition": "what the curator's posterior knows after 64 queries of 64 tokens",
    "leakage": "information about the secret as a share of what was charged",
    "quality": "repetition, diversity and perplexity of free-running text",
    "canary": "who repeats planted secrets, with and without calibrated noise",
    "cost": "seconds and multiplications of a token",
    "matched": "PAC against PMixED at an equal bound on membership",
    "secrets": "three attacks on three secrets, for every protection",
}
_COLUMNS: Mapping[Domain, str] = {
    Domain.WIKITEXT_FORM: "WikiText's form",
    Domain.WIKIPEDIA: "Wikipedia",
    Domain.NIH: "NIH abstracts",
}
_FOLDERS = {Domain.WIKITEXT_FORM: "reproduction"}
"""Folders of the results of a domain that was measured at another size than the others, below that of all results."""
_HEADS = " | ".join(_COLUMNS.values())
Found = Mapping[tuple[str, Domain], Mapping[str, Any]]
"""The content of each result file that there is."""
_NOT_YET = "–"  # noqa: RUF001 - a dash in a table
_LEGEND = (
    "WikiText's form: 700 Wikipedia articles of 192 tokens in the surface form of WikiText-103, batches of 16, one "
    "epoch at 2e-3 (`--size reproduction --domain wikitext-form`); the others are of `--size local`. "
    "± is one standard error, of a range the largest; brackets elsewhere are 95 %. A dash: not run yet, or no such "
    "row. Verdicts, in the order of the columns: `agrees` where our interval of two standard errors meets the paper's "
    f"number, of ranges at both ends; `too uncertain` where it is wider than {100 * WIDEST_BAND:.0f} points. The "
    "paper's 74.3 and 84.4 % are shares of the full-data gain; where a result lacks that share, it is worked out from "
    "the accuracies and its error is an upper bound."
)

_INTRODUCTION = """# Experiments

Everything that arXiv 2609.05676 measures, repeated by one command each, and put beside its rivals. `pac/` holds one
script a table or figure with its result beside it: `NAME-DOMAIN.json` has every number, `.md` the tables, `.svg` the
figures, each with command, revision, seed, versions and machine.

    make experiments                                            every script on a tiny random model: they run
    make experiments SIZE=local                                 every script as here, some hours on two cores
    python -m experiments.pac.sweep                             first: chooses the operating point on validation texts
    python -m experiments.pac.utility --domain nih              then any other; the runs they share are built once
    python -m experiments.pac.summary                           rewrites this page

`--size local`, a script's default, is what fits two cores: SmolLM2-135M, m = 128, 256 texts of 96 tokens. `--size
reproduction` is a run that can be put beside the paper: 700 articles of 192 tokens, plain or (`--domain wikitext-form`)
in the surface form of WikiText-103. `--size paper` is the published setting, GPT-2-small and 2,048 articles of
WikiText-103, fetched from the hub; it wants an accelerator.
Private texts are read from `--data`, and nothing of them is written to the results.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = argparse.ArgumentParser("python -m experiments.pac.summary", description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE, help="folder of the results (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=HERE.parent / "README.md", help="default: %(default)s")
    options = parser.parse_args(arguments)
    results = {
        (name, domain): found
        for name in EXPERIMENTS
        for domain in _COLUMNS
        if (found := _read(options.results, name, domain)) is not None
    }
    atomic_write_bytes(options.out, page(results, options.results, options.out.parent).encode())
    return 0


def page(results: Found, folder: Path, beside: Path) -> str:
    """The summary as Markdown.

    Args:
        results: the content of each result file that there is.
        folder: where those files are.
        beside: where the page will be, for its links.
    """
    place = Path(os.path.relpath(folder, beside))
    lines = [_INTRODUCTION]
    if (point := _operating_point(folder)) is not None:
        lines += ["## Operating point", "", point, ""]
    lines += ["## The paper and ours", ""]
    lines += [f"| experiment | quantity | paper | {_HEADS} | verdict |", "|---|---|---|---|---|---|---|"]
    lines += [_row(comparison, results) for comparison in COMPARISONS]
    lines += ["", _LEGEND, "", "## Where they differ", ""]
    nothing = "Nowhere, among the results that there are." if results else "There are no results yet."
    lines += list(_differences(results)) or [nothing]
    lines += ["", "## All results", "", f"| experiment | shows | {_HEADS} |", "|---|---|---|---|---|"]
    lines += [_links(name, shows, results, place) for name, shows in EXPERIMENTS.items()]
    stem, served = ((place / name).as_posix() for name in ("dissent-cost-all", "served-tokens-all"))
    lines += [
        "",
        f"[When the Gaussian release works]({stem}.md) ([json]({stem}.json)) fits what noise costs at a dissenting ",
    ]
    lines[-1] += "position to all of these runs, and has a table of the number of worlds."
    lines += [
        "",
        f"[Tokens served within one bound]({served}.md) ([json]({served}.json)) puts both charging rules beside ",
    ]
    lines[-1] += "each other on these streams."
    if warnings := list(_warnings(results)):
        lines += ["", "## Warnings that the results carry", "", *warnings]
    return "\n".join(lines) + "\n"


def _ours(comparison: Comparison, results: Found, domain: Domain) -> Ours | None:
    found = results.get((comparison.experiment, domain))
    return None if found is None else comparison.ours(found["results"])


def _row(comparison: Comparison, results: Found) -> str:
    ours = [_ours(comparison, results, domain) for domain in _COLUMNS]
    cells = (
        comparison.experiment,
        comparison.quantity,
        comparison.paper,
        *(_NOT_YET if o is None else o.text for o in ours),
        _verdicts(comparison, ours),
    )
    return f"| {' | '.join(cells)} |"


def _verdicts(comparison: Comparison, ours: Sequence[Ours | None]) -> str:
    """The verdict of each column, once where all are the same; none where the paper has no such number."""
    found = [comparison.verdict(each) for each in ours if each is not None]
    if not comparison.paper or not found:
        return ""
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def _differences(results: Found) -> Iterator[str]:
    for comparison in COMPARISONS:
        for domain in _COLUMNS:
            ours = _ours(comparison, results, domain)
            if ours is not None and comparison.paper and comparison.verdict(ours) != AGREES:
                explained = comparison.explain(ours)
                yield f"- {comparison.quantity}, {domain}: {ours.text} against {comparison.paper}; {explained}."


def _operating_point(folder: Path) -> str | None:
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    point = OperatingPoint.model_validate_json(path.read_bytes())
    layers = "all blocks" if point.num_top_layers is None else f"the last {point.num_top_layers} blocks"
    return (
        f"Learning rate {point.learning_rate:g}, {point.epochs} epoch(s), rank {point.rank}, {layers}; chosen by the "
        f"sweep ({point.chosen_on}): {point.rule}. `reticent worlds build --preset stable` starts from it."
    )


def _links(name: str, shows: str, results: Found, place: Path) -> str:
    cells = []
    for domain in _COLUMNS:
        stem = (place / _FOLDERS.get(domain, "") / f"{name}-{domain}").as_posix()
        links = " ".join(f"[{kind}]({stem}.{kind})" for kind in ("md", "json"))
        cells.append(links if (name, domain) in results else _NOT_YET)
    return f"| {name} | {shows} | {' | '.join(cells)} |"


def _warnings(results: Found) -> Iterator[str]:
    for (name, domain), found in results.items():
        yield from (f"- {name}, {domain}: {warning}" for warning in found["warnings"])


def _read(folder: Path, name: str, domain: Domain) -> Mapping[str, Any] | None:
    path = folder / _FOLDERS.get(domain, "") / f"{name}-{domain}.json"
    if not path.is_file():
        return None
    found: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
    return found


if __name__ == "__main__":
    sys.exit(main())
