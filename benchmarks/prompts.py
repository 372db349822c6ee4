"""Row on reading a prompt: all worlds at once against one `transformers` prefill a world."""

from benchmarks import limits
from benchmarks.decoding import check_engine
from benchmarks.peers import prefill
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import time_in_turn
from benchmarks.workspace import Workspace
from reticent.engine.engine import Engine

_TOP = 12


def prefill_top12(workspace: Workspace) -> Measured:
    """`Engine.open` against m + 1 separate prefills of the bare base."""
    sizes = workspace.sizes
    adapters = workspace.adapters("attention", _TOP)
    engine = Engine(workspace.decoder, adapters)
    prompt = workspace.prompt(sizes.prefill)
    check_engine(workspace, engine, adapters, prompt)

    def separate() -> None:
        for _ in range(sizes.prefills_timed):
            prefill(workspace.model, prompt)

    rows = sizes.num_worlds + 1
    times = time_in_turn(lambda: engine.open(prompt), separate, sizes.heavy_pairs, device=workspace.device).scale(
        denominator=rows / sizes.prefills_timed
    )
    shape = limits.StepShape(tokens=sizes.prefill, context=sizes.prefill, candidates=0)
    least = limits.step_ms(workspace.architecture, adapters, shape, workspace.peaks)
    notes = f"{sizes.prefills_timed} prefills of the bare base timed, scaled to {rows}"
    return Measured(times, least / times.centres_ms[1], notes=notes)


BENCHMARKS = (
    Benchmark(
        "prefill-256-top12",
        "prefill of a 256-token prompt for all worlds, last 12 of 30 blocks adapted",
        "one separate prefill for each world and the public model",
        0.45,
        "<=",
        prefill_top12,
        weight=55,
    ),
)
