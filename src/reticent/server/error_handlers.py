"""Errors that the framework raises, in OpenAI's shape and in words that name the field at fault."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from reticent.server.errors import ApiError, name_refusal
from reticent.server.schemas import UNION_TAGS

_LONGEST_NAME = 64


def install_error_handlers(app: FastAPI) -> None:
    """Give every error of the application the OpenAI shape."""

    def respond(request: Request, error: ApiError) -> JSONResponse:
        name_refusal(request.scope, error)
        return error.response()

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return respond(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return respond(request, _unread_body(request, error) or _first_problem(error.errors()))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return respond(request, _http_problem(request, error))


def _unread_body(request: Request, error: RequestValidationError | HTTPException) -> ApiError | None:
    """The error of a body that its own headers keep from being read as JSON; None where they do not."""
    if isinstance(error, RequestValidationError) and any(len(problem["loc"]) > 1 for problem in error.errors()):
        return None
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        return ApiError(
            400, "The body is compressed (Content-Encoding), and only plain JSON is read here. Send it uncompressed."
        )
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if re.fullmatch(r"application/(.+\+)?json", media_type) is None:
        found = "it has another one" if media_type else "it has none"
        return ApiError(400, f"The body needs the header Content-Type: application/json; {found}.")
    return None


def _http_problem(request: Request, error: HTTPException) -> ApiError:
    """An error of the framework's own, in this server's words."""
    match error.status_code:
        case 400:
            return _unread_body(request, error) or ApiError(400, "The body is not valid JSON.")
        case 404:
            return ApiError(404, f"There is nothing at this address. This server has {_addresses(request.app)}.")
        case 405:
            allowed = (error.headers or {}).get("Allow", "other")
            return ApiError(405, f"This address takes {allowed} requests only.", headers=error.headers)
    return ApiError(error.status_code, str(error.detail), headers=error.headers)


def _addresses(app: FastAPI) -> str:
    """The addresses of OpenAI's interface that are served, in words."""
    paths = app.openapi()["paths"]
    served = [f"{method.upper()} {path}" for path in paths if path.startswith("/v1/") for method in paths[path]]
    return ", ".join(sorted(served, key=lambda address: address.split(" ")[1]))


def _first_problem(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first problem of a body in words, with the field it lies in; never the value that was sent."""
    problem = problems[0]
    field = _field_name([part for part in problem["loc"] if part != "body" and part not in UNION_TAGS])
    param = field or None
    match problem["type"]:
        case "json_invalid":
            return ApiError(400, "The body is not valid JSON.")
        case "extra_forbidden":
            return ApiError(400, f"Unrecognized request argument: {field}", param=param)
        case "missing":
            return ApiError(400, f"{field or 'The body'} is required.", param=param)
        case "too_long":
            limit = problem["ctx"]
            message = f"At most {limit['max_length']} are taken here, not {limit['actual_length']}"
        case "model_attributes_type" if not field:
            message = "The body must be a JSON object"
        case _:
            message = str(problem["msg"]).removeprefix("Value error, ")
    return ApiError(400, f"{field}: {message}." if field else f"{message}.", param=param)


def _field_name(place: Sequence[str | int]) -> str:
    """The place of a value, as `messages[1].refusal`; names that a client made up are cut."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:_LONGEST_NAME]}" for part in place)
    return "".join(parts).removeprefix(".")
