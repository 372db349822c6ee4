"""What cannot be measured as asked is refused in one line, and the published figures are never replaced by others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import auditing, concurrency, options, report, training
from benchmarks import main as harness
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import Paired

SMOKE = ["--smoke", "--dtype", "float32"]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def measured_all_the_same(_run: Any) -> None:
        pytest.fail("something was measured")

    monkeypatch.setattr(harness._Run, "run", measured_all_the_same)

    def refusal(*arguments: str) -> str:
        assert harness.main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        return error

    return refusal


@pytest.mark.parametrize("device", ["foo", "cuda:99", "", "meta"])
def test_a_device_that_is_not_here_is_refused(device: str, refused: Callable[..., str]) -> None:
    error = refused("--device", device)
    assert repr(device) in error
    assert "cpu" in error


def test_a_type_or_a_number_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value, remedy in (
        ("--dtype", "int3", "choose from"),
        ("--repeats", "0", "at least 1, not '0'"),
        ("--threads", "two", "at least 1, not 'two'"),
    ):
        with pytest.raises(SystemExit) as stopped:
            harness.main([option, value])
        assert stopped.value.code == 2
        assert remedy in capsys.readouterr().err


def test_a_name_that_is_no_row_is_refused(refused: Callable[..., str]) -> None:
    assert "private-token-top13; --list shows all" in refused("--only", "private-token-top13")


def test_rows_that_a_gpu_cannot_run_are_refused_with_those_that_it_can(refused: Callable[..., str]) -> None:
    for others in ([], ["concurrency"]):
        error = refused("--only", "training-all", *others, "--device", "cuda")
        assert "training-all: on a processor only" in error
        for name in ("private-token-attention", "mechanism-share", "concurrency", "curve"):
            assert name in error.partition("a GPU can run")[2]
        assert "training" not in error.partition("a GPU can run")[2]


def test_the_list_marks_what_a_gpu_runs(capsys: pytest.CaptureFixture[str]) -> None:
    chosen, with_curve = options.chosen_rows(options.parser().parse_args(["--device", "cuda"]), harness.BENCHMARKS)
    assert harness.main(["--list"]) == 0
    marked = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("also on cuda")}
    assert with_curve
    assert marked == {"curve", *(benchmark.name for benchmark in chosen)}


@pytest.mark.parametrize("content", [None, "no JSON", "{}", "[]", "\xff"])
def test_a_page_without_results_is_refused(content: str | None, tmp_path: Path, refused: Callable[..., str]) -> None:
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content, "latin-1")
    error = refused("--write-docs", "--out", str(path))
    assert str(path) in error
    assert "make bench" in error


def test_a_corpus_that_is_too_short_is_refused_before_anything_is_measured(
    tiny_llama_folder: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    corpus = tmp_path / "texts.jsonl"
    texts = ["long enough for the thirteen tokens"] * 7 + ["short"]
    corpus.write_text("".join(json.dumps({"text": f"{n} {text}"}) + "\n" for n, text in enumerate(texts)))
    arguments = [*SMOKE, "--model", str(tiny_llama_folder), "--out", str(tmp_path / "out.json"), "--texts", str(corpus)]
    error = refused(*arguments)
    assert "7 texts of at least 13 tokens, needed are 8" in error
    assert "leave --texts away" in error
    assert "nowhere.jsonl" in refused(*arguments[:-1], str(tmp_path / "nowhere.jsonl"))


@pytest.mark.parametrize(
    "other",
    [
        ["--device", "cuda"],
        ["--dtype", "float32"],
        ["--model", "another"],
        ["--smoke"],
        ["--only", "concurrency"],
        ["--repeats", "3"],
        ["--threads", "1"],
        ["--texts", "corpus.jsonl"],
    ],
)
def test_only_a_run_as_published_may_replace_what_is_published(other: list[str], refused: Callable[..., str]) -> None:
    parse = options.parser().parse_args
    assert options.results_path(parse([])) == options.RESULTS
    assert options.results_path(parse(["--model", "smollm2-135m", "--device", "cpu"])) == options.RESULTS
    assert options.results_path(parse(other)) == options.PARTIAL
    assert options.results_path(parse([*other, "--out", "mine.json"])) == Path("mine.json")
    error = refused(*other, "--out", str(options.RESULTS.parent / ".." / "out" / "results.json"))
    assert "published" in error


def test_a_folder_in_the_place_of_the_results_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "that is a folder" in refused("--smoke", "--out", str(tmp_path))


@pytest.mark.parametrize("stopped", [True, False])
def test_published_results_stay_until_everything_is_measured(
    stopped: bool, tiny_llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(_workspace: Any) -> Measured:
        assert published.read_text() == "as published"
        if stopped:
            raise KeyboardInterrupt
        return Measured(Paired((1.0,), (1.0,)), None)

    def row(name: str, run: Callable[..., Measured]) -> Benchmark:
        return Benchmark(name, "a", "b", 2.0, "<=", run, weight=1.0)

    published, partial = tmp_path / "results.json", tmp_path / "partial.json"
    published.write_text("as published")
    rows = (row("first", lambda _: Measured(Paired((1.0,), (1.0,)), None)), row("second", stopping))
    monkeypatch.setattr(harness, "BENCHMARKS", rows)
    monkeypatch.setattr(concurrency, "curve", lambda _workspace, on_points: on_points([]))
    monkeypatch.setattr(options, "is_published_run", lambda _options: True)
    monkeypatch.setattr(options, "RESULTS", published)
    monkeypatch.setattr(options, "PARTIAL", partial)
    status = harness.main([*SMOKE, "--model", str(tiny_llama_folder)])
    measured = ["first"] if stopped else ["first", "second"]
    assert status == (130 if stopped else 0)
    assert [row["name"] for row in json.loads(partial.read_text())["rows"]] == measured
    if stopped:
        assert published.read_text() == "as published"
    else:
        assert report.read_results(published)["finished"]


def test_what_keeps_freed_memory_comes_last(
    tiny_llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(benchmark: Benchmark) -> Benchmark:
        def run(_workspace: Any) -> Measured:
            order.append(benchmark.name)
            return Measured(Paired((1.0,), (1.0,)), None)

        return Benchmark(benchmark.name, "a", "b", 2.0, "<=", run, weight=1.0)

    keeping = [benchmark.name for benchmark in (*training.BENCHMARKS, *auditing.BENCHMARKS)]
    noted_rows = tuple(map(noted, harness.BENCHMARKS))
    monkeypatch.setattr(harness, "BENCHMARKS", noted_rows)
    monkeypatch.setattr(
        harness, "_KEEPING_FREED_MEMORY", tuple(b for b in noted_rows if b.name in keeping), raising=False
    )

    def curve(_workspace: Any, on_points: Callable[[list[Any]], None]) -> None:
        order.append("curve")
        on_points([])

    monkeypatch.setattr(concurrency, "curve", curve)
    assert harness.main([*SMOKE, "--model", str(tiny_llama_folder), "--out", str(tmp_path / "out.json")]) == 0
    assert order[-len(keeping) :] == keeping
    assert order[-len(keeping) - 1] == "curve"
    assert order.count("curve") == 1
    assert len(order) == len(noted_rows) + 1
