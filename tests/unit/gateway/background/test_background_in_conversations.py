"""Background responses in conversations."""

from typing import Any

import openai
import pytest
from background_turns import begun, hanging, polled, settings, streamed
from gateway_worlds import Opener, Town
from local_storage import LocalStorage
from simulated_ports import SimulatedPorts
from turn_worlds import check_events


async def texts(client: openai.AsyncOpenAI, conversation_id: str) -> list[str]:
    listed = client.conversations.items.list(conversation_id, order="asc")
    return [item.content[0].text async for item in listed]  # type: ignore[union-attr]


async def test_in_a_conversation_it_is_added_when_it_ends_and_the_next_goes_on_from_it(
    town: Town, client: openai.AsyncOpenAI
) -> None:
    made = await client.conversations.create()
    hanging(town)
    first = await begun(client, conversation=made.id)
    await town.world.hanging.wait()
    with pytest.raises(openai.BadRequestError) as refused:
        await begun(client, conversation=made.id)
    assert refused.value.code == "conversation_locked"
    assert await texts(client, made.id) == []
    town.world.resume()
    response = await polled(client, first)
    assert response.status == "completed"
    assert response.conversation is not None
    assert response.conversation.id == made.id
    assert await texts(client, made.id) == ["hi", "Hello world"]
    assert (await polled(client, await begun(client, conversation=made.id))).status == "completed"
    assert await texts(client, made.id) == ["hi", "Hello world"] * 2
    following = await client.responses.create(
        model="scripted", input="and?", previous_response_id=first
    )
    assert following.status == "completed"


@pytest.mark.parametrize("change", ["added", "deleted"])
async def test_a_conversation_that_changed_through_another_gateway_is_not_added_to(
    storage: LocalStorage, opener: Opener, town: Town, client: openai.AsyncOpenAI, change: str
) -> None:
    other = await opener.open(settings=settings(), storage=storage)
    made = await client.conversations.create()
    hanging(town, after=1)
    response_id = await begun(client, conversation=made.id)
    await town.world.hanging.wait()
    async with other.openai() as there:
        if change == "added":
            item = {"type": "message", "role": "user", "content": "first"}
            await there.conversations.items.create(made.id, items=[item])  # type: ignore[list-item]
        else:
            await there.conversations.delete(made.id)
    town.world.resume()
    response = await polled(client, response_id)
    assert response.status == "failed"
    async with town.httpx() as http:
        events = await streamed(http, f"/responses/{response_id}?stream=true")
    check_events(events)
    code = events[-1]["response"]["error"]["code"]
    if change == "added":
        assert code == "conversation_locked"
        assert await texts(client, made.id) == ["first"]
        assert (await polled(client, await begun(client, conversation=made.id))).output_text
    else:
        assert code == "not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="scripted", input="x", previous_response_id=response_id)
    assert refused.value.code == "previous_response_not_found"


async def test_one_that_is_cancelled_leaves_its_conversation_as_it_was(
    town: Town, client: openai.AsyncOpenAI
) -> None:
    made = await client.conversations.create()
    hanging(town, after=1)
    response_id = await begun(client, conversation=made.id)
    await town.world.hanging.wait()
    await client.responses.cancel(response_id)
    await town.world.closed.wait()
    assert await texts(client, made.id) == []
    assert (await polled(client, await begun(client, conversation=made.id))).output_text


async def test_it_compacts_a_conversation_of_its_own(storage: LocalStorage, opener: Opener) -> None:
    town = await opener.open(settings=settings(), simulated=SimulatedPorts(), storage=storage)
    async with town.openai() as client:
        made = await client.conversations.create()
        asked: dict[str, Any] = {"model": "sim-max", "background": True, "conversation": made.id}
        for given in (
            "remember:color=blue " + "and more " * 99,
            [{"type": "compaction_trigger"}],
            "recall:color",
        ):
            response = await client.responses.create(**asked | {"input": given})
            response = await polled(client, response.id)
            assert response.error is None
        assert response.output_text == "blue"
        items = [i.type async for i in client.conversations.items.list(made.id, order="asc")]
        assert items == ["message", "message", "compaction", "message", "message"]
        async with town.httpx() as http:
            check_events(await streamed(http, f"/responses/{response.id}?stream=true"))
