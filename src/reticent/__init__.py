"""Serve a language model adapted on private text with a guarantee that can be stated, and audit what it covers.

The names below are the Python interface; `docs/python.md` describes each. They are imported when they are first used,
so that `import reticent` costs nothing.

>>> import reticent
>>> plan = reticent.plan(tokens=1_000_000, step_budget="2^-32", worlds=128)
>>> f"{plan.total_nats:.6g} nats, half of a record right at most {plan.half_success:.2%}"
'0.000232831 nats, half of a record right at most 51.08%'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reticent.api.audits import Audit, AuditOptions, audit
    from reticent.api.corpus_deployments import CorpusDeployment
    from reticent.api.deployments import Bounds, Deployment
    from reticent.api.generation import Answer, CorpusAnswer, StopReason, Token
    from reticent.api.planning import plan
    from reticent.api.runs import BuildOptions, Run, build_worlds, open_run
    from reticent.dp.plan import CorpusPlan
    from reticent.errors import ReticentError
    from reticent.guarantees import Guarantee
    from reticent.pac.bounds import BudgetPlan
    from reticent.pac.mechanism import ReleaseMechanism

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Audit",
    "AuditOptions",
    "Bounds",
    "BudgetPlan",
    "BuildOptions",
    "CorpusAnswer",
    "CorpusDeployment",
    "CorpusPlan",
    "Deployment",
    "Guarantee",
    "ReleaseMechanism",
    "ReticentError",
    "Run",
    "StopReason",
    "Token",
    "audit",
    "build_worlds",
    "open_run",
    "plan",
]

_MODULES = {
    "Answer": "reticent.api.generation",
    "Audit": "reticent.api.audits",
    "AuditOptions": "reticent.api.audits",
    "Bounds": "reticent.api.deployments",
    "BudgetPlan": "reticent.pac.bounds",
    "BuildOptions": "reticent.api.runs",
    "CorpusAnswer": "reticent.api.generation",
    "CorpusDeployment": "reticent.api.corpus_deployments",
    "CorpusPlan": "reticent.dp.plan",
    "Deployment": "reticent.api.deployments",
    "Guarantee": "reticent.guarantees",
    "ReleaseMechanism": "reticent.pac.mechanism",
    "ReticentError": "reticent.errors",
    "Run": "reticent.api.runs",
    "StopReason": "reticent.api.generation",
    "Token": "reticent.api.generation",
    "audit": "reticent.api.audits",
    "build_worlds": "reticent.api.runs",
    "open_run": "reticent.api.runs",
    "plan": "reticent.api.planning",
}

if not TYPE_CHECKING:  # a type checker would take it for a promise of every name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'reticent' has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
