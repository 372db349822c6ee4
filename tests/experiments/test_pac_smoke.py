"""Every script of the paper's evaluation from end to end in its small setting."""

import importlib
import json

import pytest

import experiments.__main__ as all_scripts
from experiments.pac import summary
from experiments.pac.summary import EXPERIMENTS

SETTING_FIELDS = ("command", "revision", "seed", "created", "setting", "machine")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """What scripts share: the first one that runs makes it, as on a user's machine."""
    return tmp_path_factory.mktemp("experiments")


def run(name, work, *options):
    module = importlib.import_module(f"experiments.pac.{name}")
    return module.main(["--size", "smoke", "--work", str(work), *options])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_script_writes_its_result_with_what_repeats_it(name, work):
    assert run(name, work) == 0
    out = work / "smoke" / "results"
    result = json.loads((out / f"{name}-wikipedia.json").read_text())
    assert all(result[field] is not None for field in SETTING_FIELDS if field != "revision")
    assert result["name"] == name
    assert f"experiments.pac.{name} --size smoke" in result["command"]
    assert result["results"]
    page = (out / f"{name}-wikipedia.md").read_text()
    assert result["command"] in page.replace("\\", "")
    for figure in out.glob(f"{name}-wikipedia*.svg"):
        assert f"]({figure.name})" in page
        assert figure.read_text().startswith('<svg xmlns="http://www.w3.org/2000/svg"')


def test_no_private_text_is_in_a_result(work):
    assert run("stability", work) == 0
    texts = [json.loads(line)["text"] for line in (work / "smoke/wikipedia/texts/corpus.jsonl").open()]
    openings = {text[:40] for text in texts} | {text[-40:] for text in texts}
    for path in (work / "smoke" / "results").iterdir():
        written = path.read_text()
        assert not any(opening in written for opening in openings), path.name


def test_a_second_run_reuses_the_worlds_and_repeats_the_numbers(work):
    assert run("stability", work) == 0
    path = work / "smoke" / "results" / "stability-wikipedia.json"
    first, runs = json.loads(path.read_text()), sorted((work / "smoke/wikipedia/runs").iterdir())
    assert run("stability", work) == 0
    assert json.loads(path.read_text())["results"] == first["results"]
    assert sorted((work / "smoke/wikipedia/runs").iterdir()) == runs


def test_the_page_puts_the_paper_beside_what_was_found(work, tmp_path):
    assert run("stability", work) == 0
    results = work / "smoke" / "results"
    assert summary.main(["--results", str(results), "--out", str(tmp_path / "README.md")]) == 0
    page = (tmp_path / "README.md").read_text()
    found = json.loads((results / "stability-wikipedia.json").read_text())["results"]["stability"]["rows"]
    mass = next(row["mass"]["value"] for row in found if row["num_candidates"] == 200)
    row = next(line for line in page.splitlines() if line.startswith("| stability | probability inside the top 200 "))
    paper, columns = row.split(" | ")[2], row.split(" | ")[3:]
    assert paper == "88.5 %"
    assert any(column.startswith(f"{100 * mass:.1f} %") for column in columns)
    assert "stability-wikipedia.json)" in page


def test_a_problem_is_one_line_and_exit_code_2(capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run("stability", tmp_path, "--out", str(blocked)) == 2
    assert "error: " in capsys.readouterr().err


def test_all_scripts_stop_at_the_first_that_fails(monkeypatch):
    asked = []

    class Script:
        def __init__(self, name):
            self.name = name

        def main(self, arguments):
            asked.append((self.name.rpartition(".")[2], arguments))
            return 2 * (len(asked) == 2)

    monkeypatch.setattr(importlib, "import_module", Script)
    assert all_scripts.main(["--only", "cost", "utility", "leakage", "--seed", "3"]) == 2
    assert asked == [(name, ["--size", "smoke", "--seed", "3"]) for name in ("cost", "utility")]
