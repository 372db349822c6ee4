"""The texts of each size: the published setting's loading code on stand-ins, and parts that have nothing in common."""

import argparse
import json
from dataclasses import replace

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.pac import sources
from experiments.pac.common import experiment_of
from experiments.pac.operating_point import OperatingPoint, read_operating_point, write_operating_point
from experiments.pac.settings import LOCAL, PAPER, SETTINGS, Domain, Size, TextCounts
from reticent.errors import CorpusError, RunDirectoryError
from reticent.models.base import resolve_base_model
from reticent.training.presets import PRESETS, Preset


class Silent:
    def note(self, line): ...
    def begin(self, what, num_tokens): ...
    def advance(self, num_tokens): ...


def experiment(settings, tmp_path, data, monkeypatch, domain="wikipedia"):
    monkeypatch.setattr("experiments.pac.common.SETTINGS", SETTINGS | {settings.size: settings})
    options = argparse.Namespace(
        size=settings.size.value, domain=domain, data=data, work=tmp_path / "work", out=tmp_path / "out", seed=0
    )
    return experiment_of("test", options, "command", Silent())


def articles(count):
    """Rows as WikiText has them: a line each, blank ones between, sections with more equals signs."""
    rows = []
    for number in range(count):
        words = [f"word{number}x{index}" for index in range(300)]
        rows += ["", f" = Article {number} = \n", "", f" {' '.join(words[:150])} \n", " = = Section = = \n"]
        rows += [f" {' '.join(words[150:])} \n", ""]
    return rows


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": rows}), path)


def test_wikitext_lines_become_articles(tmp_path):
    path = tmp_path / "train.parquet"
    write_parquet(path, articles(3))
    found = sources.wikitext_articles(path, 10)
    assert len(found) == 3
    assert found[1].startswith(" = Article 1 = \n word1x0 word1x1 ")
    assert " = = Section = = \n word1x150 " in found[1]
    assert sources.wikitext_articles(path, 2) == found[:2]


def test_the_published_setting_reads_a_local_copy(tmp_path, monkeypatch, tiny_llama_folder):
    write_parquet(tmp_path / "data" / sources.WIKITEXT_FILE, articles(30))
    settings = replace(PAPER, counts=TextCounts(6, 2, 3, 1), model=str(tiny_llama_folder))
    made = experiment(settings, tmp_path, tmp_path / "data", monkeypatch)
    parts = (made.texts.corpus, made.texts.validation, made.texts.test, made.texts.spare)
    assert [len(part) for part in parts] == [6, 2, 3, 1]
    assert len({text for part in parts for text in part}) == 12
    assert all(text.startswith(" = Article ") for part in parts for text in part)
    assert made.base.content_hash == resolve_base_model(str(tiny_llama_folder)).content_hash
    assert made.decoder.num_layers == 3


def test_the_published_setting_asks_the_hub_for_one_file(tmp_path, monkeypatch):
    asked = []

    def download(repository, file, repo_type):
        asked.append((repository, file, repo_type))
        write_parquet(tmp_path / "cached.parquet", articles(12))
        return str(tmp_path / "cached.parquet")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    made = experiment(replace(PAPER, counts=TextCounts(2, 1, 1, 1)), tmp_path, tmp_path / "none", monkeypatch)
    assert len(made.texts.corpus) == 2
    assert asked == [(sources.WIKITEXT_HUB, sources.WIKITEXT_FILE, "dataset")]


def test_without_the_hub_the_message_says_where_a_copy_would_do(tmp_path, monkeypatch):
    made = experiment(PAPER, tmp_path, tmp_path / "none", monkeypatch)
    with pytest.raises(CorpusError, match=r"none/wikitext-103-raw-v1/train"):
        _ = made.texts


def test_local_texts_come_from_the_data_folder_without_near_duplicates(tmp_path, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    texts = [" ".join(f"word{number}x{index}" for index in range(100)) for number in range(12)]
    rows = [{"text": text} for text in (*texts, texts[0] + " more", texts[1] + " more")]
    (data / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = LOCAL.sources[Domain.NIH].model_copy(update={"path": "corpus.jsonl"})
    settings = replace(LOCAL, counts=TextCounts(6, 2, 2, 2), sources={Domain.NIH: source})
    made = experiment(settings, tmp_path, data, monkeypatch, domain="nih")
    drawn = [*made.texts.corpus, *made.texts.validation, *made.texts.test, *made.texts.spare]
    assert sorted(text.removesuffix(" more") for text in drawn) == sorted(texts)


POINT = OperatingPoint(learning_rate=1e-3, epochs=2, rank=4, num_top_layers=6, chosen_on="local wikipedia", rule="best")


def test_scripts_of_the_same_size_train_at_the_chosen_point(tmp_path, monkeypatch):
    write_operating_point(tmp_path / "out", POINT)
    made = experiment(LOCAL, tmp_path, tmp_path, monkeypatch, domain="nih")
    assert (made.lora.rank, made.lora.alpha, made.lora.num_top_layers) == (4, 8.0, 6)
    assert (made.training.learning_rate, made.training.epochs) == (1e-3, 2)
    assert made.training.max_tokens == LOCAL.training.max_tokens
    assert experiment(PAPER, tmp_path, tmp_path, monkeypatch).training == PAPER.training


def test_a_damaged_point_is_named(tmp_path):
    (tmp_path / "operating-point.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"operating-point\.json"):
        read_operating_point(tmp_path, Size.LOCAL)


def test_the_stable_preset_is_what_the_committed_sweep_chose():
    from experiments.pac.common import HERE

    point = read_operating_point(HERE, Size.LOCAL)
    if point is None:
        pytest.skip("no sweep is committed yet")
    stable = PRESETS[Preset.STABLE]
    assert (stable.learning_rate, stable.epochs, stable.rank, stable.num_top_layers) == (
        point.learning_rate, point.epochs, point.rank, point.num_top_layers,
    )  # fmt: skip
