"""Exchange with PEFT: what PEFT loads of ours scores as our engine does, and the other way round."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, PrefixTuningConfig, TaskType, get_peft_model
from small_runs import NUM_WORLDS, Silent, small_request
from tiny_models import save_tiny_model
from transformers import AutoModelForCausalLM

from reticent.errors import InvalidValueError, ModelError, OutputExistsError, RunDirectoryError
from reticent.training.settings import LoraSettings
from reticent.worlds.assignment import Assignment, membership_matrix
from reticent.worlds.build import build_run
from reticent.worlds.peft_exchange import export_world, import_worlds
from reticent.worlds.run_directory import RunDirectory

TOKENS = [11, 200, 3, 77, 42, 9, 140]


def peft_logits(base: Path, adapter: Path) -> NDArray[np.float32]:
    """PEFT's next-token logits after `TOKENS`."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    with torch.no_grad():
        logits: NDArray[np.float32] = model(input_ids=torch.tensor([TOKENS])).logits[0, -1].numpy()
    return logits


def engine_logits(run: RunDirectory) -> NDArray[np.float32]:
    engine = run.engine(run.base())
    return engine.world_logits(engine.open(TOKENS), np.arange(engine.vocab_size))


@pytest.fixture(scope="module", params=["llama", "gpt2", "gptj"])
def family_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> RunDirectory:
    """A run over a base of each kind, adapted in all linear modules of its two upper blocks."""
    folder = tmp_path_factory.mktemp(request.param)
    save_tiny_model(folder / "base", request.param)
    lora = LoraSettings(rank=3, alpha=4.5, target_modules=("all-linear",), num_top_layers=2)
    return build_run(small_request(corpus, folder / "base", folder / "run", lora=lora), Silent())


def test_an_exported_world_scores_in_peft_as_in_the_engine(family_run: RunDirectory, tmp_path: Path) -> None:
    base = family_run.base().folder
    rows = engine_logits(family_run)
    public = AutoModelForCausalLM.from_pretrained(base)(input_ids=torch.tensor([TOKENS])).logits[0, -1]
    for world in range(NUM_WORLDS):
        export_world(family_run, world, tmp_path / str(world))
        exported = peft_logits(base, tmp_path / str(world))
        np.testing.assert_allclose(exported, rows[world], rtol=1e-5, atol=2e-5)
        assert np.abs(exported - public.detach().numpy()).max() > 1e-2
    config = json.loads((tmp_path / "0" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (3, 4.5, str(base))


def test_the_adapter_on_all_records_is_exported_too(family_run: RunDirectory, tmp_path: Path) -> None:
    export_world(family_run, None, tmp_path / "full")
    tensors = safetensors.torch.load_file(tmp_path / "full" / "adapter_model.safetensors")
    full = family_run.full()
    assert len(tensors) == 2 * len(full.down)
    for path in full.down:
        assert torch.equal(tensors[f"base_model.model.{path}.lora_A.weight"], full.down[path][0])
        assert torch.equal(tensors[f"base_model.model.{path}.lora_B.weight"], full.up[path][0])
    assert peft_logits(family_run.base().folder, tmp_path / "full").shape == (258,)


def test_a_configuration_that_says_nothing_new_is_imported_whatever_its_version(
    made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    folders = [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in made_by_peft[:2]]
    settings = LoraConfig(task_type=TaskType.CAUSAL_LM).to_dict() | {"r": 3, "lora_alpha": 7, "target_modules": ["x"]}
    for folder in folders:
        (folder / "adapter_config.json").write_text(json.dumps(settings | {"of_tomorrow": None, "off": False, "e": {}}))
    run = import_worlds(folders, str(tiny_llama_folder), tmp_path / "run")
    assert run.worlds().rank == 3


@pytest.mark.parametrize("named", ["another-model", "the same, moved", "the base", None])
def test_another_base_than_the_adapters_own_is_told_with_both_names(
    named: str | None, made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    folders = [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in made_by_peft[:2]]
    moved = shutil.copytree(tiny_llama_folder, tmp_path / "moved")
    name = {"the same, moved": str(moved), "the base": str(tiny_llama_folder)}.get(named or "", named)
    edit_config(folders[1], base_model_name_or_path=name)
    notes: list[str] = []
    import_worlds(folders, str(tiny_llama_folder), tmp_path / "run", note=notes.append)
    if named != "another-model":
        assert notes == []
        return
    (note,) = notes
    assert note.startswith("1 of 2 adapters say that they were made for 'another-model'")
    assert repr(str(tiny_llama_folder)) in note


def test_a_run_that_says_nothing_of_membership_is_unknown_and_nothing_is_released_from_it(
    made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    run = import_worlds(made_by_peft, str(tiny_llama_folder), tmp_path / "run")
    assert run.manifest.assignment is Assignment.UNKNOWN
    with pytest.raises(RunDirectoryError, match=r"no prior is known and no bound .* with --membership"):
        RunDirectory.open(tmp_path / "run")
    # What an earlier version wrote is read for what it is.
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"assignment": "overlapping"}))
    assert RunDirectory.open(tmp_path / "run", None).manifest.assignment is Assignment.UNKNOWN
    export_world(run, 0, tmp_path / "out")
    assert not (tmp_path / "out" / "reticent_world.json").exists()


def test_exported_worlds_come_back_bit_for_bit(family_run: RunDirectory, tmp_path: Path) -> None:
    folders = [tmp_path / str(world) for world in range(NUM_WORLDS)]
    for world, folder in enumerate(folders):
        export_world(family_run, world, folder)
    export_world(family_run, None, tmp_path / "full")
    base = family_run.base()
    again = import_worlds(folders, base.name, tmp_path / "again", full=tmp_path / "full")
    for ours, theirs in ((again.worlds(), family_run.worlds()), (again.full(), family_run.full())):
        assert ours.down.keys() == theirs.down.keys()
        assert ours.alpha == theirs.alpha
        for path in theirs.down:
            assert torch.equal(ours.down[path], theirs.down[path])
            assert torch.equal(ours.up[path], theirs.up[path])
    np.testing.assert_array_equal(engine_logits(again), engine_logits(family_run))


def test_no_world_outside_the_run_is_exported(finished_run: Path, tmp_path: Path) -> None:
    run = RunDirectory.open(finished_run)
    for world in (-1, NUM_WORLDS):
        with pytest.raises(InvalidValueError, match=f"world must be an integer between 0 and {NUM_WORLDS - 1}"):
            export_world(run, world, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputExistsError, match="choose another folder"):
        export_world(run, 0, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def make_peft_folders(base: Path, out: Path, count: int, **options: Any) -> list[Path]:
    """Adapters made by PEFT itself, their B matrices random too."""
    settings: dict[str, Any] = {
        "r": 3,
        "lora_alpha": 7,
        "target_modules": ["q_proj", "down_proj"],
        "task_type": TaskType.CAUSAL_LM,
    }
    folders = []
    for world in range(count):
        torch.manual_seed(world)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**(settings | options)))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.3)
        folders.append(out / f"peft-{world}")
        model.save_pretrained(folders[-1])
    return folders


@pytest.fixture(scope="module")
def made_by_peft(tmp_path_factory: pytest.TempPathFactory, tiny_llama_folder: Path) -> list[Path]:
    return make_peft_folders(tiny_llama_folder, tmp_path_factory.mktemp("peft"), 4)


def test_folders_made_by_peft_are_imported_bit_for_bit_and_score_alike(
    made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    run = import_worlds(made_by_peft, str(tiny_llama_folder), tmp_path / "run")
    worlds = run.worlds()
    assert (run.manifest.num_worlds, worlds.rank, worlds.alpha) == (4, 3, 7.0)
    assert run.manifest.lora.target_modules == ("down_proj", "q_proj")
    for world, folder in enumerate(made_by_peft):
        tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
        assert len(tensors) == 2 * len(worlds.down)
        for path in worlds.down:
            assert torch.equal(worlds.down[path][world], tensors[f"base_model.model.{path}.lora_A.weight"])
            assert torch.equal(worlds.up[path][world], tensors[f"base_model.model.{path}.lora_B.weight"])
    expected = np.stack([peft_logits(tiny_llama_folder, folder) for folder in made_by_peft])
    np.testing.assert_allclose(engine_logits(run), expected, rtol=1e-4, atol=2e-5)
    assert np.abs(expected[0] - expected[1]).max() > 0.1


def test_adapters_on_some_layers_are_imported(tiny_llama_folder: Path, tmp_path: Path) -> None:
    folders = make_peft_folders(tiny_llama_folder, tmp_path, 2, layers_to_transform=[1], bias="none")
    run = import_worlds(folders, str(tiny_llama_folder), tmp_path / "run")
    assert sorted(run.worlds().down) == ["model.layers.1.mlp.down_proj", "model.layers.1.self_attn.q_proj"]


def test_an_import_says_what_it_does_not_know(made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path):
    run = import_worlds(made_by_peft[:2], str(tiny_llama_folder), tmp_path / "run")
    assert run.manifest.training is None
    assert run.manifest.corpus is None
    with pytest.raises(RunDirectoryError, match="imported without"):
        run.membership()
    with pytest.raises(RunDirectoryError, match="no adapter on all records"):
        run.full()


def test_a_membership_is_imported_with_the_worlds(
    made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    members = membership_matrix(6, 4, 0)
    np.savez(tmp_path / "members.npz", members=members)
    run = import_worlds(made_by_peft, str(tiny_llama_folder), tmp_path / "run", membership=tmp_path / "members.npz")
    np.testing.assert_array_equal(run.membership().members, members)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: None,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK\x03\x04 no more than a beginning"),
        lambda path: path.write_bytes(b"text"),
        lambda path: np.savez(path, other=np.ones((4, 4))),
        lambda path: np.savez(path, members=np.ones((4, 4), dtype=bool)),
        lambda path: np.savez(path, members=membership_matrix(6, 6, 0)),
        lambda path: np.savez(path, members=membership_matrix(6, 4, 0)[0]),
        lambda path: np.savez(path, members=np.array([{}, {}], dtype=object)),
        lambda path: np.savez(path, members=np.zeros((0, 4), dtype=bool)),
    ],
)
def test_a_membership_that_is_none_is_refused(
    write: Callable[[Path], None], made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    write(tmp_path / "members.npz")
    with pytest.raises(InvalidValueError, match=r"membership .*members\.npz"):
        import_worlds(made_by_peft, str(tiny_llama_folder), tmp_path / "run", membership=tmp_path / "members.npz")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_odd_number_of_folders_is_refused(
    count: int, made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValueError, match="num_worlds must be"):
        import_worlds(made_by_peft[:count], str(tiny_llama_folder), tmp_path / "run")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(path)
    edit(tensors)
    safetensors.torch.save_file(tensors, path)


def repeat_key(folder: Path, name: str) -> None:
    path = folder / "adapter_config.json"
    path.write_text(f'{{"{name}": 1, {path.read_text().strip()[1:]}')


def poison(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change one tensor of many."""
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: change(tensors[name])}))


NOT_FINITE = r"adapter_model\.safetensors: .*layers\.1\.self_attn\.q_proj\.lora_A\.weight holds numbers .* not finite"
Q0 = "base_model.model.model.layers.0.self_attn.q_proj"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no-config": (lambda f: (f / "adapter_config.json").unlink(), "is not a PEFT folder"),
    "no-weights": (lambda f: (f / "adapter_model.safetensors").unlink(), "is not a PEFT folder"),
    "cut-weights": (lambda f: (f / "adapter_model.safetensors").write_bytes(b"\x10"), "is not a PEFT folder"),
    "config-no-json": (lambda f: (f / "adapter_config.json").write_text("{"), "is not a PEFT folder"),
    "config-a-list": (lambda f: (f / "adapter_config.json").write_text("[]"), "is not a PEFT folder"),
    "no-alpha": (lambda f: (f / "adapter_config.json").write_text('{"peft_type": "LORA"}'), "lora_alpha"),
    "infinite-alpha": (lambda f: edit_config(f, lora_alpha=float("inf")), "positive finite lora_alpha, it has inf"),
    "unknown-setting": (lambda f: edit_config(f, wave_length=3), "uses wave_length, which .* nobody here knows"),
    "classifier": (lambda f: edit_config(f, task_type="SEQ_CLS"), "uses task_type"),
    "weight-tying": (lambda f: edit_config(f, ensure_weight_tying=True), "uses ensure_weight_tying"),
    "rank-of-others": (
        lambda f: edit_config(f, r=8),
        r"lora_A\.weight has shape \(3, \d+\), which is not of rank 8, the r in adapter_config\.json",
    ),
    "rank-no-number": (lambda f: edit_config(f, r=True), "positive finite r, it has True"),
    "alpha-twice": (lambda f: repeat_key(f, "lora_alpha"), "occurs twice"),
    "integers": (lambda f: poison(f, lambda t: t.to(torch.int8)), "q_proj.*lora_A.* numbers of type int8"),
    "nan": (lambda f: poison(f, lambda t: t.index_fill(0, torch.tensor([1]), torch.nan)), NOT_FINITE),
    "infinite": (lambda f: poison(f, lambda t: t.index_fill(1, torch.tensor([2]), -torch.inf)), NOT_FINITE),
    "too-large": (lambda f: poison(f, lambda t: t.double() * 1e300), NOT_FINITE),
    "alpha-no-float": (lambda f: edit_config(f, lora_alpha=10**400), "positive finite lora_alpha"),
    "ia3": (lambda f: edit_config(f, peft_type="IA3"), "IA3 adapter; only LORA"),
    "dora": (lambda f: edit_config(f, use_dora=True), "uses use_dora"),
    "rslora": (lambda f: edit_config(f, use_rslora=True), "uses use_rslora"),
    "pissa": (lambda f: edit_config(f, init_lora_weights="pissa"), "uses init_lora_weights"),
    "token-triggered": (lambda f: edit_config(f, alora_invocation_tokens=[3]), "uses alora_invocation_tokens"),
    "bias": (lambda f: edit_config(f, bias="all"), "uses bias"),
    "lora-bias": (lambda f: edit_config(f, lora_bias=True), "uses lora_bias"),
    "rank-pattern": (lambda f: edit_config(f, rank_pattern={"q_proj": 2}), "uses rank_pattern"),
    "other-alpha": (lambda f: edit_config(f, lora_alpha=9), "differs from .* in rank, alpha or modules"),
    "a-tensor-less": (lambda f: edit_tensors(f, lambda t: t.pop(f"{Q0}.lora_A.weight")), "differs from"),
    "other-rank": (
        lambda f: edit_tensors(f, lambda t: t.update({k: v[:2].clone() for k, v in t.items() if "lora_A" in k})),
        r"lora_A\.weight has shape \(2, \d+\), which is not of rank 3",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_folder_that_is_no_plain_lora_or_unlike_the_first_is_refused(
    damage: str, made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made_by_peft[1], tmp_path / "damaged"))
    edit, message = DAMAGE[damage]
    edit(folder)
    with pytest.raises(RunDirectoryError, match=message) as caught:
        import_worlds([made_by_peft[0], folder], str(tiny_llama_folder), tmp_path / "run")
    assert str(folder) in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("damage", [None, *DAMAGE])
def test_an_adapter_on_all_records_that_cannot_be_imported_leaves_nothing(
    damage: str | None, made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    full, message = tmp_path / "full", "is not a PEFT folder"
    if damage is not None:
        shutil.copytree(made_by_peft[1], full)
        edit, message = DAMAGE[damage]
        edit(full)
    with pytest.raises(RunDirectoryError, match=message):
        import_worlds(made_by_peft[:2], str(tiny_llama_folder), tmp_path / "run", full=full)
    assert not (tmp_path / "run").exists()


ALIKE: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "unknown-module": (
        lambda t: t.update({k.replace("q_proj", "w_proj"): t.pop(k) for k in list(t) if "q_proj" in k}),
        r"no linear module 'model\.layers\.\d\.self_attn\.w_proj'",
    ),
    "other-tensor": (lambda t: t.update({"base_model.model.lm_head.weight": torch.zeros(2, 2)}), "lm_head"),
    "half-a-pair": (lambda t: t.pop(f"{Q0}.lora_B.weight"), "q_proj"),
    "other-width": (lambda t: t.update({f"{Q0}.lora_A.weight": torch.zeros(3, 40)}), r"q_proj.*40"),
    "ranks-within": (lambda t: t.update({f"{Q0}.lora_A.weight": torch.zeros(2, 48)}), "q_proj"),
    "nothing": (lambda t: t.clear(), "no adapter"),
}


@pytest.mark.parametrize("case", ALIKE)
def test_folders_alike_that_do_not_fit_the_base_are_refused(
    case: str, made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    edit, message = ALIKE[case]
    folders = [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in made_by_peft[:2]]
    for folder in folders:
        edit_tensors(folder, edit)
    with pytest.raises((RunDirectoryError, InvalidValueError), match=message):
        import_worlds(folders, str(tiny_llama_folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_prefix_tuning_made_by_peft_is_refused(tiny_llama_folder: Path, tmp_path: Path) -> None:
    config = PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=2)
    for world in range(2):
        get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_llama_folder), config).save_pretrained(
            tmp_path / str(world)
        )
    with pytest.raises(RunDirectoryError, match="PREFIX_TUNING adapter; only LORA"):
        import_worlds([tmp_path / "0", tmp_path / "1"], str(tiny_llama_folder), tmp_path / "run")


def test_an_import_on_no_model_or_onto_something_is_refused(
    made_by_peft: list[Path], tiny_llama_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        import_worlds(made_by_peft, str(tmp_path / "nowhere"), tmp_path / "run")
    (tmp_path / "run").mkdir()
    with pytest.raises(OutputExistsError, match="choose another folder"):
        import_worlds(made_by_peft, str(tiny_llama_folder), tmp_path / "run")
