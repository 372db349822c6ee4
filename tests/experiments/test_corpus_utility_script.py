"""The corpus guarantee's utility script in its smallest size: two ways to cut a corpus, and what each token costs."""

import json

from experiments.corpus.utility import main


def test_few_worlds_of_several_records_beside_many_of_one(tmp_path, capsys):
    options = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert main(options) == 0
    found = json.loads((tmp_path / "out" / "utility-clinic-letters.json").read_text())
    assert found["command"].startswith("python -m experiments.corpus.utility")
    several, one = found["results"]["4 worlds"], found["results"]["12 worlds"]
    assert (several["settings"]["relation"], one["settings"]["relation"]) == ("replacement", "add-remove")
    tokens = {each["run"]["num_worlds"]: each["utility"]["rows"][-1]["tokens"]["8"] for each in (several, one)}
    # Tokens go with the square of the number of worlds, and add-remove costs a quarter.
    assert 36 * tokens[4] <= tokens[12] < 36 * (tokens[4] + 1)
    [page] = (tmp_path / "out").glob("*.md")
    assert "12 worlds of 1" in page.read_text()
    built = sorted((tmp_path / "work" / "smoke" / "clinic-letters").glob("places-*/manifest.json"))
    stamps = [path.stat().st_mtime_ns for path in built]
    assert main(options) == 0
    assert [path.stat().st_mtime_ns for path in built] == stamps


def test_a_missing_corpus_is_one_line(tmp_path, capsys):
    options = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"), "--domain", "nih"]
    assert main([*options, "--data", str(tmp_path)]) == 2
    assert "there is no" in capsys.readouterr().err
