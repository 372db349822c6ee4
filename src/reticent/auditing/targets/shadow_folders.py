"""Other adapted models that read texts as a target does: shadow models, and references trained for an attack."""

from reticent.auditing.targets.scoring import ModelScorer
from reticent.auditing.targets.targets import Target, TargetKind, TargetOptions, open_target, target_kind
from reticent.errors import AuditError


def open_shadow(name: str, target: Target) -> tuple[ModelScorer, frozenset[str]]:
    """Open one shadow model and the hashes of the texts it was trained on.

    It reads texts as the target does, in the target's type.

    Raises:
        AuditError: it is not an adapted folder, so that nothing says what it was trained on.
        ModelError, RunDirectoryError: it cannot be opened.
    """
    if target_kind(name) is not TargetKind.ADAPTED:
        raise AuditError(
            f"shadow model {name} is not what `reticent adapt` wrote, so nothing says what it was trained on"
        )
    shadow = _open(name, target, None)
    assert isinstance(shadow.scorer, ModelScorer)
    assert shadow.member_hashes is not None
    return shadow.scorer, shadow.member_hashes


def open_adapted_like(name: str, target: Target, base: str) -> ModelScorer:
    """Open an adapted folder over the target's base, to read texts as the target does.

    Raises:
        ModelError, RunDirectoryError: it cannot be opened.
    """
    scorer = _open(name, target, base).scorer
    assert isinstance(scorer, ModelScorer)
    return scorer


def _open(name: str, target: Target, base: str | None) -> Target:
    dtype = target.scorer.dtype if isinstance(target.scorer, ModelScorer) else None
    device = "cpu" if target.module is None else str(next(target.module.parameters()).device)
    return open_target(name, TargetOptions(base, template=target.template.model_dump(), dtype=dtype, device=device))
