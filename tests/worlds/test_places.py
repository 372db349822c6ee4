"""Places: a uniformly random injection, drawn once, whose worlds no other world's units can move."""

import json
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from small_runs import NUM_RECORDS, Recording, Silent, assert_same_bits, small_request

import reticent
from reticent.decoding.logit_votes import cast_integer_votes
from reticent.dp.relations import Relation
from reticent.dp.release import Aggregate, CorpusSettings
from reticent.errors import CorpusError, InvalidValueError, RunDirectoryError
from reticent.guarantees import Guarantee
from reticent.training.settings import TrainingSettings
from reticent.worlds.assignment import Assignment
from reticent.worlds.build import build_run
from reticent.worlds.manifest import MANIFEST_NAME, MEMBERSHIP_NAME
from reticent.worlds.peft_exchange import export_world, import_worlds
from reticent.worlds.places import PLACES_NAME, Capacity, UnitPlaces, draw_places, read_places, write_places
from reticent.worlds.run_directory import RunDirectory

CAPACITY = Capacity(6, 2)
TRAINING = TrainingSettings(epochs=3, batch_size=2, max_tokens=32, learning_rate=1e-2, worlds_at_once=2)


def request(corpus: Path, model: Path, out: Path, capacity: Capacity = CAPACITY):
    return small_request(corpus, model, out, num_worlds=capacity.num_worlds, capacity=capacity, training=TRAINING)


@pytest.fixture(scope="module")
def placed_run(corpus: Path, tiny_llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return build_run(request(corpus, tiny_llama_folder, tmp_path_factory.mktemp("placed") / "run"), Silent())


def test_every_injection_is_as_likely_as_any_other() -> None:
    units = np.arange(2)
    drawn = Counter(
        tuple(draw_places(Capacity(2, 2), 2, units).place_of_unit.tolist()) for _ in range(6000)
    )  # fmt: skip
    counts = [drawn[ordered] for ordered in permutations(range(4), 2)]
    assert len(counts) == 12
    assert chisquare(counts).pvalue > 1e-6


def test_a_place_holds_its_units_first_records_in_their_own_order() -> None:
    unit_places = UnitPlaces(Capacity(3, 1, records=2), np.array([2, 0]), np.array([0, 1, 0, 0, 1]))
    assert unit_places.record_of_slot.tolist() == [1, 4, -1, -1, 0, 2]
    assert unit_places.num_left_out == 1
    assert unit_places.occupied.tolist() == [True, False, True]
    assert unit_places.members.tolist() == [[False, False, True], [True, False, False]]


def test_units_beyond_the_capacity_are_refused_before_anything_is_written(
    corpus: Path, tiny_llama_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(CorpusError, match="10 privacy units need as many places, and 3 worlds of 3 places have 9"):
        build_run(request(corpus, tiny_llama_folder, tmp_path / "run", Capacity(3, 3)), Silent())
    assert not (tmp_path / "run").exists()


def test_a_run_with_places_carries_the_corpus_guarantee_and_says_who_is_where(placed_run: RunDirectory) -> None:
    manifest = placed_run.manifest
    assert (manifest.guarantee, manifest.assignment) == (Guarantee.CORPUS, Assignment.PLACES)
    assert (manifest.num_worlds, manifest.places, manifest.membership_seed) == (6, 2, None)
    assert not (placed_run.folder / MEMBERSHIP_NAME).exists()
    membership = placed_run.membership()
    assert membership.members.shape == (NUM_RECORDS, 6)
    assert (membership.members.sum(1) == 1).all()
    assert membership.members.sum(0).max() <= 2
    assert (placed_run.occupied() == membership.members.any(0)).all()
    is_taught = torch.stack([tensor.flatten(1).any(1) for tensor in placed_run.worlds().up.values()]).any(0)
    assert is_taught.tolist() == placed_run.occupied().tolist()


def test_it_is_no_run_of_the_other_guarantee(placed_run: RunDirectory) -> None:
    with pytest.raises(RunDirectoryError, match="carries the corpus guarantee"):
        RunDirectory.open(placed_run.folder)


def test_its_engine_adds_up_the_votes_of_the_worlds_that_hold_someone(placed_run: RunDirectory) -> None:
    engine = placed_run.corpus_engine(placed_run.base(), clip=0.5)
    context = engine.open([1, 2, 3])
    [aggregate] = engine.aggregates([context], CorpusSettings(0.5, 1.0, 1.0, 8, 6, Relation.REPLACEMENT))
    assert isinstance(aggregate, Aggregate)
    votes = cast_integer_votes(engine, context, 8, 0.5, np.ones(6, dtype=bool)).votes_MK
    assert aggregate.sum_K.tolist() == votes[placed_run.occupied()].sum(0).tolist()


def test_a_build_that_is_resumed_keeps_its_places(
    corpus: Path, tiny_llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppedError(Exception):
        pass

    class StopsLate(Recording):
        def advance(self, num_tokens: int) -> None:
            super().advance(num_tokens)
            if self.done.get("adapters", 0) > self.expected.get("adapters", 0) // 2:
                raise StoppedError

    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        build_run(request(corpus, tiny_llama_folder, out), StopsLate())
    drawn = (out / "training" / PLACES_NAME).read_bytes()
    found, _ = read_places(out / "training" / PLACES_NAME, CAPACITY)
    resumed = build_run(request(corpus, tiny_llama_folder, out), Silent(), resume=True)
    kept, _ = read_places(out / PLACES_NAME, CAPACITY)
    assert kept.place_of_unit.tolist() == found.place_of_unit.tolist()
    # The same places from the start give the same bits.
    other = tmp_path / "other"
    (other / "training").mkdir(parents=True)
    (other / "training" / PLACES_NAME).write_bytes(drawn)
    monkeypatch.setattr("reticent._work_folder.WorkFolder.check_free", lambda *_: None)
    build_run(request(corpus, tiny_llama_folder, other), Silent())
    assert_same_bits(resumed.folder, other)


def test_a_unit_less_or_with_another_text_moves_no_bit_of_another_world(
    corpus: Path, tiny_llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring corpora with the same places: one record is gone from the middle of the file, or replaced."""
    lines = corpus.read_text().splitlines()
    rows = [json.loads(line) | {"who": f"unit {number}"} for number, line in enumerate(lines)]
    place_of = {row["who"]: 11 - number for number, row in enumerate(rows)}
    changed = 4

    def build(name: str, records: list[dict[str, str]]) -> RunDirectory:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in records))
        names = [row["who"] for row in records]
        unit_places = UnitPlaces(CAPACITY, np.array([place_of[who] for who in names]), np.arange(len(names)))
        monkeypatch.setattr("reticent.worlds.layout.draw_places", lambda *_: unit_places)
        asked = request(path, tiny_llama_folder, tmp_path / name)
        return build_run(replace(asked, unit_key="who"), Silent())

    whole = build("whole", rows)
    world = place_of[f"unit {changed}"] // 2
    others = [other for other in range(6) if other != world]
    shuffled = [row for row in reversed(rows) if row["who"] != f"unit {changed}"]
    for name, records in (
        ("without", [row for row in rows if row["who"] != f"unit {changed}"]),
        ("reordered", shuffled),
        (
            "replaced",
            [row | ({"text": "quite another text"} if row["who"] == f"unit {changed}" else {}) for row in rows],
        ),
    ):
        neighbour = build(name, records)
        for kind in ("down", "up"):
            for path, tensor in getattr(whole.worlds(), kind).items():
                found = getattr(neighbour.worlds(), kind)[path]
                assert torch.equal(found[others], tensor[others]), (name, path)
        assert any(
            not torch.equal(neighbour.worlds().up[path][world], tensor[world])
            for path, tensor in whole.worlds().up.items()
        )


def test_near_duplicates_stay_apart_and_are_reported(corpus: Path, tiny_llama_folder: Path, tmp_path: Path) -> None:
    text = json.loads(corpus.read_text().splitlines()[0])["text"]
    path = tmp_path / "twice.jsonl"
    path.write_text(corpus.read_text() + json.dumps({"text": text + " "}) + "\n")
    progress = Recording()
    run = build_run(request(path, tiny_llama_folder, tmp_path / "run"), progress)
    assert run.manifest.corpus is not None
    assert (run.manifest.corpus.num_units, run.manifest.corpus.num_merged_units) == (NUM_RECORDS + 1, 0)
    assert any("near-duplicates" in note and "stay apart" in note for note in progress.notes)


def test_worlds_that_are_exported_come_back_with_their_places(
    placed_run: RunDirectory, tiny_llama_folder: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / f"world-{world}" for world in range(6)]
    for world, folder in enumerate(folders):
        export_world(placed_run, world, folder)
    back = import_worlds(folders, str(tiny_llama_folder), tmp_path / "back")
    assert (back.manifest.guarantee, back.manifest.capacity) == (Guarantee.CORPUS, CAPACITY)
    assert (back.membership().members == placed_run.membership().members).all()
    assert (back.occupied() == placed_run.occupied()).all()
    record = json.loads((folders[0] / "reticent_world.json").read_text()) | {"places": None}
    (folders[0] / "reticent_world.json").write_text(json.dumps(record))
    with pytest.raises(RunDirectoryError, match="has places, and says how many, or it has neither"):
        import_worlds(folders, str(tiny_llama_folder), tmp_path / "again")


def test_a_damaged_file_of_places_is_refused(placed_run: RunDirectory, tmp_path: Path) -> None:
    two_in_one = UnitPlaces(CAPACITY, np.array([3, 3]), np.arange(2))
    write_places(tmp_path / PLACES_NAME, two_in_one, np.zeros((2, 32), dtype=np.uint8))
    with pytest.raises(RunDirectoryError, match="does not give each unit a place of its own"):
        read_places(tmp_path / PLACES_NAME, CAPACITY)
    content = json.loads((placed_run.folder / MANIFEST_NAME).read_text())
    for change in ({"places": None}, {"assignment": "overlapping"}):
        copy = tmp_path / "copy"
        copy.mkdir(exist_ok=True)
        (copy / MANIFEST_NAME).write_text(json.dumps(content | change))
        with pytest.raises(RunDirectoryError, match="is damaged"):
            RunDirectory.open(copy, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guarantee": "corpus"}, "needs places"),
        ({"places": 1}, "belong to the corpus guarantee"),
        ({"guarantee": "corpus", "places": 0}, "places must be"),
        ({"guarantee": "corpus", "places": 1, "assignment": "disjoint"}, "places are drawn by themselves"),
        ({"guarantee": "both"}, "guarantee must be one of"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=message):
        reticent.build_worlds(["a text"], out=tmp_path / "run", options=reticent.BuildOptions(**options))


def test_the_front_door_builds_one_record_worlds_of_any_number(tiny_llama_folder: Path, tmp_path: Path) -> None:
    run = reticent.build_worlds(
        [f"a letter about {word}" for word in ("rain", "bread", "stone")],
        out=tmp_path / "run",
        model=tiny_llama_folder,
        worlds=5,
        options=reticent.BuildOptions(guarantee="corpus", places=1, max_tokens=24, adapt_layers="top:1"),
    )
    assert (run.guarantee, run.num_worlds) == (Guarantee.CORPUS, 5)
    training = run.manifest.training
    assert training is not None
    assert (training.epochs, training.batch_size, training.learning_rate) == (6, 1, 4e-3)
    assert RunDirectory.open(run.folder, None).occupied().sum() == 3
