"""The cases of the Open Responses compliance suite, as facts to check.

Each speaks to a server over the wire and validates all it hears against the published schemas.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from event_validators import compaction_complaint, complaint, response_complaint
from websockets.asyncio.client import ClientConnection, connect

VALIDATOR = "Open Responses"
TERMINAL = {"response.completed", "response.failed", "response.incomplete", "error"}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}

Event = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """Of one model. `capped`: an answer may end at the model's output limit, as `incomplete`."""

    url: str
    model: str
    capped: bool = False
    turn_s: float = 30.0

    def body(self, given: object, **fields: object) -> dict[str, object]:
        return {"model": self.model, "input": given} | fields

    async def post(self, given: object, **fields: object) -> Event:
        """One response, whole."""
        async with httpx.AsyncClient(timeout=self.turn_s) as http:
            answer = await http.post(f"{self.url}/responses", json=self.body(given, **fields))
        assert answer.status_code == 200, answer.text
        assert response_complaint(VALIDATOR, answer.content) == ""
        response: Event = answer.json()
        self.check_answered(response)
        return response

    async def compact(self, **body: object) -> httpx.Response:
        async with httpx.AsyncClient(timeout=self.turn_s) as http:
            return await http.post(f"{self.url}/responses/compact", json=body)

    def socket(self) -> AbstractAsyncContextManager[ClientConnection]:
        return connect(self.url.replace("http", "ws", 1) + "/responses", max_size=None)

    async def turn(self, socket: ClientConnection, given: object, **fields: object) -> Event:
        """The last event of one turn; all of them are valid."""
        frame = {"type": "response.create"} | self.body(given, **fields)
        await socket.send(orjson.dumps(frame).decode())
        async with asyncio.timeout(self.turn_s):
            while True:
                event = orjson.loads(data := str(await socket.recv()).encode())
                assert complaint(VALIDATOR, data) == ""
                if event["type"] in TERMINAL:
                    return dict(event)

    async def answered(self, socket: ClientConnection, given: object, **fields: object) -> Event:
        """As `turn`, for one that must succeed: its response."""
        last = await self.turn(socket, given, **fields)
        assert "response" in last, last
        response: Event = last["response"]
        assert last["type"] == f"response.{response['status']}"
        self.check_answered(response)
        return response

    def check_answered(self, response: Event) -> None:
        assert response["output"]
        if response["status"] == "incomplete":
            assert self.capped
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        else:
            assert response["status"] == "completed"


def user(text: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": text}


def assistant(text: str, **fields: object) -> dict[str, object]:
    return {"type": "message", "role": "assistant", "content": text} | fields


async def basic_response(client: Client) -> None:
    await client.post([user("Say hello in three words.")])


async def assistant_phase(client: Client) -> None:
    history = [
        user("What is 2 + 2?"),
        assistant("Let me see.", phase="commentary"),
        assistant("4.", phase="final_answer"),
        user("And 3 + 3?"),
    ]
    await client.post(history)


async def response_output_phase_schema(client: Client) -> None:
    """A message has a `phase` of the two, or no such member; null is not valid."""
    response = await client.post([user("Hello.")])
    messages = [item for item in response["output"] if item["type"] == "message"]
    assert all(item.get("phase", "commentary") is not None for item in messages)
    for phase, valid in (("commentary", True), ("final_answer", True), ("other", False)):
        marked = response | {"output": [item | {"phase": phase} for item in messages]}
        assert (response_complaint(VALIDATOR, orjson.dumps(marked)) == "") == valid


async def streaming_response(client: Client) -> None:
    async with httpx.AsyncClient(timeout=client.turn_s) as http:
        body = client.body([user("Count to five.")], stream=True)
        answer = await http.post(f"{client.url}/responses", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = [line[6:].encode() for line in answer.text.split("\n") if line.startswith("data: ")]
    assert data.pop() == b"[DONE]"
    assert [complaint(VALIDATOR, event) for event in data] == [""] * len(data)
    client.check_answered(orjson.loads(data[-1])["response"])


async def websocket_response(client: Client) -> None:
    async with client.socket() as socket:
        await client.answered(socket, [user("Say hello.")])


async def websocket_sequential_responses(client: Client) -> None:
    async with client.socket() as socket:
        first = await client.answered(socket, [user("Say one.")])
        second = await client.answered(socket, [user("Say two.")])
    assert first["id"] != second["id"]


async def websocket_continuation(client: Client) -> None:
    async with client.socket() as socket:
        first = await client.answered(socket, [user("My name is Ada.")], store=False)
        parent = first["id"]
        second = await client.answered(
            socket, [user("What is my name?")], store=False, previous_response_id=parent
        )
    assert second["previous_response_id"] == parent


async def websocket_reconnect_store_false_recovery(client: Client) -> None:
    async with client.socket() as socket:
        first = await client.answered(socket, [user("Hello.")], store=False)
    async with client.socket() as socket:
        lost = await client.turn(
            socket, [user("And?")], store=False, previous_response_id=first["id"]
        )
        _check_not_found(lost)
        await client.answered(socket, [user("Hello."), assistant("Hi."), user("And?")], store=False)


async def websocket_previous_response_not_found(client: Client) -> None:
    async with client.socket() as socket:
        parent = "resp_0123456789abcdef"
        _check_not_found(await client.turn(socket, [user("Hi.")], previous_response_id=parent))


async def websocket_failed_continuation_evicts_cache(client: Client) -> None:
    async with client.socket() as socket:
        first = await client.answered(socket, [user("Hello.")], store=False)
        lineage = {"store": False, "previous_response_id": first["id"]}
        stray = {"type": "function_call_output", "call_id": "call_unknown", "output": "x"}
        failed = await client.turn(socket, [stray], **lineage)
        if failed["type"] == "error":
            assert isinstance(failed["error"]["code"], str)
        else:
            assert failed["type"] == "response.failed"
        _check_not_found(await client.turn(socket, [user("And?")], **lineage))


async def system_prompt(client: Client) -> None:
    system = {"type": "message", "role": "system", "content": "You are a pirate."}
    await client.post([system, user("Say hello.")])


async def tool_calling(client: Client) -> None:
    response = await client.post([user("The weather in Paris?")], tools=[WEATHER])
    assert any(item["type"] == "function_call" for item in response["output"])


async def image_input(client: Client) -> None:
    content = [
        {"type": "input_text", "text": "What is in this image?"},
        {"type": "input_image", "image_url": PIXEL},
    ]
    response = await client.post([{"type": "message", "role": "user", "content": content}])
    assert client.capped or response["status"] == "completed"


async def multi_turn(client: Client) -> None:
    await client.post([user("I am Ada."), assistant("Hello Ada."), user("Who am I?")])


async def compact_response(client: Client) -> None:
    answer = await client.compact(model=client.model, input=[user("I am Ada."), assistant("Hi.")])
    assert answer.status_code == 200, answer.text
    assert compaction_complaint(answer.content) == ""
    assert any(item["type"] == "compaction" for item in answer.json()["output"])


async def compact_missing_model(client: Client) -> None:
    answer = await client.compact(input=[user("I am Ada.")])
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["message"]


async def websocket_compact_new_chain(client: Client) -> None:
    """What `/compact` answers is the beginning of a new chain, over whichever transport."""
    answer = await client.compact(model=client.model, input=[user("I am Ada."), assistant("Hi.")])
    window = answer.json()["output"]
    async with client.socket() as socket:
        first = await client.answered(socket, [*window, user("Who am I?")], store=False)
        await client.answered(
            socket, [user("Are you sure?")], store=False, previous_response_id=first["id"]
        )


def _check_not_found(event: Event) -> None:
    assert event["type"] == "error", event
    assert (event["status"], event["error"]["code"]) == (400, "previous_response_not_found")


Case = Callable[[Client], Awaitable[None]]

CASES: dict[str, Case] = {
    case.__name__.replace("_", "-"): case
    for case in (
        basic_response,
        assistant_phase,
        response_output_phase_schema,
        streaming_response,
        websocket_response,
        websocket_sequential_responses,
        websocket_continuation,
        websocket_reconnect_store_false_recovery,
        websocket_previous_response_not_found,
        websocket_failed_continuation_evicts_cache,
        websocket_compact_new_chain,
        compact_response,
        compact_missing_model,
        system_prompt,
        tool_calling,
        image_input,
        multi_turn,
    )
}
"""By the name the suite gives them."""

NEED_MORE_THAN_TEXT = {"tool-calling"}
"""A small model may not call a function when it is offered one."""
