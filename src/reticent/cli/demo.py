"""`reticent demo`: the whole way on synthetic clinic letters, with the packaged model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.rule import Rule
from rich.table import Table

from reticent.cli import plan as planning
from reticent.cli import serve as serving
from reticent.cli import state as accounting
from reticent.cli import worlds as building
from reticent.cli.output import console, notes, print_table
from reticent.errors import InterruptedRunError

if TYPE_CHECKING:
    from reticent.demo.findings import DemoFindings, SecretAnswers
    from reticent.demo.letters import Letter
    from reticent.demo.settings import DemoFolder, DemoSettings
    from reticent.evaluation.run_evaluation import Evaluation

_PORT = 8000


def demo(
    out: Annotated[Path, typer.Option(help="Where letters, run and report go; kept, and used again.")] = Path(
        "demo-run"
    ),
    letters: Annotated[int | None, typer.Option(min=24, help="How many letters to invent.")] = None,
    worlds: Annotated[int | None, typer.Option(help="Number of worlds m; even.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens of each answer.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The beginning of a letter, to be finished.")] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="End by serving the run, and open the page to try it.")
    ] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of --serve.")] = _PORT,
) -> None:
    """Adapt the packaged model on invented clinic letters as overlapping worlds, and see what private tokens are worth.

    The same command continues where it was interrupted, and shows again what is there.
    """
    from reticent.demo.settings import DemoFolder

    folder = DemoFolder(out)
    try:
        _show_all(folder, _settings(letters, worlds, max_tokens, prompt))
    except KeyboardInterrupt:
        raise InterruptedRunError(f"the same command continues from here ({out})") from None
    if serve:
        _serve(folder, port)


def _settings(letters: int | None, worlds: int | None, max_tokens: int | None, prompt: str | None) -> "DemoSettings":
    from dataclasses import replace

    from reticent.demo.settings import DemoSettings

    settings = DemoSettings()
    if letters is not None:
        settings = settings.with_letters(letters)
    return replace(
        settings,
        worlds=settings.worlds if worlds is None else worlds,
        max_tokens=settings.max_tokens if max_tokens is None else max_tokens,
        prompt=settings.prompt if prompt is None else prompt,
    )


def _show_all(folder: "DemoFolder", settings: "DemoSettings") -> None:
    from reticent.cli.progress import WorkProgress
    from reticent.demo.comparison import compare_models
    from reticent.demo.corpus import prepare_letters, prepare_run
    from reticent.demo.findings import gather_findings
    from reticent.demo.report import demo_report
    from reticent.demo.settings import PLANNED_TOKENS, STEP_BUDGET
    from reticent.reports.render import write_report

    _chapter("A private corpus")
    _print_letters(prepare_letters(folder, settings))
    _chapter(f"{settings.worlds} overlapping worlds, one adapter each, over one frozen public model")
    with WorkProgress() as progress:
        prepare_run(folder, settings, progress)
    building.show(folder.run)
    with WorkProgress() as progress:
        evaluation = compare_models(folder, settings, progress)
        findings = gather_findings(folder, settings)
    _chapter("1. On letters nobody trained on")
    _print_accuracies(evaluation)
    _chapter("2. One letter, finished by three writers")
    _print_letter(findings)
    _chapter("3. The planted secret")
    _print_secret(findings.secret)
    _chapter("4. What was spent, and what a million tokens would tell")
    accounting.show(folder.run)
    console.print()
    planning.plan(tokens=PLANNED_TOKENS, step_budget=STEP_BUDGET, worlds=settings.worlds)
    _chapter("5. The report")
    write_report(demo_report(evaluation, findings), folder.root)
    console.print(
        f"Open {folder.report}: accuracy against budget, agreement, and three secrets in small.\n"
        f'Go on with:  reticent generate {folder.run} --prompt "Dear Dr"   or   reticent demo --serve',
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _chapter(title: str) -> None:
    console.print()
    console.print(Rule(title, align="left"))


def _print_letters(letters: "tuple[Letter, ...]") -> None:
    patients = len({letter.patient for letter in letters})
    planted = sum(bool(letter.canaries) for letter in letters)
    console.print(
        f"{len(letters)} invented letters about {patients} patients; {planted} of them are one note with a planted "
        "secret. For example:\n",
        highlight=False,
    )
    example = next(letter for letter in letters if not letter.canaries)
    console.print(example.text, style="dim", highlight=False, markup=False)


def _print_accuracies(evaluation: "Evaluation") -> None:
    from reticent.demo.comparison import Accuracies

    found = Accuracies.of(evaluation.utility[0])
    table = Table(box=None, pad_edge=False)
    for heading in ("", "next tokens predicted", "95 % interval"):
        table.add_column(heading, no_wrap=True)
    for name, mean in found.rows():
        interval = mean.interval()
        between = "" if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}"
        table.add_row(name, f"{mean.value:.1%}", between)
    print_table(table)
    console.print(
        f"\nThe {evaluation.run['num_worlds']} worlds agree at {found.unanimity.value:.1%} of all positions; there "
        "nothing needs noise.",
        highlight=False,
    )


def _print_letter(findings: "DemoFindings") -> None:
    for writer, text in findings.letter.items():
        console.print(f"\n[{writer.value}]", style="bold", highlight=False, markup=False)
        console.print(findings.prompt, style="dim", highlight=False, markup=False, end="")
        console.print(text.rstrip(), highlight=False, markup=False)


def _print_secret(secret: "SecretAnswers") -> None:
    from reticent.demo.report import CONTENT_CAVEAT

    console.print(
        f"“{secret.prefix} …”: the note continues with {secret.secret} and was filed {secret.repetitions} times.\n",
        highlight=False,
        markup=False,
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("no protection", secret.unprotected, "recited" if secret.is_recited else "not recited")
    for mechanism, answers in secret.released.items():
        for answer in answers:
            outcome = "recited" if secret.secret in answer else "not recited"
            table.add_row(f"private tokens, {mechanism.value}", answer, outcome)
    print_table(table)
    console.print(f"\n{CONTENT_CAVEAT}", highlight=False)


def _serve(folder: "DemoFolder", port: int) -> None:
    from reticent.demo.browser import open_when_ready

    address = f"http://127.0.0.1:{port}"
    notes.print(f"\nTry it at {address}/try   (Ctrl-C ends the server)", highlight=False, markup=False)
    open_when_ready(f"{address}/readyz", f"{address}/try")
    serving.serve(folder.run, port=port)
