import pytest
from small_grids import TOML, small_grid

from reticent.auditing.attacks.registry import AttackName
from reticent.benchmark.settings import columns_of, list_shipped_grids, parse_grid, read_grid
from reticent.errors import InvalidValueError
from reticent.training.settings import Technique


def test_a_grid_is_the_product_of_its_parts():
    grid = small_grid("seeds = [0, 7]\n" + TOML)
    cells = list(grid.cells())
    assert [(c.model.name, str(c.technique.technique), c.seed) for c in cells] == [
        ("a", "lora", 0), ("a", "lora", 7), ("a", "full", 0), ("a", "full", 7),
        ("b", "lora", 0), ("b", "lora", 7), ("b", "full", 0), ("b", "full", 7),
    ]  # fmt: skip
    assert len({cell.name for cell in cells}) == 8
    assert cells[0].name == "notes--a--lora--seed-0"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("members = 4", "mebmers = 4", ("members is missing; add it", "mebmers is not a key")),
        ("members = 4", "members = 1", ("members: input should be greater than or equal to 2, found 1",)),
        ("members = 4", 'members = "many"', ("members", "found 'many'")),
        ('technique = "lora"', 'technique = "lore"', ("techniques.0.technique", "'lora'", "'icl'")),
        ('technique = "lora"', 'technique = "icl"', ("techniques.0", "demonstrations belongs to icl")),
        ('technique = "lora"', 'technique = "lora"\nsettings = { rnk = 2 }', ("techniques.0.settings.rnk is",)),
        ('technique = "full"', 'technique = "lora"', ("techniques has 'lora' more than once",)),
        ('"reference"]', '"refrence"]', ("attacks.names.1", "'refrence'", "ez-mia", "recall")),
        ('"reference"]', '"reference"]\nlimits = { recall = 5 }', ("attacks.limits names 'recall'",)),
        ('"reference"]', '"reference"]\nlimits = { reference = 1 }', ("attacks.limits.reference",)),
        ('family = "t5"', 'family = "bert"', ("models.1.family", "'gptj'", "found 'bert'")),
        ("tiny = true\n[[datasets]]", "[[datasets]]", ("models.1: give either source",)),
        ('path = "notes.jsonl"', "", ("datasets.0: give path",)),
        ('path = "notes.jsonl"', 'path = "n.csv"\ntemplate = "no column"', ("datasets.0.template: name at least one",)),
        ('name = "a"', 'name = "../a"', ("models.0.name", "pattern")),
        ('name = "small"', "name = ", ("not TOML", "line 2")),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_key(old, new, parts):
    assert old in TOML
    with pytest.raises(InvalidValueError) as caught:
        parse_grid(TOML.replace(old, new, 1), "small.toml")
    for part in ("grid 'small.toml'", *parts):
        assert part in str(caught.value)


def test_a_missing_grid_lists_the_shipped_ones(tmp_path):
    with pytest.raises(InvalidValueError, match=r"No such file.*cpu, gain, privauditor, smoke"):
        read_grid(str(tmp_path / "absent.toml"))
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(InvalidValueError, match="not UTF-8"):
        read_grid(str(tmp_path / "latin.toml"))


def test_settings_of_a_cell_change_with_all_that_determines_its_result_and_nothing_else():
    grid = small_grid()
    cell, other = list(grid.cells())[:2]
    assert grid.cell_settings(cell) != grid.cell_settings(other)
    renamed = small_grid(TOML.replace('name = "small"', 'name = "larger"\nseeds = [0, 1]\nkeep_models = false'))
    assert renamed.cell_settings(next(renamed.cells())) == grid.cell_settings(cell)
    for old, new in (("max_tokens = 16", "max_tokens = 17"), ('"reference"]', '"reference"]\nneighbours = 2')):
        changed = small_grid(TOML.replace(old, new))
        assert changed.cell_settings(next(changed.cells())) != grid.cell_settings(cell)


@pytest.mark.parametrize(
    ("template", "columns"),
    [
        ("{text}", ("text",)),
        ("{a}: {b} {a}", ("a", "b")),
        ("{{a}} {b}", ("b",)),
        ("{}", ()),
        ("{a", ()),
        ("a}", ()),
        ("none", ()),
    ],
)
def test_columns_of_a_template(template, columns):
    assert columns_of(template) == columns


def test_the_shipped_grids_are_what_they_say():
    assert list_shipped_grids() == ("cpu", "gain", "privauditor", "smoke")
    smoke, cpu, paper = (read_grid(name) for name in ("smoke", "cpu", "privauditor"))
    for grid in (smoke, cpu, paper):
        assert {choice.technique for choice in grid.techniques} == set(Technique)
    five = {"t5", "llama", "opt", "bloom", "gptj"}
    assert {model.family for model in smoke.models} == {model.family for model in paper.models} == five
    assert all(model.tiny for model in smoke.models)
    assert len(list(cpu.cells())) == 30
    assert [(d.name, d.columns) for d in paper.datasets] == [
        ("sujet-finance", ("system_prompt", "user_prompt", "answer")),
        ("corporate-climate", ("query", "input", "stance")),
        ("text-to-sql", ("sql_prompt", "sql")),
    ]
    # A rate at 1 % needs 3 / 0.01 non-members, one at 0.1 % ten times as many.
    assert cpu.nonmembers >= 300
    assert paper.nonmembers >= 3000
    assert cpu.attacks.limits[AttackName.GRADIENT_NORM] < cpu.members


def test_a_technique_for_several_numbers_of_epochs_is_a_cell_for_each_and_another_with_an_epsilon():
    more = 'technique = "lora"\nepochs = [1, 4]\n[[techniques]]\ntechnique = "lora"\ndp_epsilon = 8.0'
    grid = small_grid(TOML.replace('technique = "lora"', more, 1))
    names = {cell.name: cell.variant for cell in grid.cells() if cell.model.name == "a"}
    assert names == {
        "notes--a--lora--epochs-1--seed-0": "lora, 1 epoch",
        "notes--a--lora--epochs-4--seed-0": "lora, 4 epochs",
        "notes--a--lora--dp-8--seed-0": "lora, ε = 8",
        "notes--a--full--seed-0": "full",
    }
    with pytest.raises(InvalidValueError, match="epochs has a number more than once"):
        small_grid(TOML.replace('technique = "lora"', 'technique = "lora"\nepochs = [2, 2]', 1))


def test_canaries_need_a_pair_for_every_repetition():
    with pytest.raises(InvalidValueError, match="3 numbers of repetitions need as many pairs"):
        small_grid(TOML + "[canaries]\ncount = 2\nrepetitions = [1, 2, 3]\n")


def test_the_grid_of_gain_against_leakage_crosses_what_it_promises():
    grid = read_grid("gain")
    cells = list(grid.cells())
    plain = {(cell.technique.label, cell.technique.epochs, cell.seed) for cell in cells}
    crossed = {
        (name, epochs, seed)
        for name in ("full", "lora", "adapter-h", "prefix")
        for epochs in (1, 2, 4, 8)
        for seed in (0, 1, 2)
    }
    assert plain - crossed == {("lora, ε = 8", 8, seed) for seed in (0, 1, 2)}
    assert crossed < plain
    assert grid.canaries is not None
    assert grid.canaries.repetitions == (1, 4, 16, 64)
    measured = [choice for choice in grid.techniques if AttackName.GRADIENT_NORM in choice.attacks]
    assert len(measured) == 2
    assert 2 * grid.attacks.limits[AttackName.GRADIENT_NORM] == 300
