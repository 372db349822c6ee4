import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_grids import distinct_texts

from reticent.benchmark.data import prepare_data
from reticent.benchmark.settings import DataSetChoice, read_grid
from reticent.errors import CorpusError, InvalidValueError
from reticent.text.corpus import read_corpus

PAPER = {dataset.name: dataset for dataset in read_grid("privauditor").datasets}


def write_jsonl(path, rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


def texts_of(prepared):
    return [record.text for record in read_corpus(prepared.corpus).records]


def notes(**changes):
    return DataSetChoice(name="notes", domain="notes", path="notes.jsonl.gz", **changes)


def test_texts_are_drawn_once_and_for_all(tmp_path):
    texts = distinct_texts(30)
    write_jsonl(tmp_path / "notes.jsonl.gz", [{"text": text} for text in texts])
    first = prepare_data(notes(), 10, tmp_path / "out", tmp_path, {})
    drawn = texts_of(first)
    assert len(set(drawn)) == 10
    assert set(drawn) <= set(texts)
    assert drawn != [text for text in texts if text in set(drawn)]  # not in the file's order
    (tmp_path / "notes.jsonl.gz").unlink()
    assert prepare_data(notes(), 10, tmp_path / "out", tmp_path, {}) == first
    with pytest.raises(CorpusError, match="there is no"):
        prepare_data(notes(), 11, tmp_path / "out", tmp_path, {})


def test_damaged_texts_are_drawn_again(tmp_path):
    write_jsonl(tmp_path / "notes.jsonl.gz", [{"text": text} for text in distinct_texts(20)])
    first = prepare_data(notes(), 10, tmp_path / "out", tmp_path, {})
    whole = first.corpus.read_bytes()
    first.corpus.write_bytes(whole[:-10])
    assert prepare_data(notes(), 10, tmp_path / "out", tmp_path, {}) == first
    assert first.corpus.read_bytes() == whole


def test_the_draw_is_uniform_over_a_stream_longer_than_its_pool(tmp_path):
    texts = distinct_texts(400, words=6)
    write_jsonl(tmp_path / "notes.jsonl.gz", [{"text": text} for text in texts])
    drawn = texts_of(prepare_data(notes(), 40, tmp_path / "out", tmp_path, {}))
    # Each half of the stream gives 20 of 40 in expectation, with a standard deviation of 3.
    assert 8 <= sum(texts.index(text) < 200 for text in drawn) <= 32


def test_near_duplicates_and_short_and_blank_texts_are_left_out(tmp_path):
    base = distinct_texts(8, words=40)
    twins = [text + " x" for text in base]
    write_jsonl(tmp_path / "notes.jsonl.gz", [{"text": t} for t in [*base, *twins, "short", "   ", *base]])
    drawn = texts_of(prepare_data(notes(min_characters=20), 8, tmp_path / "out", tmp_path, {}))
    assert sorted(text.removesuffix(" x") for text in drawn) == sorted(base)
    with pytest.raises(CorpusError, match=r"8 different texts of 24 .* needs 9; lower members"):
        prepare_data(notes(min_characters=20), 9, tmp_path / "more", tmp_path, {})


def test_sujet_finance_columns(tmp_path):
    columns = ["Unnamed: 0", "inputs", "answer", "system_prompt", "user_prompt", "dataset", "task_type"]
    with (tmp_path / "sujet_finance.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for number, text in enumerate(distinct_texts(6)):
            writer.writerow([number, "in", f"answer {number}", "Be brief, {name}.", f"{text}\nsecond line", "d", "qa"])
    drawn = texts_of(prepare_data(PAPER["sujet-finance"], 6, tmp_path / "out", tmp_path, {}))
    number = next(n for n, text in enumerate(distinct_texts(6)) if text in drawn[0])
    assert drawn[0] == f"Be brief, {{name}}.\n{distinct_texts(6)[number]}\nsecond line\nanswer {number}"


def test_corporate_climate_columns(tmp_path):
    rows = [{"query": "ghg_emission", "input": text, "stance": "supporting"} for text in distinct_texts(5)]
    write_jsonl(tmp_path / "corporate_climate.jsonl", rows)
    drawn = texts_of(prepare_data(PAPER["corporate-climate"], 5, tmp_path / "out", tmp_path, {}))
    wanted = [f"Stance on ghg_emission\nStatement: {row['input']}\nStance: supporting" for row in rows]
    assert sorted(drawn) == sorted(wanted)


def test_text_to_sql_columns(tmp_path):
    prompts = distinct_texts(5)
    columns = {
        "id": list(range(5)),
        "sql_prompt": prompts,
        "sql_context": ["c"] * 5,
        "sql": ["SELECT 1", None] * 2 + [""],
    }
    pq.write_table(pa.table(columns), tmp_path / "text_to_sql.parquet")
    drawn = texts_of(prepare_data(PAPER["text-to-sql"], 5, tmp_path / "out", tmp_path, {}))
    assert sorted(drawn) == sorted(f"{p}\n{s or ''}" for p, s in zip(prompts, columns["sql"], strict=True))


def test_the_hub_is_asked_for_the_files_when_they_are_not_here(tmp_path, monkeypatch):
    shard = tmp_path / "snapshot" / "data"
    shard.mkdir(parents=True)
    texts = distinct_texts(6)
    for number, part in enumerate((texts[:3], texts[3:])):
        pq.write_table(
            pa.table({"sql_prompt": part, "sql": ["SELECT 1"] * 3}), shard / f"synthetic_train_{number}.snappy.parquet"
        )
    asked = []

    def snapshot_download(name, **kwargs):
        asked.append((name, kwargs))
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    drawn = texts_of(prepare_data(PAPER["text-to-sql"], 6, tmp_path / "out", tmp_path, {}))
    assert sorted(text.split("\n")[0] for text in drawn) == sorted(texts)
    assert asked == [
        ("gretelai/synthetic_text_to_sql", {"repo_type": "dataset", "allow_patterns": ["*train*.parquet"]})
    ]


def test_what_is_not_to_be_had_is_named_with_the_remedy(tmp_path, monkeypatch):
    def offline(name, **kwargs):
        raise OSError("offline mode\nmore")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(CorpusError, match=r"'text-to-sql'.*offline mode.*put text_to_sql.parquet under --data"):
        prepare_data(PAPER["text-to-sql"], 5, tmp_path / "out", None, {})
    with pytest.raises(CorpusError, match=r"corporate_climate.jsonl \(no --data was given\)"):
        prepare_data(PAPER["corporate-climate"], 5, tmp_path / "out", None, {})
    write_jsonl(tmp_path / "notes.jsonl.gz", [{"body": "x"}])
    with pytest.raises(CorpusError, match="no key 'text'"):
        prepare_data(notes(), 5, tmp_path / "out", tmp_path, {})
    made = DataSetChoice(name="m", domain="d", made="poems")
    with pytest.raises(InvalidValueError, match=r"no maker 'poems'; there are: clinic-letters"):
        prepare_data(made, 2, tmp_path / "out", None, {"clinic-letters": distinct_texts})
    assert not (tmp_path / "out").exists()


def test_made_texts_come_from_their_maker(tmp_path):
    made = DataSetChoice(name="m", domain="d", made="letters")
    drawn = texts_of(prepare_data(made, 3, tmp_path / "out", None, {"letters": distinct_texts}))
    assert len(drawn) == 3
    assert set(drawn) <= set(distinct_texts(12))
