"""Conversations over HTTP, and turns in them over both transports, held to the SDK."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
from gateway_worlds import Opener, Town, turn
from openai.types.conversations import Conversation, ConversationItemList
from openai.types.responses import Response
from scripted_ports import World, create, says
from simulated_ports import SimulatedPorts

from turnwire.pipelines import messages as m
from turnwire.pipelines.config import GatewaySettings, SafetySettings, StorageSettings

HELLO = {"type": "message", "role": "user", "content": "hello"}
LOGPROB = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
ITEMS: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief", "id": "msg_system"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "a", "logprobs": [LOGPROB]}]},
    {"type": "function_call", "call_id": "c1", "name": "run", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "done"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"},
]


@pytest.fixture
async def client(town: Town) -> AsyncIterator[httpx.AsyncClient]:
    async with town.httpx() as client:
        yield client


async def made(client: httpx.AsyncClient, **fields: object) -> str:
    answer = await client.post("/conversations", json=fields)
    assert answer.status_code == 200, answer.text
    Conversation.model_validate_json(answer.content, strict=True)
    conversation_id: str = answer.json()["id"]
    return conversation_id


async def texts(client: httpx.AsyncClient, conversation_id: str) -> list[str]:
    """What is in it, oldest first: the text of messages, the kind of others."""
    answer = await client.get(f"/conversations/{conversation_id}/items?order=asc&limit=100")
    data = answer.json()["data"]
    if data:
        ConversationItemList.model_validate_json(answer.content, strict=True)
    return [i["content"][0]["text"] if i["type"] == "message" else i["type"] for i in data]


async def create_turn(client: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await client.post("/responses", content=create(**fields))


async def test_every_method_of_the_sdk(town: Town) -> None:
    async with town.openai() as sdk:
        made = await sdk.conversations.create(items=ITEMS[:2], metadata={"topic": "a"})
        assert (made.object, made.metadata) == ("conversation", {"topic": "a"})
        assert made.id.startswith("conv_")
        changed = await sdk.conversations.update(made.id, metadata={"topic": "b"})
        assert changed == await sdk.conversations.retrieve(made.id)
        assert (changed.metadata, changed.created_at) == ({"topic": "b"}, made.created_at)
        added = await sdk.conversations.items.create(made.id, items=ITEMS[2:])
        assert [item.type for item in added.data] == [item["type"] for item in ITEMS[2:]]
        assert (added.first_id, added.last_id) == (added.data[0].id, "cmp_1")
        kinds = [item.get("type", "message") for item in ITEMS]
        for order in ("asc", "desc"):
            listed = sdk.conversations.items.list(made.id, limit=2, order=order)
            found = [item.type async for item in listed]
            assert found == (kinds if order == "asc" else kinds[::-1])
        one = await sdk.conversations.items.retrieve("msg_system", conversation_id=made.id)
        assert (one.type, one.status, one.content[0].text) == ("message", "completed", "be brief")
        kept = await sdk.conversations.items.delete("msg_system", conversation_id=made.id)
        assert kept == changed
        with pytest.raises(openai.NotFoundError):
            await sdk.conversations.items.retrieve("msg_system", conversation_id=made.id)
        gone = await sdk.conversations.delete(made.id)
        assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
        for ask in (sdk.conversations.retrieve, sdk.conversations.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.conversations.items.list(made.id)


async def test_what_is_sealed_or_long_is_listed_only_when_it_is_asked_for(
    client: httpx.AsyncClient,
) -> None:
    conversation_id = await made(client, items=ITEMS)
    path = f"/conversations/{conversation_id}/items"
    plain = (await client.get(path, params={"order": "asc"})).json()["data"]
    assert "encrypted_content" not in plain[4]
    assert plain[1]["content"][0]["logprobs"] == []
    wanted = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    full = (await client.get(path, params={"order": "asc", "include[]": wanted})).json()["data"]
    assert full[4]["encrypted_content"] == "sealed"
    assert full[1]["content"][0]["logprobs"] == [LOGPROB]
    refused = await client.get(path, params={"include": "everything"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "include")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [HELLO] * 21}, "items"),
        ({"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].type"),
        ({"items": [HELLO | {"id": "msg_1"}] * 2}, "items[1].id"),
        ({"items": [HELLO | {"id": "i" * 257}]}, "items[0].id"),
        ({"items": [HELLO | {"id": "a\0b"}]}, "items[0].id"),
        ({"items": [{"role": "pope", "content": "x"}]}, "items[0].role"),
        ({"items": "hello"}, "items"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"metadata": 3}, "metadata"),
    ],
)
async def test_what_cannot_be_made_is_named(
    client: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    refused = await client.post("/conversations", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    if "items" in body:
        conversation_id = await made(client)
        refused = await client.post(f"/conversations/{conversation_id}/items", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert await texts(client, conversation_id) == []


async def test_an_item_is_not_added_twice(client: httpx.AsyncClient) -> None:
    conversation_id = await made(client, items=[HELLO | {"id": "msg_1"}])
    body = {"items": [HELLO, HELLO | {"id": "msg_1"}]}
    refused = await client.post(f"/conversations/{conversation_id}/items", json=body)
    assert refused.status_code == 400
    assert "items[1]" in refused.json()["error"]["message"]
    turn = await create_turn(client, conversation=conversation_id, input=[HELLO | {"id": "msg_1"}])
    assert (turn.status_code, turn.json()["error"]["param"]) == (400, "input[0].id")
    assert await texts(client, conversation_id) == ["hello"]


@pytest.mark.parametrize("store", [True, False])
async def test_a_turn_goes_on_from_what_is_there_and_adds_itself(
    client: httpx.AsyncClient, town: Town, store: bool
) -> None:
    conversation_id = await made(client, items=[HELLO])
    for question in ("one", "two"):
        answer = await create_turn(
            client, conversation={"id": conversation_id}, input=question, store=store
        )
        response = Response.model_validate_json(answer.content)
        assert response.conversation is not None
        assert response.conversation.id == conversation_id
        assert response.previous_response_id is None
    said = "Hello world"
    assert await texts(client, conversation_id) == ["hello", "one", said, "two", said]
    assert len(town.world.saved) == (2 if store else 0)
    prompt = town.world.generated[-1].prompt
    # The second turn sends only what is new behind the first one's prompt: answer and question.
    assert prompt.prefix_key == town.world.generated[0].prompt.key
    assert len(orjson.loads(prompt.items)) == 2
    assert town.world.steps.count("load conversation") == 2


async def test_both_transports_go_on_in_one_conversation(
    client: httpx.AsyncClient, town: Town
) -> None:
    conversation_id = await made(client)
    await create_turn(client, conversation=conversation_id, input="one")
    async with town.connect() as socket:
        (*_, end) = await turn(socket, conversation=conversation_id, input="two")
        assert end["response"]["conversation"] == {"id": conversation_id}
    await create_turn(client, conversation=conversation_id, input="three")
    said = "Hello world"
    there = await texts(client, conversation_id)
    assert there == ["one", said, "two", said, "three", said]
    items = [orjson.loads(command.prompt.items) for command in town.world.generated]
    # The socket loads all of it; the shared connection only what came after its own turn.
    assert [len(one) for one in items] == [1, 3, 4]
    assert town.world.generated[2].prompt.prefix_key == town.world.generated[0].prompt.key


async def test_items_added_by_hand_come_after_the_prompt_that_is_held(
    client: httpx.AsyncClient, town: Town
) -> None:
    conversation_id = await made(client)
    await create_turn(client, conversation=conversation_id, input="one")
    path = f"/conversations/{conversation_id}/items"
    added = await client.post(path, json={"items": [HELLO]})
    await create_turn(client, conversation=conversation_id, input="two")
    first, second = (command.prompt for command in town.world.generated)
    assert second.prefix_key == first.key
    assert len(orjson.loads(second.items)) == 3
    # What was removed is not said again: everything is, but for that.
    await client.delete(f"{path}/{added.json()['data'][0]['id']}")
    await create_turn(client, conversation=conversation_id, input="three")
    third = town.world.generated[2].prompt
    assert third.prefix_key == b""
    assert len(orjson.loads(third.items)) == 5


@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_what_was_said_before_is_not_evaluated_again(opener: Opener, transport: str) -> None:
    town = await opener.open(simulated=SimulatedPorts())
    async with town.httpx() as client, town.connect() as socket:
        conversation_id = await made(client, items=[HELLO | {"content": "remember:COLOUR=teal"}])
        usages, answers = [], []
        for question in ("One.", "Two.", "recall:COLOUR"):
            fields = {"model": "sim-max", "conversation": conversation_id, "input": question}
            if transport == "http":
                response = (await create_turn(client, **fields)).json()
            else:
                response = (await turn(socket, **fields))[-1]["response"]
            usages.append(response["usage"])
            answers.append(response["output"][0]["content"][0]["text"])
        assert answers[-1] == "teal"
        for before, after in pairwise(usages):
            assert after["input_tokens_details"]["cached_tokens"] == before["input_tokens"]


async def test_a_response_of_a_conversation_can_be_a_parent(
    client: httpx.AsyncClient, town: Town
) -> None:
    conversation_id = await made(client, items=[HELLO])
    answer = await create_turn(client, conversation=conversation_id, input="one", store=True)
    parent = answer.json()["id"]
    async with town.connect() as socket:
        # Another connection, so all of it is loaded: what was before it in the conversation too.
        (*_, end) = await turn(socket, previous_response_id=parent, input="aside")
    assert end["type"] == "response.completed"
    assert len(orjson.loads(town.world.generated[-1].prompt.items)) == 4
    assert "aside" not in await texts(client, conversation_id)
    await client.delete(f"/conversations/{conversation_id}")
    assert (await client.get(f"/responses/{parent}")).status_code == 200
    async with town.connect() as socket:
        (refusal,) = await turn(socket, previous_response_id=parent, input="aside")
    assert refusal["error"]["code"] == "previous_response_not_found"


async def test_unknown_and_foreign_conversations_look_alike(opener: Opener, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-a team-a\nsk-b team-b\n")
    town = await opener.open(settings=GatewaySettings(port=0, key_file=str(keys)))
    a, b = ({"authorization": f"Bearer {key}"} for key in ("sk-a", "sk-b"))
    async with town.httpx() as client:
        answer = await client.post("/conversations", json={"items": [HELLO]}, headers=a)
        theirs = answer.json()["id"]
        told = []
        for conversation_id in (theirs, "conv_0"):
            path = f"/conversations/{conversation_id}"
            turn = create(conversation=conversation_id)
            refusals = [
                await client.get(path, headers=b),
                await client.post(path, json={"metadata": {}}, headers=b),
                await client.delete(path, headers=b),
                await client.get(f"{path}/items", headers=b),
                await client.post(f"{path}/items", json={"items": [HELLO]}, headers=b),
                await client.get(f"{path}/items/msg_1", headers=b),
                await client.delete(f"{path}/items/msg_1", headers=b),
                await client.post("/responses", content=turn, headers=b),
            ]
            assert {refusal.status_code for refusal in refusals} == {404}
            told.append([r.text.replace(conversation_id, "ID") for r in refusals])
        assert told[0] == told[1]
        items = await client.get(f"/conversations/{theirs}/items", headers=a)
        assert len(items.json()["data"]) == 1


async def test_two_turns_of_one_conversation_do_not_run_at_once(town: Town) -> None:
    world = town.world
    async with town.httpx() as client:
        conversation_id = await made(client)
        world.hang_at = (
            len(world.steps) + 5
        )  # resolve, prepare, load, prepare, generate, then the answer
        running = asyncio.create_task(
            create_turn(client, conversation=conversation_id, input="one")
        )
        await world.hanging.wait()
        turn = create(conversation=conversation_id, input="two")
        refused = [
            await client.post("/responses", content=turn),
            await client.post(f"/conversations/{conversation_id}/items", json={"items": [HELLO]}),
            await client.delete(f"/conversations/{conversation_id}/items/msg_1"),
        ]
        assert {(r.status_code, r.json()["error"]["code"]) for r in refused} == {
            (400, "conversation_locked")
        }
        # Leaving ends a turn: nothing of it stays, and nobody is locked out.
        running.cancel()
        await asyncio.wait((running,))
        await world.closed.wait()
        assert (await create_turn(client, conversation=conversation_id, input="two")).is_success
        assert await texts(client, conversation_id) == ["two", "Hello world"]
    assert len(town.gateway._serving.services.conversations) == 0


async def test_a_turn_whose_conversation_changed_elsewhere_fails_and_adds_nothing(
    town: Town, client: httpx.AsyncClient
) -> None:
    """Another gateway takes no part in who runs here: it is the store that decides."""
    conversation_id = await made(client)
    store: Any = town.gateway._serving.ports.store

    def elsewhere(command: m.Generate) -> list[Any]:
        item = b'{"type":"message","id":"msg_x","role":"user","content":"between"}'
        store.ask(m.AddItems("local", conversation_id, "add_x", (item,)))
        return says("late")

    town.world.script = elsewhere
    async with town.connect() as socket:
        (*_, end) = await turn(socket, conversation=conversation_id, input="one", store=True)
    assert end["type"] == "response.failed"
    assert end["response"]["error"]["code"] == "conversation_locked"
    assert await texts(client, conversation_id) == ["between"]
    assert town.world.saved == {}


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_an_incomplete_answer_is_added_and_a_failed_one_is_not(
    town: Town, client: httpx.AsyncClient, finish: m.Finish
) -> None:
    conversation_id = await made(client)
    town.world.script = lambda command: says("half", finish=finish)
    answer = await create_turn(client, conversation=conversation_id, input="one")
    assert answer.json()["status"] == "incomplete"
    # The worker goes in the middle of its answer.
    town.world.script = lambda command: says("half")[:-1]
    failed = await create_turn(client, conversation=conversation_id, input="two")
    assert failed.status_code >= 400
    assert await texts(client, conversation_id) == ["one", "half"]


async def test_a_warm_up_adds_what_it_was_given(town: Town, client: httpx.AsyncClient) -> None:
    conversation_id = await made(client)
    async with town.connect() as socket:
        await turn(socket, conversation=conversation_id, input="one", generate=False)
        (*_, end) = await turn(socket, conversation=conversation_id, input=[])
    assert end["type"] == "response.completed"
    assert await texts(client, conversation_id) == ["one", "Hello world"]


async def test_tokens_are_counted_behind_a_conversation(
    town: Town, client: httpx.AsyncClient
) -> None:
    conversation_id = await made(client, items=[HELLO])
    counted = await client.post(
        "/responses/input_tokens", content=create(conversation=conversation_id)
    )
    bare = await client.post("/responses/input_tokens", content=create())
    assert counted.json()["input_tokens"] > bare.json()["input_tokens"]
    assert await texts(client, conversation_id) == ["hello"]


async def test_a_full_conversation_and_too_many_are_refused_by_name(
    town: Town, client: httpx.AsyncClient
) -> None:
    store: Any = town.gateway._serving.ports.store
    store.conversation_limits = StorageSettings(max_conversations=2, max_conversation_items=2)
    conversation_id = await made(client, items=[HELLO])
    path = f"/conversations/{conversation_id}/items"
    refused = await client.post(path, json={"items": [HELLO, HELLO]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "items")
    # A turn that could begin is added whole; the next one cannot.
    assert (await create_turn(client, conversation=conversation_id)).is_success
    refused = await create_turn(client, conversation=conversation_id)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation")
    await made(client)
    refused = await client.post("/conversations", json={})
    assert refused.status_code == 400
    assert "delete some first" in refused.json()["error"]["message"]


async def test_a_policy_that_blocks_also_blocks_items(opener: Opener) -> None:
    world = World(verdict=m.Screened(flagged=True, categories=("rude",)))
    town = await opener.open(world, safety=SafetySettings(policy="block"))
    async with town.httpx() as client:
        refused = await client.post("/conversations", json={"items": [HELLO]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_prompt")
        conversation_id = await made(client)
        path = f"/conversations/{conversation_id}/items"
        assert (await client.post(path, json={"items": [HELLO]})).status_code == 400
        assert await texts(client, conversation_id) == []


async def test_a_parent_beside_a_conversation_is_illegal(client: httpx.AsyncClient) -> None:
    conversation_id = await made(client)
    refused = await create_turn(client, conversation=conversation_id, previous_response_id="resp_1")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation")
