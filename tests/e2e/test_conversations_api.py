"""The Conversations API on a whole server, by the unmodified SDK, on both databases: methods, and
turns, of which some run in the background."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response
from running_server import RunningServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    # The official client opens its socket in a way that its library is about to give up.
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context:DeprecationWarning"),
]

POLL_S = 0.05
FACT = "I have a cat called Luna."
QUESTIONS = ("Name a river in France.", "What is the name of my cat?")
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_output_tokens": 16, "store": False}


@pytest.fixture
def client(stored_server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=stored_server.url, api_key="none", max_retries=0) as made:
        yield made


def socket_turn(connection: ResponsesConnection, **fields: Any) -> Response:  # noqa: ANN401
    connection.response.create(**fields)
    for event in connection:
        assert event.type not in ("error", "response.failed"), event
        if event.type in ("response.completed", "response.incomplete"):
            return event.response
    raise AssertionError("the socket was closed")


def evaluates_only_the_new(before: Response, after: Response) -> bool:
    """The worker held the turn before it: its prompt and what it sampled, but for the last token,
    which was never evaluated."""
    assert before.usage is not None
    assert after.usage is not None
    held = before.usage.input_tokens + before.usage.output_tokens - 1
    return after.usage.input_tokens_details.cached_tokens == held


def test_every_method_and_the_pages_of_a_long_one(client: OpenAI) -> None:
    said = [f"message {number}" for number in range(45)]
    items: list[Any] = [{"role": "user", "content": text} for text in said]
    made = client.conversations.create(items=items[:20], metadata={"topic": "pages"})
    client.conversations.items.create(made.id, items=items[20:40])
    client.conversations.items.create(made.id, items=items[40:])
    for order in ("asc", "desc"):
        pages = client.conversations.items.list(made.id, limit=10, order=order)
        found: list[Any] = list(pages)
        texts = [item.content[0].text for item in found]
        assert texts == (said if order == "asc" else said[::-1])
    first = found[-1].id
    item: Any = client.conversations.items.retrieve(first, conversation_id=made.id)
    assert item.content[0].text == said[0]
    assert client.conversations.items.delete(first, conversation_id=made.id) == made
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(first, conversation_id=made.id)
    changed = client.conversations.update(made.id, metadata={"topic": "ends"})
    assert client.conversations.retrieve(made.id) == changed
    assert changed.metadata == {"topic": "ends"}
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


def test_a_dialogue_over_http_evaluates_only_what_is_new(client: OpenAI) -> None:
    made = client.conversations.create(items=[{"role": "system", "content": "You are number 1."}])
    answers = [
        client.responses.create(model="smollm2", input=text, conversation=made.id, **GREEDY)
        for text in (FACT, *QUESTIONS)
    ]
    assert "Luna" in answers[2].output_text
    for before, after in pairwise(answers):
        assert after.conversation is not None
        assert after.conversation.id == made.id
        assert evaluates_only_the_new(before, after)
    held: list[Any] = list(client.conversations.items.list(made.id, order="asc"))
    assert [item.role for item in held] == ["system", *("user", "assistant") * 3]
    assert held[-1].content[0].text == answers[2].output_text


def test_a_dialogue_over_a_websocket_evaluates_only_what_is_new(client: OpenAI) -> None:
    made = client.conversations.create(items=[{"role": "system", "content": "You are number 2."}])
    more: dict[str, Any] = {"model": "smollm2", "conversation": {"id": made.id}, **GREEDY}
    with client.responses.connect() as connection:
        first = socket_turn(connection, input=FACT, **more)
        second = socket_turn(connection, input=QUESTIONS[0], **more)
        third = socket_turn(connection, input=QUESTIONS[1], **more)
    assert "Luna" in third.output_text
    assert evaluates_only_the_new(first, second)
    assert evaluates_only_the_new(second, third)
    # And on by HTTP, on a connection that has never seen it.
    fourth = client.responses.create(input=QUESTIONS[1], **more)
    assert "Luna" in fourth.output_text
    assert len(list(client.conversations.items.list(made.id, limit=100))) == 9


async def test_many_turns_of_one_conversation_at_once_never_interleave(
    stored_server: RunningServer,
) -> None:
    async with AsyncOpenAI(base_url=stored_server.url, api_key="none", max_retries=0) as client:
        made = await client.conversations.create()

        async def until_taken(number: int) -> None:
            while True:
                try:
                    response = await client.responses.create(
                        model="sim-4000",
                        input=f"question {number}",
                        conversation=made.id,
                        store=number % 3 == 0,
                        background=number % 3 == 0,
                        max_output_tokens=8,
                    )
                    while response.status in ("queued", "in_progress"):
                        await asyncio.sleep(POLL_S)
                        response = await client.responses.retrieve(response.id)
                    if response.error is None:
                        return
                    assert response.error.code == "conversation_locked"
                except openai.BadRequestError as refused:
                    if refused.code != "conversation_locked":
                        raise

        await asyncio.gather(*map(until_taken, range(12)))
        found: list[Any] = [
            item async for item in client.conversations.items.list(made.id, order="asc")
        ]
    assert [item.role for item in found] == ["user", "assistant"] * 12
    asked = {item.content[0].text for item in found[::2]}
    assert asked == {f"question {number}" for number in range(12)}
