"""Targets of an audit: a model, an adapter over its base, an adapted folder, or a server, opened as scorers.

| a target | reference (the base before adaptation) | template | members known |
|---|---|---|---|
| model folder, hub id, .gguf file, smollm2-135m | --reference only | default | no |
| PEFT folder | the same base, adapter off | default | no |
| bottleneck folder, with --model | the same base, adapter off | default | no |
| adapted folder | the same base, adapter off; for full fine-tuning the base beside it | stored | yes, by hash |
| server | --reference only | default | no |
| `transformers` model in memory | --reference only | default | no |
| PEFT model in memory | the same model, adapter off | default | no |

A run directory is opened by whoever composes the audit, since this package never sees an ensemble: a world goes in as a
PEFT folder, and the other worlds as a shadow table.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedModel

from reticent._files import sha256_of_file
from reticent.auditing.canaries.extraction import Extractor, LocalExtractor
from reticent.auditing.inputs.shadows import ShadowTable
from reticent.auditing.targets.base_probe import base_digest, can_have_changed_base
from reticent.auditing.targets.endpoint import RemoteScorer, TextOnlyScorer, open_endpoint
from reticent.auditing.targets.endpoint_client import EndpointClient, EndpointSettings
from reticent.auditing.targets.scoring import ModelScorer, model_fingerprint
from reticent.auditing.targets.templates import full_template
from reticent.auditing.targets.top_logprobs import TopLogprobScorer, probe_top_logprobs
from reticent.errors import AuditError, EndpointError, InvalidValueError, ModelError
from reticent.models.base import LanguageModel, resolve_base_model, usable_device
from reticent.protocols import Scorer
from reticent.text.template import TextTemplate
from reticent.training.adapted_folder import ADAPT_NAME, AdaptedFolder
from reticent.training.techniques.bottleneck_technique import BOTTLENECK_NAME, load_bottleneck
from reticent.training.techniques.peft_technique import CONFIG_NAME
from reticent.training.techniques.registry import (
    TECHNIQUES,
    base_class_name,
    load_peft_folder,
    technique_parameters,
)

_TOP_NEEDS_TOKENIZER = (
    "the server shows log-probabilities of its most likely next tokens: name the model before adaptation with "
    "--reference, a local one, whose tokenizer says where tokens end, to use them"
)
_RUN_FILES = ("manifest.json", "worlds.safetensors")


class TargetKind(StrEnum):
    """The kind of a target."""

    MODEL = "model"
    PEFT = "peft adapter"
    BOTTLENECK = "bottleneck adapter"
    ADAPTED = "adapted model"
    RUN = "run directory"
    ENDPOINT = "endpoint"


@dataclass(frozen=True)
class TargetOptions:
    """Options for opening targets.

    Attributes:
        model: where the base model of an adapter is, if not where it says; the model's name on a server.
        reference: another reference than the target's own base: any target but a run directory.
        template: changes to the template, by field; what is absent is as stored with the adapter, or the default.
        dtype: to compute in; as trained, or float32, unless given.
        device: where to compute.
        batch_tokens: tokens computed at once.
        endpoint: how a server is asked; its address and model are filled in.
    """

    model: str | None = None
    reference: str | None = None
    template: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    device: str = "cpu"
    batch_tokens: int = 2048
    endpoint: EndpointSettings = field(default_factory=lambda: EndpointSettings(""))


@dataclass(frozen=True, eq=False)
class Target:
    """A target, open.

    Attributes:
        kind: what it is.
        record: what the report says about it: JSON values, no texts.
        scorer: the model.
        template: what it is given of a text.
        reference: the base before adaptation, or None.
        reference_record: what the report says about the reference.
        base: what the base model is called, so that it can be loaded again; None for a server, or where nobody said.
        module: the model's weights and what trains of them, for attacks that need them; None for a server.
        member_hashes: SHA-256 of the texts it was trained on; None where that is not known.
        heldout_hashes: the same of the texts that were held out.
        shadow_table: shadow models that come with the target, for some texts; None where there are none.
        warnings: what the report must say about how it was opened.
        client: asks a server for text; None for any other target.
    """

    kind: TargetKind
    record: dict[str, Any]
    scorer: Scorer
    template: TextTemplate
    reference: Scorer | None = None
    reference_record: dict[str, Any] | None = None
    base: str | None = None
    module: nn.Module | None = None
    member_hashes: frozenset[str] | None = None
    heldout_hashes: frozenset[str] | None = None
    shadow_table: Callable[[Sequence[str]], ShadowTable] | None = None
    warnings: tuple[str, ...] = ()
    client: EndpointClient | None = None

    @property
    def num_trained(self) -> int:
        """Count the numbers that the technique trained; 0 where there is no module or nothing was trained."""
        return 0 if self.module is None else sum(p.numel() for p in technique_parameters(self.module))

    @property
    def extractor(self) -> Extractor | None:
        """An extractor, which asks the model to continue a prompt; None for a server, which a client asks."""
        if self.module is None or not isinstance(self.scorer, ModelScorer):
            return None
        limit = self.scorer.context_length or self.template.max_tokens
        return LocalExtractor(self.module, self.scorer.tokenizer, self.template, limit)


def target_kind(name: str) -> TargetKind:
    """Tell what a target is from its name and the files in it; anything unknown is taken for a model."""
    if name.startswith(("http://", "https://")):
        return TargetKind.ENDPOINT
    folder = Path(name).expanduser()
    if (folder / ADAPT_NAME).is_file():
        return TargetKind.ADAPTED
    if all((folder / file).is_file() for file in _RUN_FILES):
        return TargetKind.RUN
    if (folder / CONFIG_NAME).is_file():
        return TargetKind.PEFT
    if (folder / BOTTLENECK_NAME).is_file():
        return TargetKind.BOTTLENECK
    return TargetKind.MODEL


def open_target(name: str, options: TargetOptions) -> Target:
    """Open a target and its reference.

    Raises:
        AuditError: it is a run directory.
        EndpointError: a server does not answer or refuses, or one that is the reference shows no log-probabilities.
        InvalidValueError: the template or the device cannot be used.
        ModelError: a model or adapter cannot be read, or does not fit its base.
        RunDirectoryError: an adapted folder is damaged, or its base is another one.
    """
    target = _add_reference(_OPENERS[target_kind(name)](name, options), options)
    return target if target.client is None else _use_top_logprobs(target, target.client, options)


def open_module(module: object, tokenizer: Any, options: TargetOptions) -> Target:
    """Open a model in memory, as it is: its type and its device are its own.

    Args:
        module: a `transformers` model, or a `PeftModel` around one.
        tokenizer: the model's, a fast one.
        options: how; `model` names the base, for the one attack that trains it again.

    Raises:
        InvalidValueError: it is no such model, there is no tokenizer, or a type is asked for.
        ModelError: its adapters are merged into it or cannot be told from it, or it predicts no tokens.
    """
    if not isinstance(module, PreTrainedModel | PeftModel):
        raise InvalidValueError(
            "a target is a path, a hub id, a URL, a run, or a model of transformers or PEFT; "
            f"got {type(module).__name__}"
        )
    if tokenizer is None or not hasattr(tokenizer, "backend_tokenizer"):
        raise InvalidValueError("a model in memory needs its fast tokenizer: give tokenizer=AutoTokenizer…")
    if options.dtype is not None:
        raise InvalidValueError("dtype is that of the model in memory; convert the model, or give its path")
    is_adapted = isinstance(module, PeftModel)
    if not is_adapted and any(isinstance(part, BaseTunerLayer) for part in module.modules()):
        raise ModelError("there are adapters inside this model; give the PeftModel that holds it")
    identity = model_fingerprint(module, tokenizer)
    scorer, warnings = _scorer(module, tokenizer, full_template(None, options.template), identity, options)
    kind = TargetKind.PEFT if is_adapted else TargetKind.MODEL
    facts = {"base": options.model, "base_class": base_class_name(module), "weights_hash": identity}
    record = {"kind": kind.value, "name": f"{type(module).__name__} in memory", **facts}
    target = Target(kind, record, scorer, scorer.template, base=options.model, module=module, warnings=warnings)
    if is_adapted:
        record["adapter"] = str(module.active_peft_config.peft_type.value)
        if can_have_changed_base(module.active_peft_config):
            warnings = (*warnings, "this adapter's settings change its base: with its adapter off it is no reference")
            return _add_reference(replace(target, warnings=warnings), options)
        target = replace(target, reference=_adapter_off(module, scorer, identity, options), reference_record=facts)
    return _add_reference(target, options)


def _add_reference(target: Target, options: TargetOptions) -> Target:
    if options.reference is None:
        return target
    # A reference reads what the target reads.
    as_target = replace(options, reference=None, model=None, template=target.template.model_dump())
    reference = open_target(options.reference, as_target)
    if isinstance(reference.scorer, TextOnlyScorer):
        raise EndpointError(f"{options.reference} shows no log-probabilities of prompts, which a reference must")
    warnings = (*target.warnings, *(f"reference: {warning}" for warning in reference.warnings))
    return replace(target, reference=reference.scorer, reference_record=reference.record, warnings=warnings)


def _open_endpoint(name: str, options: TargetOptions) -> Target:
    client = EndpointClient(replace(options.endpoint, url=name, model=options.model))
    scorer = open_endpoint(client, full_template(None, options.template))
    shown = "log-probabilities of prompts" if isinstance(scorer, RemoteScorer) else "text alone"
    record = {"kind": TargetKind.ENDPOINT.value, "name": name, "model": client.model, "shows": shown}
    return Target(TargetKind.ENDPOINT, record, scorer, scorer.template, client=client)


def _use_top_logprobs(target: Target, client: EndpointClient, options: TargetOptions) -> Target:
    """The target, scored from the most likely next tokens where the server shows those and no more."""
    probed = probe_top_logprobs(client) if isinstance(target.scorer, TextOnlyScorer) else None
    if probed is None:
        return target
    if not isinstance(target.reference, ModelScorer):
        return replace(target, warnings=(*target.warnings, _TOP_NEEDS_TOKENIZER))
    scorer = TopLogprobScorer(client, target.reference, options.endpoint.num_places, probed)
    record = target.record | {"shows": f"log-probabilities of the {scorer.num_top} most likely next tokens"}
    return replace(target, record=record, scorer=scorer, reference=scorer.placed(target.reference))


def _open_model(name: str, options: TargetOptions) -> Target:
    base = resolve_base_model(name)
    module = _load_base(base, options)
    scorer, warnings = _scorer(
        module, base.load_tokenizer(), full_template(None, options.template), _base_identity(base), options
    )
    record = {"kind": TargetKind.MODEL.value, "name": name, **_base_facts(base, module)}
    return Target(TargetKind.MODEL, record, scorer, scorer.template, base=name, module=module, warnings=warnings)


def _open_peft(name: str, options: TargetOptions) -> Target:
    folder = Path(name).expanduser()
    base = resolve_base_model(options.model or _read_base_name(folder))
    model = _load_base(base, options)
    expected = base_digest(model, with_adapter=True)
    module = load_peft_folder(model, folder)
    adapter = json.loads((folder / CONFIG_NAME).read_text("utf-8")).get("peft_type")
    return _bare_adapter(TargetKind.PEFT, name, adapter, module, base, expected, options)


def _open_bottleneck(name: str, options: TargetOptions) -> Target:
    if options.model is None:
        raise _unknown_base_error(name)
    base = resolve_base_model(options.model)
    model = _load_base(base, options)
    expected = base_digest(model, with_adapter=True)
    module = load_bottleneck(model, Path(name).expanduser()).eval().requires_grad_(requires_grad=False)
    return _bare_adapter(TargetKind.BOTTLENECK, name, module.placement.value, module, base, expected, options)


_UNSAID = {"max_tokens": "--max-tokens", "add_eos": "--eos or --no-eos"}
"""Parts of a template that a bare adapter's folder does not tell, and the options that do."""


def _bare_adapter(
    kind: TargetKind,
    name: str,
    adapter: str,
    module: nn.Module,
    base: LanguageModel,
    expected: str,
    options: TargetOptions,
) -> Target:
    """An adapter's own folder, without an adapted folder's record of texts and template."""
    files = [path for path in sorted(Path(name).expanduser().iterdir()) if path.suffix in (".json", ".safetensors")]
    identity = _join_hashes(_base_identity(base), *(f"{path.name} {sha256_of_file(path)}" for path in files))
    record = {"kind": kind.value, "name": name, "adapter": adapter, **_base_facts(base, module)}
    target = _adapter_target(
        kind, record, module, base, expected, identity, full_template(None, options.template), options
    )
    unsaid = [option for key, option in _UNSAID.items() if key not in options.template]
    if not unsaid:
        return target
    warning = (
        f"{name} does not say how its texts were read: they are cut at {target.template.max_tokens} tokens and "
        f"{'closed' if target.template.add_eos else 'not closed'} by an end token; where training did otherwise every "
        f"figure is too low, so say it with {' and '.join(unsaid)}"
    )
    return replace(target, warnings=(*target.warnings, warning))


def _loaded_base_digest(base: LanguageModel, dtype: torch.dtype, options: TargetOptions) -> str:
    return base_digest(base.load(dtype).to(usable_device(options.device)), with_adapter=True)


def _load_base(base: LanguageModel, options: TargetOptions) -> Any:
    return base.load(options.dtype or torch.float32).to(usable_device(options.device))


def _open_adapted(name: str, options: TargetOptions) -> Target:
    adapted = AdaptedFolder.open(Path(name).expanduser())
    manifest = adapted.manifest
    base = adapted.base(options.model)
    technique = TECHNIQUES[manifest.technique]
    is_whole = technique.is_whole_model
    # Before the adapted model, so that two bases are never in memory where one will do.
    expected = "" if is_whole else _loaded_base_digest(base, options.dtype or adapted.dtype, options)
    module, tokenizer = adapted.load(base, options.dtype, options.device)
    identity = _join_hashes(_base_identity(base), *(f"{file} {value}" for file, value in manifest.files.items()))
    record = {
        "kind": TargetKind.ADAPTED.value,
        "name": name,
        "technique": manifest.technique.value,
        "settings": manifest.settings.model_dump(mode="json", include=set(technique.settings_read)),
        "training": manifest.training.model_dump(mode="json") if manifest.training else None,
        "differential_privacy": manifest.dp.model_dump(mode="json") if manifest.dp else "none",
        "trained_parameters": manifest.counts.trained_parameters,
        "members": manifest.counts.members,
        **_base_facts(base, module),
    }
    template = full_template(manifest.template, options.template)
    if is_whole:
        scorer, warnings = _scorer(module, tokenizer, template, identity, options)
        before = base.load(scorer.dtype).to(usable_device(options.device))
        reference, _ = _scorer(before, base.load_tokenizer(), scorer.template, _base_identity(base), options)
        facts = _base_facts(base, before)
        target = Target(
            TargetKind.ADAPTED, record, scorer, scorer.template, reference, facts, base.name, module, warnings=warnings
        )
    else:
        target = _adapter_target(TargetKind.ADAPTED, record, module, base, expected, identity, template, options)
    return replace(
        target, member_hashes=frozenset(adapted.member_hashes), heldout_hashes=frozenset(adapted.heldout_hashes)
    )


def _open_run(name: str, options: TargetOptions) -> Target:
    raise AuditError(f"{name} is a run directory, which holds many models: name one of its worlds with --world")


_OPENERS: dict[TargetKind, Callable[[str, TargetOptions], Target]] = {
    TargetKind.MODEL: _open_model,
    TargetKind.PEFT: _open_peft,
    TargetKind.BOTTLENECK: _open_bottleneck,
    TargetKind.ADAPTED: _open_adapted,
    TargetKind.RUN: _open_run,
    TargetKind.ENDPOINT: _open_endpoint,
}


def _adapter_target(
    kind: TargetKind,
    record: dict[str, Any],
    module: nn.Module,
    base: LanguageModel,
    expected: str,
    identity: str,
    template: TextTemplate,
    options: TargetOptions,
) -> Target:
    """A target whose reference is the same module with the adapter off, so that the base is in memory once.

    Where that is not the base, whose digest is `expected`, the base is loaded beside it.
    """
    scorer, warnings = _scorer(module, base.load_tokenizer(), template, identity, options)
    # The base's own identity, for it is what computes: audits of several adapters over one base share its signals.
    identity_of_base, beside = _join_hashes(_base_identity(base), "verified"), {}
    if base_digest(module, with_adapter=False) == expected:
        reference = _adapter_off(module, scorer, identity_of_base, options)
    else:
        own = base.load(scorer.dtype).to(usable_device(options.device))
        reference = ModelScorer(
            own, scorer.tokenizer, scorer.template, identity_of_base, batch_tokens=options.batch_tokens
        )
        beside["loaded"] = "beside the target, which with its adapter off is not its base"
    facts = _base_facts(base, module) | beside
    return Target(kind, record, scorer, scorer.template, reference, facts, base.name, module, warnings=warnings)


def _adapter_off(module: nn.Module, scorer: ModelScorer, identity: str, options: TargetOptions) -> ModelScorer:
    return ModelScorer(
        module, scorer.tokenizer, scorer.template, identity, with_adapter=False, batch_tokens=options.batch_tokens
    )


def _scorer(
    module: nn.Module, tokenizer: Any, template: TextTemplate, identity: str, options: TargetOptions
) -> tuple[ModelScorer, tuple[str, ...]]:
    """A scorer whose template fits the model's context, and a warning where it had to be made to fit."""
    scorer = ModelScorer(module, tokenizer, template, identity, batch_tokens=options.batch_tokens)
    limit = scorer.context_length
    if limit is None or template.max_tokens <= limit:
        return scorer, ()
    if limit < 2:
        raise ModelError(f"the adapter leaves {limit} tokens of the model's context for a text; nothing can be scored")
    cut = template.model_copy(update={"max_tokens": limit})
    warning = f"texts are cut to {limit} tokens, what the model's context leaves, not to {template.max_tokens}"
    return ModelScorer(module, tokenizer, cut, identity, batch_tokens=options.batch_tokens), (warning,)


def _read_base_name(folder: Path) -> str:
    try:
        name = json.loads((folder / CONFIG_NAME).read_text("utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder / CONFIG_NAME} cannot be read ({type(error).__name__})") from None
    if not isinstance(name, str) or not name:
        raise _unknown_base_error(folder)
    return name


def _unknown_base_error(adapter: str | Path) -> ModelError:
    return ModelError(f"{adapter} does not say which base model it is for; name it with --model")


def _base_identity(base: LanguageModel) -> str:
    return _join_hashes(base.content_hash, base.tokenizer_hash)


def _join_hashes(*parts: str) -> str:
    return hashlib.sha256("\n".join(("reticent weights 1", *parts)).encode()).hexdigest()


def _base_facts(base: LanguageModel, module: nn.Module) -> dict[str, Any]:
    return {
        "base": base.name,
        "base_class": base_class_name(module),
        "base_content_hash": base.content_hash,
        "tokenizer_hash": base.tokenizer_hash,
    }
