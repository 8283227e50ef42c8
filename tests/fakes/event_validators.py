"""Two specifications' own schemas of server events, as strict as they can be asked."""

import inspect
from functools import lru_cache
from typing import Union

import openresponses_types.types as open_responses
from openai.types.responses import CompactedResponse, Response
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import BaseModel, TypeAdapter, ValidationError


def _open_responses_events() -> list[type[BaseModel]]:
    return [
        model
        for name, model in inspect.getmembers(open_responses, inspect.isclass)
        if name.endswith("StreamingEvent") or name == "WebSocketErrorEvent"
    ]


VALIDATORS = {
    "OpenAI": TypeAdapter(ResponsesServerEvent),
    "Open Responses": TypeAdapter(Union[tuple(_open_responses_events())]),  # noqa: UP007 -- made
}
RESPONSES = {
    "OpenAI": TypeAdapter(Response),
    "Open Responses": TypeAdapter(open_responses.ResponseResource),
}

_COMPACTIONS = TypeAdapter(CompactedResponse), TypeAdapter(open_responses.CompactResource)


@lru_cache(maxsize=4096)
def complaint(validator: str, event: bytes) -> str:
    """What is wrong with an event; empty when nothing is."""
    return _complaint(VALIDATORS[validator], event)


def response_complaint(validator: str, response: bytes) -> str:
    """What is wrong with a response object; empty when nothing is."""
    return _complaint(RESPONSES[validator], response)


def compaction_complaint(answer: bytes) -> str:
    """What is wrong with an answer of `/responses/compact`, for either; empty when nothing is."""
    return "".join(_complaint(adapter, answer) for adapter in _COMPACTIONS)


def _complaint(adapter: "TypeAdapter[object]", document: bytes) -> str:
    try:
        adapter.validate_json(document, strict=True)
    except ValidationError as error:
        return str(error)
    return ""
