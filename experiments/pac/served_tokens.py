"""Tokens that a deployment serves within one bound, charging every token against charging only dissenting ones.

Within B nats at b nats a charge, `fixed` serves N = ⌊B/b⌋ tokens and `dissent` all tokens up to the dissenting one that
would be charge number N + 1. On a stream on which a share d of the tokens dissents that is N/d. d is measured on the
streams of `stability`, every position of its test texts under both decoders, with its error over texts; `--votes` adds
the streams of runs, as `reticent evaluate` casts their votes. Measures nothing itself.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

from experiments.pac.common import HERE
from experiments.pac.comparisons import SMALLEST
from experiments.pac.results import Findings, ResultHeader, write_findings
from experiments.pac.settings import Size
from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError, ReticentError
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.pac.bounds import plan
from reticent.pac.charging import ChargingRule
from reticent.reports.evaluation import cell
from reticent.reports.model import Paragraph, Table
from reticent.stats.estimate import Estimate
from reticent.stats.means import CONFIDENCE, Mean, TextSpans

_SUCCESSES = (0.51, 0.6)
_CANDIDATES = 200


@dataclass(frozen=True)
class Stream:
    """A stream of positions under one decoder: its name, and the share on which worlds differ, with its error."""

    label: str
    decoder: Decoder
    dissent: Mean


@dataclass(frozen=True)
class ServedTokens:
    """Tokens served within one bound on one stream.

    Attributes:
        stream: which.
        half_success: the bound on telling which half a record is in.
        fixed: tokens if every token is charged.
        dissent: tokens if only dissenting ones are, with its interval over texts.
        times: the second divided by the first, likewise.
    """

    stream: Stream
    half_success: float
    fixed: int
    dissent: Estimate
    times: Estimate


def streams_of_results(folder: Path) -> Iterator[Stream]:
    """The streams of the results of `stability` in a folder, at the default number of candidates."""
    for path in sorted(folder.glob("stability-*.json")):
        content = json.loads(path.read_text("utf-8"))
        [row] = [row for row in content["results"]["stability"]["rows"] if row["num_candidates"] == _CANDIDATES]
        for decoder in Decoder:
            unanimous = Mean.model_validate(row[decoder.value])
            dissent = unanimous.model_copy(update={"value": 1.0 - unanimous.value})
            yield Stream(f"{content['domain']}, {content['size']}", decoder, dissent)


def streams_of_votes(path: Path) -> Iterator[Stream]:
    """The streams of one run's votes, `votes.npz` of its evaluation.

    Raises:
        InvalidValueError: the file is missing, or holds no votes.
    """
    try:
        tensor = VoteTensor.load(path)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise InvalidValueError(f"{path} holds no votes ({error}); give votes.npz of an evaluation's folder") from error
    for decoder in Decoder:
        yield Stream(str(path), decoder, TextSpans(tensor.offsets).mean(tensor.votes(decoder).dissent))


def served(stream: Stream, half_success: float) -> ServedTokens:
    """Tokens within a bound on one stream.

    Raises:
        InvalidValueError: the stream is too short for an interval, or its interval reaches a share of 0.
    """
    interval = stream.dissent.interval()
    if interval is None or not interval[0] > 0.0:
        raise InvalidValueError(
            f"{stream.label}, {stream.decoder}: too few texts or too little dissent; give more texts"
        )
    low, high = interval
    tokens = plan(step_budget=SMALLEST, half_success=half_success, charging_rule=ChargingRule.FIXED).tokens
    times = Estimate(value=1.0 / stream.dissent.value, low=1.0 / min(high, 1.0), high=1.0 / low, confidence=CONFIDENCE)
    counts = Estimate(
        value=tokens * times.value, low=tokens * times.low, high=tokens * times.high, confidence=CONFIDENCE
    )
    return ServedTokens(stream, half_success, tokens, counts, times)


def describe(rows: Sequence[ServedTokens]) -> Findings:
    """The findings: one table, and what it says."""
    table = Table(
        name="served-tokens",
        title="Tokens within one bound",
        columns=("Stream", "Votes", "Dissent", "Success, at most", "`fixed`", "`dissent`", "Times"),
        rows=tuple(
            (
                row.stream.label,
                row.stream.decoder.value,
                cell(row.stream.dissent),
                row.half_success,
                f"{row.fixed:,}",
                f"{row.dissent.value:,.0f} [{row.dissent.low:,.0f}, {row.dissent.high:,.0f}]",
                f"{row.times.value:.2f} [{row.times.low:.2f}, {row.times.high:.2f}]",
            )
            for row in rows
        ),
        note="b = 2^-32 nats, k = 200. Intervals: 95 %, over texts.",
    )
    smallest, largest = min(row.times.value for row in rows), max(row.times.value for row in rows)
    text = Paragraph(
        text=f"Charging only dissenting tokens serves {smallest:.2f} to {largest:.2f} times the tokens within the same "
        "bound. The factor is one over the share of dissenting tokens, whatever the bound."
    )
    return Findings("Tokens served within one bound", {"served": [asdict(row) for row in rows]}, (text, table))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = argparse.ArgumentParser("python -m experiments.pac.served_tokens", description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE, help="folder of the results (default: %(default)s)")
    parser.add_argument("--votes", type=Path, nargs="*", default=[], help="votes.npz of runs' evaluations")
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    try:
        streams = [*streams_of_results(options.results)]
        for path in options.votes:
            streams += streams_of_votes(path)
        rows = [served(stream, success) for stream in streams for success in _SUCCESSES]
    except ReticentError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if not rows:
        sys.stderr.write(f"error: {options.results} has no results of stability; run that first, or give --votes\n")
        return 2
    header = ResultHeader.now(
        name="served-tokens",
        command=shlex.join(["python", "-m", "experiments.pac.served_tokens", *arguments]),
        seed=0,
        size=Size.LOCAL.value,
        domain="all",
    )
    for path in write_findings(options.results, header, describe(rows)):
        sys.stderr.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
