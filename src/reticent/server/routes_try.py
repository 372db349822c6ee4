"""The page to try, `/try`: the page itself, what it shows beside the text, and its stop button.

Texts come from OpenAI's routes, as for every other client; nothing here releases a token.
"""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, StrictStr

from reticent import __version__
from reticent.ledger.api_keys import ApiKey
from reticent.pac.accounting import units_to_nats
from reticent.pac.bounds import MEMBERSHIP_PRIOR, attack_success
from reticent.pac.wording import HALF_MEANING, HALF_QUESTION, NOT_BOUNDED, WORLD_MEANING, WORLD_QUESTION
from reticent.server.auth import Generating
from reticent.server.messages import KnownFields
from reticent.server.pages import page_file
from reticent.server.readiness import ReadinessCheck
from reticent.server.rendering import deployment_privacy, key_privacy
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
    half_question: str = HALF_QUESTION
    half_meaning: str = HALF_MEANING
    world_question: str = WORLD_QUESTION
    world_meaning: str = WORLD_MEANING
    not_bounded: str = NOT_BOUNDED
    nats_cap: Annotated[float | None, Field(description="The whole budget; null where the deployment has no cap.")]
    half_at_cap: Annotated[
        float | None, Field(description="The bound once the whole budget is spent; null without a cap.")
    ]
    key: Annotated[KeyPrivacy | None, Field(description="As in an answer's `usage.privacy`.")]
    deployment: Annotated[DeploymentPrivacy | None, Field(description="As in an answer's `usage.privacy`.")]


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


@router.get("/data", response_model=TryPage, responses=_KEY_REFUSALS)
async def data(request: Request, key: Generating) -> TryPage:
    """Serve the figures and words beside the text."""
    service: Service = request.app.state.service
    check: ReadinessCheck = request.app.state.readiness
    return _describe(service, key, (await check.run()).reason)


@router.post("/stop", response_model=StopReport, responses=_KEY_REFUSALS | {400: REFUSALS[400]})
async def stop(body: StopRequest, request: Request, key: Generating) -> StopReport:
    """Stop a request of the same key; its answers end with the tokens they have, and with their `usage`."""
    service: Service = request.app.state.service
    return StopReport(stopped=service.open_requests.stop(None if key is None else key.id, body.request_id))


def _describe(service: Service, key: ApiKey | None, reason: str | None) -> TryPage:
    """Make the contents of the page for the holder of a key.

    The bound at the cap is the deployment's promise, the same for all; what was spent of it tells how much others
    write, and is for operators.
    """
    curator, settings = service.curator, service.settings
    units = curator.account.cap_units
    nats_cap = None if units is None else units_to_nats(units)
    return TryPage(
        model=settings.model_name,
        version=__version__,
        reason=reason,
        key_name=None if key is None else key.name,
        has_chat=service.prompts.has_chat_template,
        max_tokens=settings.limits.max_tokens,
        worlds=curator.num_worlds,
        nats_cap=nats_cap,
        half_at_cap=None if nats_cap is None else attack_success(nats_cap, MEMBERSHIP_PRIOR),
        key=None if key is None else key_privacy(service.meters.of(key)),
        deployment=deployment_privacy(service, key),
    )
