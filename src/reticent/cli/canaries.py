"""`reticent canaries`: plant invented secrets in a corpus, so that an audit can count what a model gives away."""

from pathlib import Path
from typing import Annotated

import typer

from reticent.cli.output import console, facts, print_json
from reticent.errors import InvalidValueError

app = typer.Typer(help="Invented secrets that are planted before training and looked for in the audit.")

KINDS = "digits, secrets, ood"


@app.command("plant")
def plant(
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="JSONL, CSV, Parquet or text, also .gz; or a folder of texts.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make: planted.jsonl and canaries.jsonl.")],
    kind: Annotated[str, typer.Option(help=f"One of {KINDS}; or several, comma-separated.")] = "digits",
    count: Annotated[int, typer.Option(help="Canaries of each kind to plant; each has a twin that is held out.")] = 32,
    repetitions: Annotated[
        str, typer.Option(metavar="N,…", help="How often they are planted, dealt to them in turn.")
    ] = "1",
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text",
    unit_key: Annotated[
        str | None,
        typer.Option(
            help="Key that names a record's owner; written as `unit`, in Unicode form NFKC and without outer white "
            "space, and each canary gets one."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Read at most this many records.")] = None,
    seed: Annotated[int, typer.Option(help="Draws secrets, coins and places.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plant canaries: train on planted.jsonl, and give canaries.jsonl to `reticent audit --canaries`."""
    from reticent.auditing.canaries.planting import CANARIES_NAME, PLANTED_NAME, CanaryKind, draw_canaries
    from reticent.auditing.canaries.planting import plant as plant_in
    from reticent.text.corpus import read_corpus

    names = [name.strip() for name in kind.split(",") if name.strip()]
    unknown = sorted(set(names) - set(CanaryKind))
    if unknown or not names:
        raise InvalidValueError(f"there is no kind of canary {', '.join(unknown) or repr(kind)}; kinds are {KINDS}")
    numbers = _numbers(repetitions)
    canaries = [
        canary for name in dict.fromkeys(names) for canary in draw_canaries(CanaryKind(name), count, numbers, seed)
    ]
    records = read_corpus(corpus, text_key=text_key, unit_key=unit_key, limit=limit).records
    plant_in(records, canaries, out, seed=seed, keep_units=unit_key is not None)
    planted = [canary for canary in canaries if canary.member]
    rows = {
        "corpus": str(out / PLANTED_NAME),
        "canaries": str(out / CANARIES_NAME),
        "records": len(records),
        "planted": len(planted),
        "copies": sum(canary.repetitions for canary in planted),
        "held_out": len(canaries) - len(planted),
    }
    if as_json:
        print_json(rows)
    else:
        console.print(facts({name.replace("_", " "): f"{value}" for name, value in rows.items()}))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InvalidValueError(f"repetitions must be whole numbers separated by commas, got {text!r}") from None
