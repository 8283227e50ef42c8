"""The one error tree, each class with its wire form (statuses and codes: the Responses API's).

    ApiError
    ├── InvalidRequest (400)
    │   ├── PreviousResponseNotFound
    │   ├── ModelNotFound
    │   ├── ContextLengthExceeded
    │   ├── InvalidStreamId
    │   ├── StreamLimitReached
    │   ├── ConnectionLimitReached
    │   ├── UnknownEventType
    │   ├── ConversationLocked
    │   ├── InvalidEncryptedContent
    │   ├── EventsGone
    │   └── ContentRefused
    ├── InvalidApiKey (401)
    ├── Forbidden (403)
    ├── NotFound (404)
    │   └── NoSuchModel
    ├── MethodNotAllowed (405)
    ├── UpgradeRequired (426)
    ├── RateLimitExceeded (429)
    ├── Overloaded (503)
    └── Internal (500)

Anything raised that is not an ApiError is a bug: it is logged once, where it is caught, and its
text never reaches a client. `gateway/render.py` alone turns these into bytes for a client.
"""

from typing import ClassVar


class ApiError(Exception):
    """Base of all errors with a wire form.

    `message` is for a person and says what to do; `param` names the field at fault.
    Both are positional, so that an error survives pickling between processes.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "server_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class InvalidRequest(ApiError):
    """The client sent something that cannot be served; sending it again will not help."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request_error"


class PreviousResponseNotFound(InvalidRequest):
    """The named parent is neither in the connection's cache nor stored. Clients resend in full."""

    code = "previous_response_not_found"


class ModelNotFound(InvalidRequest):
    """No model or alias of that name is served here."""

    code = "model_not_found"


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the model's window and truncation is disabled."""

    code = "context_length_exceeded"


class InvalidStreamId(InvalidRequest):
    """`stream_id` is not 1-256 characters of `[A-Za-z0-9_.-]`. Its frame carries no stream_id."""

    code = "invalid_stream_id"


class StreamLimitReached(InvalidRequest):
    """One named lane more than a connection may ever use."""

    code = "websocket_stream_limit_reached"


class ConnectionLimitReached(InvalidRequest):
    """The connection is older than allowed; the client opens another."""

    code = "websocket_connection_limit_reached"


class UnknownEventType(InvalidRequest):
    """A client event whose `type` this server does not know."""

    code = "unknown_event_type"


class ConversationLocked(InvalidRequest):
    """Another turn or change of the conversation is under way. Clients try again in a moment."""

    code = "conversation_locked"


class InvalidEncryptedContent(InvalidRequest):
    """What a client carried for us cannot be opened: changed, foreign, or of an unknown key."""

    code = "invalid_encrypted_content"


class EventsGone(InvalidRequest):
    """Events of a background response that are asked for are not kept any more."""

    code = "events_expired"


class ContentRefused(InvalidRequest):
    """The safety policy `block` refused the input."""

    code = "invalid_prompt"


class InvalidApiKey(ApiError):
    """No key, or one this server does not know."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(ApiError):
    """The request's `Origin` or `Host` is not allowed here."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class NotFound(ApiError):
    """No such path or stored object, or it belongs to another tenant."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class NoSuchModel(NotFound):
    """Asked for as a page; a turn that names it is refused with ModelNotFound."""

    code = "model_not_found"


class MethodNotAllowed(ApiError):
    """The path is there, but not for that HTTP method."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class UpgradeRequired(ApiError):
    """The WebSocket transport is switched off here; clients fall back to HTTP at once."""

    status = 426
    type = "invalid_request_error"
    code = "websocket_disabled"


class RateLimitExceeded(ApiError):
    """Try again in a moment. After `response.created` this code is the one form Codex waits on."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class Overloaded(ApiError):
    """A bounded queue is full, or the pool a turn needs is not there."""

    status = 503
    type = "server_error"
    code = "server_is_overloaded"


class Internal(ApiError):
    """A bug of ours, or a fault whose detail is not the client's business."""


def _tree(root: type[ApiError]) -> dict[str, type[ApiError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


BY_NAME: dict[str, type[ApiError]] = _tree(ApiError)
"""Class by its name: how an error crosses a channel (see `messages.Failure`)."""
