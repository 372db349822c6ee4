"""The cost of answers of a corpus deployment, as its server shows it: ρ, and what it bounds."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from reticent.dp.wording import MEMBERSHIP_MEANING, MEMBERSHIP_QUESTION, NOT_COVERED
from reticent.guarantees import Guarantee

CorpusGuarantee = Literal[Guarantee.CORPUS]

_RELATION = "The difference between neighbouring corpora that every charge here is for."


class CorpusKeyPrivacy(BaseModel):
    """The asking key's spending over its life. No bound follows from it: others' answers tell of the same corpus."""

    tokens_charged: int
    rho_charged: float
    tokens_left: Annotated[int | None, Field(description="Null where the key has no total quota.")]


class CorpusDeploymentPrivacy(BaseModel):
    """The cost of all tokens of the deployment so far, to everyone together, what it bounds, and the constants."""

    tokens_charged: int
    tokens_left: Annotated[int | None, Field(description="Null where the deployment has no cap.")]
    rho_charged: float
    rho_left: Annotated[float | None, Field(description="Null where the deployment has no cap.")]
    epsilon: Annotated[float, Field(description="All tokens so far are (epsilon, delta)-differentially private.")]
    delta: float
    membership_success: Annotated[
        float,
        Field(description=f"{MEMBERSHIP_QUESTION} Bound on the {MEMBERSHIP_MEANING}. Not covered: {NOT_COVERED}."),
    ]
    relation: Annotated[str, Field(description=_RELATION)]
    clip: float
    gain: float
    temperature: float


class CorpusPrivacy(BaseModel):
    """The privacy cost of a request, its key's spending, and, for operators, the deployment's.

    Every token costs the same, whatever it is, so a cost tells nothing of the corpus.
    """

    guarantee: CorpusGuarantee = Guarantee.CORPUS
    relation: Annotated[str, Field(description=_RELATION)]
    tokens_charged: int
    rho_charged: float
    key: Annotated[CorpusKeyPrivacy | None, Field(description="Null on a server without keys.")]
    deployment: Annotated[
        CorpusDeploymentPrivacy | None,
        Field(description="Null unless the key has the scope `admin`, or the server has no keys."),
    ]
