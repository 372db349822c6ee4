"""`reticent demo`: the whole way on synthetic clinic letters, with the packaged model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.rule import Rule

from reticent.cli import generate as generating
from reticent.cli import plan as planning
from reticent.cli import worlds as building
from reticent.cli.output import console
from reticent.decoding.votes import Decoder

if TYPE_CHECKING:
    from reticent.engine.engine import Engine

PROMPT = "Dear Dr Stone,\n\nThank you for referring this patient, who has had"
_SEED = 7
_TEMPERATURE = 0.8


def demo(
    out: Annotated[Path, typer.Option(help="Where letters and run go; kept, and used again next time.")] = Path(
        "demo-run"
    ),
    letters: Annotated[int, typer.Option(help="How many letters to invent.")] = 80,
    worlds: Annotated[int, typer.Option(help="Number of worlds m; even.")] = 16,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each text.")] = 48,
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = PROMPT,
) -> None:
    """Adapt the packaged model on invented clinic letters as overlapping worlds, and generate privately from it."""
    corpus, run = out / "letters.jsonl", out / "run"
    _chapter("1. A private corpus")
    _write_letters(corpus, out / "ground-truth.jsonl", letters)
    _write_held_out(out / "held_out.jsonl", max(1, letters // 2))
    _chapter(f"2. {worlds} overlapping worlds, one adapter each, over one frozen public model")
    if (run / "manifest.json").is_file():
        console.print(f"{run} is there already; delete {out} to start over", highlight=False)
        building.show(run)
    else:
        building.build(
            corpus,
            run,
            worlds=worlds,
            unit_key="patient",
            max_tokens=80,
            epochs=2,
            batch_size=2,
            learning_rate=1e-3,
            adapt_layers="top:8",
            dtype=building.DType.BFLOAT16,
            resume=(run / "training").is_dir(),
        )
    _chapter("3. What the public model alone writes")
    _show_public_text(run, prompt, max_tokens)
    for number, decoder in ((4, Decoder.GUMBEL), (5, Decoder.GREEDY)):
        _chapter(f"{number}. Private tokens, {decoder.value} votes, at most 2^-32 nats each")
        _show_prompt(prompt)
        generating.generate(run, prompt, max_tokens, decoder=decoder, temperature=_TEMPERATURE)
    _chapter("6. What a million such tokens would tell")
    planning.plan(tokens=1_000_000, step_budget=2.0**-32, worlds=worlds)
    console.print(
        f'\nThe run is in {run}. Go on with:  reticent generate {run} --prompt "Dear Dr"\n'
        "What the bound covers, and what it does not: docs/guarantee.md",
        highlight=False,
    )


def _chapter(title: str) -> None:
    console.print()
    console.print(Rule(title, align="left"))


def _write_letters(corpus: Path, truth: Path, count: int) -> None:
    from reticent.demo.letters import write_letters

    if corpus.is_file():
        console.print(f"{corpus} is there already", highlight=False)
        return
    corpus.parent.mkdir(parents=True, exist_ok=True)
    written = write_letters(corpus, count, _SEED, truth_path=truth)
    canaries = sum(len(letter.canaries) for letter in written)
    patients = len({letter.patient for letter in written})
    console.print(
        f"{len(written)} invented letters about {patients} patients, {canaries} planted secrets; for example:\n",
        highlight=False,
    )
    console.print(written[0].text, style="dim", highlight=False, markup=False)


def _write_held_out(path: Path, count: int) -> None:
    """Letters about other patients, for `reticent evaluate --test`."""
    from reticent.demo.letters import write_letters

    if not path.is_file():
        write_letters(path, count, _SEED + 1, truth_path=path.with_name("held_out-truth.jsonl"))


def _show_public_text(run: Path, prompt: str, max_tokens: int) -> None:
    import torch

    from reticent.text.tokenise import encode_prompt
    from reticent.worlds.run_directory import RunDirectory

    opened = RunDirectory.open(run)
    base = opened.base()
    tokenizer = base.load_tokenizer()
    tokens = _most_likely_tokens(opened.engine(base, torch.bfloat16), encode_prompt(tokenizer, prompt), max_tokens)
    _show_prompt(prompt)
    console.print(tokenizer.decode(tokens, skip_special_tokens=True), highlight=False, markup=False)


def _most_likely_tokens(engine: "Engine", prompt: list[int], count: int) -> list[int]:
    """Continue a prompt with the public model's first choices (row 0 of the ensemble)."""
    context = engine.open(prompt)
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(int(engine.public_logits(context).argmax()))
        engine.extend([context], tokens[-1:])
    return tokens


def _show_prompt(prompt: str) -> None:
    console.print(f"{prompt} …", style="dim", highlight=False, markup=False)
