"""The rest of the HTTP surface: stored responses and their items, counting, wrong paths."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
from gateway_worlds import Opener, Town, turn
from openai.types.responses import ResponseItemList
from scripted_ports import create
from simulated_ports import SimulatedPorts
from turn_worlds import check_events
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from turnwire.pipelines.config import GatewaySettings

TOOL = {"type": "function", "name": "run", "parameters": {"type": "object"}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"role": "assistant", "content": "hello"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "there"}], "phase": None},
    {"type": "function_call", "call_id": "c1", "name": "run", "arguments": "{}", "status": None},
    {"type": "function_call_output", "call_id": "c1", "output": "done"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
]


@pytest.fixture
async def keyed(opener: Opener, tmp_path: Path) -> Town:
    """Two tenants, with the keys `sk-a` and `sk-b`."""
    keys = tmp_path / "keys"
    keys.write_text("sk-a team-a\nsk-b team-b\n")
    return await opener.open(settings=GatewaySettings(port=0, key_file=str(keys)))


@pytest.fixture
async def client(town: Town) -> AsyncIterator[httpx.AsyncClient]:
    async with town.httpx() as client:
        yield client


async def stored(client: httpx.AsyncClient, **fields: object) -> str:
    response = await client.post("/responses", content=create(store=True, **fields))
    assert response.status_code == 200, response.text
    response_id: str = response.json()["id"]
    return response_id


async def test_input_items_are_listed_newest_first_in_the_form_clients_know(
    client: httpx.AsyncClient,
) -> None:
    response_id = await stored(client, input=HISTORY)
    answer = await client.get(
        f"/responses/{response_id}/input_items?include[]=reasoning.encrypted_content"
    )
    ResponseItemList.model_validate_json(answer.content, strict=True)
    page = answer.json()
    kinds = [item["type"] for item in page["data"]]
    assert kinds == [item.get("type", "message") for item in reversed(HISTORY)]
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    assert page["has_more"] is False
    assert page["data"][-1]["content"] == [{"type": "input_text", "text": "be brief"}]


async def test_the_sdk_walks_through_all_pages_in_both_orders(town: Town) -> None:
    async with town.httpx() as http:
        response_id = await stored(http, input=HISTORY)
    async with town.openai() as client:
        for order in ("asc", "desc"):
            listed = client.responses.input_items.list(response_id, limit=2, order=order)
            kinds = [item.type async for item in listed]
            expected = [item.get("type", "message") for item in HISTORY]
            assert kinds == (expected if order == "asc" else expected[::-1])


async def test_a_page_begins_behind_the_item_named(client: httpx.AsyncClient) -> None:
    response_id = await stored(client, input=[{**HISTORY[0], "id": f"msg_{n}"} for n in range(5)])
    path = f"/responses/{response_id}/input_items"
    page = (await client.get(f"{path}?order=asc&limit=2&after=msg_1")).json()
    assert [item["id"] for item in page["data"]] == ["msg_2", "msg_3"]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("msg_2", "msg_3", True)
    last = (await client.get(f"{path}?order=asc&after=msg_4")).json()
    assert (last["data"], last["first_id"], last["has_more"]) == ([], None, False)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        *((f"limit={value}", "limit") for value in ("0", "101", "-1", "1.5", "many", "", "9" * 99)),
        *((f"limit={value}", "limit") for value in ("0000000019999", "000000001" + "0" * 5000)),
        ("order=up", "order"),
        ("after=msg_unknown", "after"),
        ("after=msg_%00", "after"),
    ],
)
async def test_a_wrong_page_is_refused(client: httpx.AsyncClient, query: str, param: str) -> None:
    response_id = await stored(client)
    answer = await client.get(f"/responses/{response_id}/input_items?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("GET", "/input_items")],
)
async def test_a_response_of_another_tenant_looks_like_an_unknown_one(
    keyed: Town, method: str, path: str
) -> None:
    ours, theirs = ({"authorization": f"Bearer sk-{tenant}"} for tenant in "ab")
    async with keyed.httpx() as client:
        made = await client.post("/responses", content=create(store=True), headers=ours)
        response_id = made.json()["id"]
        answers = [
            await client.request(method, f"/responses/{id}{path}", headers=theirs)
            for id in (response_id, "resp_unknown")
        ]
        kept = await client.get(f"/responses/{response_id}", headers=ours)
    texts = {answer.text.replace(response_id, "resp_unknown") for answer in answers}
    assert ([answer.status_code for answer in answers], len(texts)) == ([404, 404], 1)
    assert kept.status_code == 200


async def test_another_tenant_continues_from_a_stored_response_on_no_transport(
    keyed: Town,
) -> None:
    ours, theirs = ({"authorization": f"Bearer sk-{tenant}"} for tenant in "ab")
    async with keyed.httpx() as client, keyed.connect(additional_headers=theirs) as socket:
        made = await client.post("/responses", content=create(store=True), headers=ours)
        parent = made.json()["id"]
        body = create(previous_response_id=parent)
        answer = await client.post("/responses", content=body, headers=theirs)
        counted = await client.post("/responses/input_tokens", content=body, headers=theirs)
        (event,) = await turn(socket, previous_response_id=parent)
    for error in (answer.json()["error"], counted.json()["error"], event["error"]):
        assert error["code"] == "previous_response_not_found"


async def test_a_deleted_response_is_no_parent_on_any_connection(town: Town) -> None:
    async with town.connect() as first, town.connect() as second, town.httpx() as client:
        parent = (await turn(first, store=True))[-1]["response"]["id"]
        for socket in (first, second):
            events = await turn(socket, previous_response_id=parent)
            assert events[-1]["type"] == "response.completed"
        child = await stored(client, previous_response_id=parent)
        assert (await client.delete(f"/responses/{parent}")).json() == {
            "id": parent,
            "object": "response",
            "deleted": True,
        }
        for socket in (first, second):
            (event,) = await turn(socket, previous_response_id=parent, stream_id="other")
            assert event["error"]["code"] == "previous_response_not_found"
        answer = await client.post("/responses", content=create(previous_response_id=parent))
        assert answer.json()["error"]["code"] == "previous_response_not_found"
        answer = await client.post("/responses", content=create(previous_response_id=child))
        assert answer.status_code == 200


async def test_a_finished_response_is_streamed_again_from_its_object(
    client: httpx.AsyncClient,
) -> None:
    response_id = await stored(client)
    whole = (await client.get(f"/responses/{response_id}?stream=false")).json()
    answer = await client.get(f"/responses/{response_id}?stream=true")
    assert answer.text.endswith("data: [DONE]\n\n")
    events = [orjson.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    check_events(events)
    assert events[-1]["response"] == whole


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true&starting_after=3", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("starting_after=x", "starting_after"),
        ("stream=perhaps", "stream"),
        ("include=all", "include"),
        ("include[]=message.output_text.logprobs&include[]=x", "include"),
    ],
)
async def test_wrong_parameters_of_a_retrieval_are_named(
    client: httpx.AsyncClient, query: str, param: str
) -> None:
    answer = await client.get(f"/responses/{await stored(client)}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_response_of_the_foreground_is_not_cancelled(client: httpx.AsyncClient) -> None:
    assert (await client.post("/responses/resp_x/cancel")).status_code == 404


async def test_background_is_refused_on_a_socket(town: Town) -> None:
    async with town.connect() as socket:
        (event,) = await turn(socket, background=True)
    assert (event["status"], event["error"]["param"]) == (400, "background")


async def test_a_background_response_is_not_taken_while_storage_is_away(town: Town) -> None:
    async with town.httpx() as client:
        answer = await client.post("/responses", content=create(background=True, store=True))
        assert answer.status_code == 503
        unstored = await client.post("/responses", content=create(background=True))
        assert (unstored.status_code, unstored.json()["error"]["param"]) == (400, "background")
    assert town.world.generated == []


BODIES: dict[str, dict[str, Any]] = {
    "text": {"input": "count me"},
    "nothing": {"input": None},
    "instructions and tools": {"input": "x", "instructions": "be brief", "tools": [TOOL]},
    "a history": {"input": HISTORY, "tools": [TOOL]},
    "an image": {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}]
    },
}


@pytest.mark.parametrize("fields", BODIES.values(), ids=BODIES.keys())
async def test_input_tokens_are_those_a_turn_reports(
    opener: Opener, fields: dict[str, Any]
) -> None:
    town = await opener.open(simulated=SimulatedPorts())
    async with town.openai() as client:
        parent = await client.responses.create(model="sim-max", input="before", tools=[TOOL])
        for lineage in ({}, {"previous_response_id": parent.id}):
            asked = {"model": "sim-max"} | fields | lineage
            counted = await client.responses.input_tokens.count(**asked)
            response = await client.responses.create(**asked)
            again = await client.responses.input_tokens.count(**asked)
            assert response.usage is not None
            reported = response.usage.input_tokens
            assert (counted.input_tokens, again.input_tokens) == (reported, reported)
    assert counted.object == "response.input_tokens"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"{", None, "invalid_request_error"),
        (b"{}", "model", "invalid_request_error"),
        (create(model="unknown"), "model", "model_not_found"),
        (create(input=7), "input", "invalid_request_error"),
        (create(previous_response_id="resp_x"), "previous_response_id", None),
        (create(background=True, store=False), "background", "invalid_request_error"),
    ],
)
async def test_what_cannot_be_counted_is_refused_as_its_turn_would_be(
    client: httpx.AsyncClient, body: bytes, param: str | None, code: str | None
) -> None:
    answer = await client.post("/responses/input_tokens", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["code"] == (code or "previous_response_not_found")


async def test_a_count_too_big_is_refused_and_holds_nothing(opener: Opener) -> None:
    town = await opener.open(settings=GatewaySettings(port=0, max_message_bytes=1000))
    async with town.httpx() as client:
        answer = await client.post("/responses/input_tokens", content=create(input="x" * 2000))
    assert answer.status_code == 400
    assert town.held == {0}


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/responses", "POST"),
        ("PUT", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("POST", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("POST", "/v1/responses/resp_1/input_items", "GET, HEAD"),
        ("PUT", "/v1/responses/input_tokens", "DELETE, GET, HEAD, POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/healthz", "GET, HEAD"),
    ],
)
async def test_a_method_a_path_does_not_take_is_a_405_that_says_which_it_takes(
    town: Town, method: str, path: str, allow: str
) -> None:
    async with httpx.AsyncClient(base_url=f"http://{town.host}:{town.port}") as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/responses/", "/v1/responses/a/b", "/v1/chat/completions", "/x" * 999]
)
async def test_an_unknown_path_is_a_404_in_the_shape_of_the_api(town: Town, path: str) -> None:
    root = f"{town.host}:{town.port}"
    async with httpx.AsyncClient(base_url=f"http://{root}") as client:
        answer = await client.post(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"ws://{root}{path}")
    response = refused.value.response
    assert response.status_code == 404
    assert orjson.loads(response.body or b"")["error"]["code"] == "not_found"


async def test_all_pages_are_behind_the_door(keyed: Town) -> None:
    async with keyed.httpx() as client:
        for method, path in (
            ("GET", "/responses/resp_1"),
            ("DELETE", "/responses/resp_1"),
            ("GET", "/responses/resp_1/input_items"),
            ("POST", "/responses/input_tokens"),
            ("GET", "/models"),
            ("GET", "/models/scripted"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_bug_of_a_page_is_a_500_without_its_text(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("secret")

    monkeypatch.setattr(town.leases, "forget", broken)
    async with town.openai() as client:
        made = await client.responses.create(model="scripted", input="hi")
        with pytest.raises(openai.InternalServerError) as failed:
            await client.responses.delete(made.id)
    assert "secret" not in str(failed.value)
