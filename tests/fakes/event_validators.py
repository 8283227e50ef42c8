"""Two specifications' own schemas of server events, as strict as they can be asked."""

import inspect
from functools import lru_cache
from typing import Union

import openresponses_types.types as open_responses
from openai.types.responses import Response
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


@lru_cache(maxsize=4096)
def complaint(validator: str, event: bytes) -> str:
    """What is wrong with an event; empty when nothing is."""
    return _complaint(VALIDATORS[validator], event)


def response_complaint(validator: str, response: bytes) -> str:
    """What is wrong with a response object; empty when nothing is."""
    return _complaint(RESPONSES[validator], response)


def _complaint(adapter: "TypeAdapter[object]", document: bytes) -> str:
    try:
        adapter.validate_json(document, strict=True)
    except ValidationError as error:
        return str(error)
    return ""
