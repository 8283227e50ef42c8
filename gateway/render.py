"""Errors as bytes, for both transports: the only place that makes them, and the border for bugs."""

import logging

import orjson
from starlette.responses import Response

from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.errors import ApiError, Internal

logger = logging.getLogger("turnwire.gateway")


def error_object(error: ApiError) -> dict[str, str | None]:
    return {
        "type": error.type,
        "code": error.code,
        "message": error.message,
        "param": error.param,
    }


def error_frame(error: ApiError, lane: str | None) -> Json:
    """The `error` event of a socket. Clients ignore one without a numeric `status`."""
    frame: dict[str, object] = {
        "type": "error",
        "status": error.status,
        "error": error_object(error),
    }
    if lane is not None:
        frame["stream_id"] = lane
    return orjson.dumps(frame)


def error_response(error: ApiError, allow: str = "") -> Response:
    """An HTTP error, also of an upgrade that is refused. `allow`: the methods of a path."""
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
    if allow:
        headers["allow"] = allow
    body = orjson.dumps({"error": error_object(error)})
    return Response(body, error.status, headers, "application/json")


def hidden(error: BaseException, where: str) -> ApiError:
    """What a client is told of `error`. A bug is logged, here and once; its text stays here."""
    if isinstance(error, ApiError):
        return error
    logger.error("gateway.bug %s", where, exc_info=error)
    return Internal("The server had an internal error.")
