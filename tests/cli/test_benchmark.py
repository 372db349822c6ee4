import json

import pytest
from small_grids import distinct_texts

from reticent.benchmark.settings import read_grid
from reticent.cli.main import main

GRID = """
name = "two"
members = 6
nonmembers = 5
max_tokens = 24
[[models]]
name = "m"
family = "llama"
tiny = true
[[datasets]]
name = "notes"
domain = "notes"
path = "notes.jsonl"
{more}
[[techniques]]
technique = "lora"
[[techniques]]
technique = "icl"
demonstrations = 2
[attacks]
names = ["likelihood", "reference"]
"""
ABSENT = '[[datasets]]\nname = "gone"\ndomain = "d"\npath = "gone.jsonl"'


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in distinct_texts(15)))

    def write(more=""):
        path = tmp_path / "grid.toml"
        path.write_text(GRID.format(more=more))
        return str(path)

    return write


def test_a_grid_runs_reports_and_is_found_finished(grid, tmp_path, capsys):
    arguments = ["benchmark", grid(), "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--json"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["cells"] == {"notes--m--lora--seed-0": "done", "notes--m--icl--seed-0": "done"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Benchmark two" in page
    everything = out + err + page
    assert not any(text[:30] in everything for text in distinct_texts(15))
    assert "[2/2] notes--m--icl--seed-0: done in" in err
    assert main(arguments) == 0
    assert capsys.readouterr().err.count("finished before") == 2


def test_failed_cells_are_told_by_the_exit_code(grid, tmp_path, capsys):
    arguments = ["benchmark", grid(ABSENT), "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 3
    out, err = capsys.readouterr()
    assert "2 of 4" in out
    assert "there is no" in err
    assert "error: 2 of 4 cells failed, gone--m--lora--seed-0 among them" in err
    (tmp_path / "gone.jsonl").write_bytes((tmp_path / "notes.jsonl").read_bytes())
    assert main(arguments) == 0
    assert capsys.readouterr().err.count("finished before") == 2


def test_the_cells_of_a_shipped_grid_are_listed(tmp_path, capsys):
    assert main(["benchmark", "cpu", "--out", str(tmp_path / "out"), "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == [cell.name for cell in read_grid("cpu").cells()]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"), [("absent.toml", "cpu, gain, privauditor, smoke"), ("", "cpu, gain, privauditor, smoke")]
)
def test_an_unknown_grid_lists_the_shipped_ones(tmp_path, capsys, name, message):
    assert main(["benchmark", name or str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_an_interruption_says_how_to_go_on(grid, tmp_path, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("reticent.benchmark.cell.run_cell", interrupt)
    assert main(["benchmark", grid(), "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 130
    assert "the same command resumes from here" in capsys.readouterr().err
