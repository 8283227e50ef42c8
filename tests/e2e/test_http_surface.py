"""Stored responses, their items and counting on a whole server, with the official SDK."""

from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI
from running_server import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
async def client(open_responses_server: RunningServer) -> AsyncIterator[AsyncOpenAI]:
    url = open_responses_server.url
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_a_stored_response_is_retrieved_listed_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.responses.create(
        model="sim-max", input=[{"role": "user", "content": text} for text in ("a", "b", "c")]
    )
    assert (await client.responses.retrieve(made.id)).output_text == made.output_text
    listed = client.responses.input_items.list(made.id, limit=2, order="asc")
    assert [item.content[0].text async for item in listed] == ["a", "b", "c"]
    await client.responses.delete(made.id)
    for gone in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            await gone(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_items.list(made.id)


async def test_a_deleted_response_is_no_parent_any_more_on_sockets_that_know_it(
    client: AsyncOpenAI,
) -> None:
    async with client.responses.connect() as first, client.responses.connect() as second:
        await first.response.create(model="sim-max", input="hi", store=True)
        parent = [event async for event in _turn(first)][-1].response.id
        for connection in (first, second):
            await connection.response.create(
                model="sim-max", input="and?", store=False, previous_response_id=parent
            )
            assert [event async for event in _turn(connection)][-1].type == "response.completed"
        await client.responses.delete(parent)
        for connection in (first, second):
            await connection.response.create(
                model="sim-max", input="and?", store=False, previous_response_id=parent
            )
            (refusal,) = [event async for event in _turn(connection)]
            assert refusal.error.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="sim-max", input="and?", previous_response_id=parent)
    assert refused.value.code == "previous_response_not_found"


async def _turn(connection):  # noqa: ANN001, ANN202 -- the SDK's types are not exported
    async for event in connection:
        yield event
        if event.type in ("response.completed", "error"):
            return


@pytest.mark.parametrize("model", ["sim-max", "smollm2"])
async def test_input_tokens_are_those_a_turn_reports(client: AsyncOpenAI, model: str) -> None:
    first = await client.responses.create(model=model, input="Hello.", max_output_tokens=2)
    asked = {"model": model, "input": "And again?", "previous_response_id": first.id}
    counted = await client.responses.input_tokens.count(**asked)
    response = await client.responses.create(**asked, max_output_tokens=2)
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens
