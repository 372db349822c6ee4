"""The page to try, `/try`: the page itself, what it shows beside the text, and its stop button.

Texts come from OpenAI's routes, as for every other client; nothing here releases a token.
"""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, StrictStr, TypeAdapter

from reticent import __version__
from reticent.guarantees import Guarantee
from reticent.ledger.api_keys import ApiKey
from reticent.server.auth import Generating
from reticent.server.corpus_schemas import CorpusDeploymentPrivacy, CorpusGuarantee, CorpusKeyPrivacy
from reticent.server.messages import KnownFields
from reticent.server.pages import page_file
from reticent.server.readiness import ReadinessCheck
from reticent.server.releasing import num_worlds_of
from reticent.server.rendering import is_operator, key_spending
from reticent.server.routes_openai import REFUSALS
from reticent.server.schemas import DeploymentPrivacy, KeyPrivacy
from reticent.server.service import Service

router = APIRouter(prefix="/try")

_KEY_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {status: REFUSALS[status] for status in (401, 403, 503)}


class TryPage(BaseModel):
    """Everything that the page shows beside the text. Bounds are chances."""

    model: str
    version: str
    reason: Annotated[str | None, Field(description="The reason why no text would be written now, or null.")]
    key_name: Annotated[str | None, Field(description="The asking key's holder; null on a server without keys.")]
    has_chat: Annotated[bool, Field(description="True if the model has a chat template.")]
    max_tokens: Annotated[int, Field(description="Most tokens in one answer.")]
    worlds: int


class RealisedWorldTryPage(TryPage):
    """The page of a realised-world deployment."""

    guarantee: Literal[Guarantee.REALISED_WORLD]
    half_question: str
    half_meaning: str
    world_question: str
    world_meaning: str
    not_bounded: str
    nats_cap: Annotated[float | None, Field(description="The whole budget; null where the deployment has no cap.")]
    half_at_cap: Annotated[
        float | None, Field(description="The bound once the whole budget is spent; null without a cap.")
    ]
    key: Annotated[KeyPrivacy | None, Field(description="As in an answer's `usage.privacy`.")]
    deployment: Annotated[DeploymentPrivacy | None, Field(description="As in an answer's `usage.privacy`.")]


class CorpusTryPage(TryPage):
    """The page of a corpus deployment."""

    guarantee: CorpusGuarantee
    membership_question: str
    membership_meaning: str
    not_covered: str
    relation: str
    neighbours: str
    delta: float
    rho_cap: Annotated[float | None, Field(description="The whole budget; null where the deployment has no cap.")]
    membership_at_cap: Annotated[
        float | None, Field(description="The bound once the whole budget is spent; null without a cap.")
    ]
    epsilon_at_cap: Annotated[float | None, Field(description="The same as epsilon, at delta.")]
    key: Annotated[CorpusKeyPrivacy | None, Field(description="As in an answer's `usage.privacy`.")]
    deployment: Annotated[CorpusDeploymentPrivacy | None, Field(description="As in an answer's `usage.privacy`.")]


AnyTryPage = Annotated[RealisedWorldTryPage | CorpusTryPage, Field(discriminator="guarantee")]
_PAGES: Final[TypeAdapter[RealisedWorldTryPage | CorpusTryPage]] = TypeAdapter(AnyTryPage)


class StopRequest(KnownFields):
    """The request that shall stop."""

    request_id: Annotated[
        StrictStr, Field(max_length=128, description="The `X-Request-Id` that the request was sent with.")
    ]


class StopReport(BaseModel):
    """True if there was such a request, of the same key, and it had not ended."""

    stopped: bool


@router.get("", include_in_schema=False)
async def page() -> Response:
    """The page. It holds no data; those need a key, which the page asks for."""
    return page_file("try.html")


@router.get("/data", response_model=AnyTryPage, responses=_KEY_REFUSALS)
async def data(request: Request, key: Generating) -> RealisedWorldTryPage | CorpusTryPage:
    """Serve the figures and words beside the text."""
    service: Service = request.app.state.service
    check: ReadinessCheck = request.app.state.readiness
    return _describe(service, key, (await check.run()).reason)


@router.post("/stop", response_model=StopReport, responses=_KEY_REFUSALS | {400: REFUSALS[400]})
async def stop(body: StopRequest, request: Request, key: Generating) -> StopReport:
    """Stop a request of the same key; its answers end with the tokens they have, and with their `usage`."""
    service: Service = request.app.state.service
    return StopReport(stopped=service.open_requests.stop(None if key is None else key.id, body.request_id))


def _describe(service: Service, key: ApiKey | None, reason: str | None) -> RealisedWorldTryPage | CorpusTryPage:
    """Make the contents of the page for the holder of a key.

    The bound at the cap is the deployment's promise, the same for all; what was spent of it tells how much others
    write, and is for operators.
    """
    figures, settings = service.figures, service.settings
    return _PAGES.validate_python(
        {
            "model": settings.model_name,
            "version": __version__,
            "reason": reason,
            "key_name": None if key is None else key.name,
            "has_chat": service.prompts.has_chat_template,
            "max_tokens": settings.limits.max_tokens,
            "worlds": num_worlds_of(service.curator),
            "key": None if key is None else figures.of_key(key_spending(service.meters.of(key))),
            "deployment": figures.of_deployment() if is_operator(key) else None,
            **figures.promise(),
        }
    )
