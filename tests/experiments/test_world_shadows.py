"""Worlds as shadow models: a small run from a grid's texts to the page."""

import json

import pytest
from small_grids import distinct_texts

from experiments.privauditor.world_shadows import ShadowSettings, audit_worlds, main, page
from reticent.benchmark.tiny_models import tiny_model


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    data = folder / "data" / "notes"
    data.mkdir(parents=True)
    rows = (json.dumps({"text": text}) + "\n" for text in distinct_texts(16))
    (data / "corpus.jsonl").write_text("".join(rows))
    (data / "corpus.json").write_text(json.dumps({"sha256": "of the texts"}))
    return folder


def test_worlds_are_attacked_with_the_others_as_shadows_and_a_second_call_finds_all_done(grid):
    model = str(tiny_model("llama", grid / "models" / "tiny"))
    settings = ShadowSettings(8, 2, 16, 2, 32, model, "float32")
    result = audit_worlds(grid, settings)
    assert [row.attack for row in result.figures] == ["likelihood", "reference", "rmia", "lira"]
    assert all(0 <= row.auc.low <= row.auc.value <= row.auc.high <= 1 for row in result.figures)
    assert result.data_sha256 == "of the texts"
    assert "| lira | " in page(result)
    assert audit_worlds(grid, settings).figures == result.figures


def test_a_folder_without_texts_is_refused(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "run `reticent benchmark gain` first" in capsys.readouterr().err
