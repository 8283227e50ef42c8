"""What `/metrics` and the log say of turns."""

import asyncio
import logging
import re
from typing import Any

import pytest
from gateway_worlds import Opener, Town, turn
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from scripted_ports import MODEL

from turnwire.gateway.caller import caller_of, family
from turnwire.gateway.stage_metrics import StageMetrics
from turnwire.pipelines.config import GatewaySettings
from turnwire.pipelines.stages import STAGES

LABELS = ("client", "transport", "continuation", "status", "code", "result", "kind")
ANSWERED: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
ANSWERED.append({"role": "user", "content": "again"})


async def metrics(town: Town) -> dict[tuple[str, ...], float]:
    """Counters by their label values."""
    async with town.httpx() as client:
        text = (await client.get(f"http://{town.host}:{town.port}/metrics")).text
    return {
        tuple(sample.labels[name] for name in LABELS if name in sample.labels): sample.value
        for found in text_string_to_metric_families(text)
        for sample in found.samples
        if sample.name.endswith("_total") and sample.labels
    }


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("codex_exec/0.171.0 (Debian 12.0.0; x86_64)", "codex"),
        ("codex_cli_rs/0.171.0", "codex"),
        ("OpenAI/Python 3.57.0", "openai-python"),
        ("AsyncOpenAI/Python 3.57.0", "openai-python"),
        ("Agents/Python 0.24.0", "agents-python"),
        ("OpenAI/JS 7.59.0", "openai-node"),
        ("ai/6.0.326 ai-sdk/openai/3.0.141", "ai-sdk"),
        ("somebody/1.0", "other"),
        ("", "other"),
    ],
)
def test_clients_are_known_by_their_family(agent: str, expected: str) -> None:
    assert family(agent) == expected


def test_a_conversation_is_the_clients_own_name_for_it_or_the_lane() -> None:
    assert caller_of({"thread-id": "t"}, "http", "acme").conversation == "t"
    socket = caller_of({}, "websocket", "acme", "conn_1")
    assert socket.on_lane(None).conversation == "conn_1"
    assert socket.on_lane("a").conversation == "conn_1/a"


async def test_each_turn_is_counted_by_how_it_came(opener: Opener) -> None:
    town = await opener.open()
    headers = {"user-agent": "codex_exec/0.171.0"}
    async with town.connect(user_agent_header=None, additional_headers=headers) as socket:
        first = (await turn(socket))[-1]["response"]["id"]
        await turn(socket, previous_response_id=first)
        await turn(socket, input=ANSWERED)
        await turn(socket, previous_response_id="resp_unknown")
        await turn(socket, input=ANSWERED)
    common = ("codex", "websocket")
    assert await metrics(town) == {
        (*common, "new", "completed"): 1,
        (*common, "incremental", "completed"): 1,
        (*common, "full_cached", "completed"): 1,
        (*common, "previous_response_not_found"): 1,
        (*common, "full_after_error", "completed"): 1,
        (*common, "miss"): 2,
    }


async def test_a_history_known_by_its_content_is_counted_beside_how_it_came(
    opener: Opener,
) -> None:
    town = await opener.open()
    asked = {"role": "user", "content": "hi"}
    async with town.connect() as socket:
        output = (await turn(socket, input=[asked]))[-1]["response"]["output"]
        await turn(socket, input=[asked, *output, asked])
    counted = await metrics(town)
    assert counted["python", "websocket", "full_cached", "completed"] == 1
    assert counted["python", "websocket", "hit"] == 1


async def test_an_error_on_one_socket_explains_a_full_history_on_the_next(
    opener: Opener,
) -> None:
    town = await opener.open()
    for body in ({"previous_response_id": "resp_unknown"}, {"input": ANSWERED}):
        headers = {"thread-id": "thread_1"}
        async with town.connect(additional_headers=headers) as socket:
            await turn(socket, **body)
    counted = await metrics(town)
    assert counted["python", "websocket", "full_after_error", "completed"] == 1


async def test_http_is_counted_apart(opener: Opener) -> None:
    town = await opener.open()
    async with town.openai() as client:
        await client.responses.create(model=MODEL.name, input="hi", store=False)
        await client.responses.create(model=MODEL.name, input=ANSWERED, store=False)
    counted = await metrics(town)
    assert counted["openai-python", "http", "new", "completed"] == 1
    assert counted["openai-python", "http", "full", "completed"] == 1


async def test_each_stage_of_a_turn_is_counted_once(opener: Opener) -> None:
    town = await opener.open()
    async with town.connect() as socket:
        first = (await turn(socket))[-1]["response"]["id"]
        await turn(socket, previous_response_id=first)
    async with town.httpx() as client:
        text = (await client.get(f"http://{town.host}:{town.port}/metrics")).text
    samples = [
        sample
        for found in text_string_to_metric_families(text)
        if found.name == "turnwire_turn_stage_seconds"
        for sample in found.samples
    ]
    counts = {s.labels["stage"]: s.value for s in samples if s.name.endswith("_count")}
    assert counts.keys() == set(STAGES)
    assert {counts[stage] for stage in ("receive", "prepare", "commit", "settle")} == {2.0}
    sums = {s.labels["stage"]: s.value for s in samples if s.name.endswith("_sum")}
    assert 0 < sums["prepare"] < 60


def test_a_stage_is_in_the_first_bucket_that_holds_it() -> None:
    metrics = StageMetrics()
    for us in (50, 51, 10**9):
        metrics.add({"prepare": us})
    (found,) = metrics.collect()
    buckets = {
        sample.labels["le"]: sample.value
        for sample in found.samples
        if sample.labels["stage"] == "prepare" and "le" in sample.labels
    }
    assert (buckets["5e-05"], buckets["0.0001"], buckets["10"], buckets["+Inf"]) == (1, 2, 2, 3)


async def test_a_turn_is_one_line_of_the_log(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turnwire.turn")
    town = await opener.open()
    async with town.connect() as socket:
        first = (await turn(socket))[-1]["response"]["id"]
        await turn(socket, previous_response_id=first)
    async with town.httpx() as client:  # whoever looks finds all that has ended
        await client.get(f"http://{town.host}:{town.port}/metrics")
    lines = [line for line in caplog.messages if line.startswith("turn.ended")]
    assert len(lines) == 2
    assert f"response_id={first} client=python transport=websocket" in lines[0]
    assert "continuation=incremental status=completed" in lines[1]
    assert re.search(r" us=receive:\d+,queue:\d+,route:\d+,prepare:\d+,prefill:", lines[1])


async def test_the_lines_of_turns_come_also_when_nobody_asks(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turnwire.turn")
    noted = asyncio.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            noted.set()

    handler = Heard()
    logging.getLogger("turnwire.turn").addHandler(handler)
    try:
        town = await opener.open()
        async with town.connect() as socket, asyncio.timeout(10):
            await turn(socket)
            await noted.wait()
    finally:
        logging.getLogger("turnwire.turn").removeHandler(handler)


async def test_metrics_are_for_those_who_have_a_key(opener: Opener) -> None:
    town = await opener.open(settings=GatewaySettings(port=0, api_key=SecretStr("secret")))
    async with town.httpx() as client:
        address = f"http://{town.host}:{town.port}/metrics"
        assert (await client.get(address)).status_code == 401
        authorized = await client.get(address, headers={"authorization": "Bearer secret"})
        assert authorized.status_code == 200


async def test_tools_that_nothing_runs_are_counted_by_their_kind(opener: Opener) -> None:
    town = await opener.open()
    custom = {"type": "custom", "name": "c"}
    tools = [{"type": "web_search"}, {"type": "web_search"}, {"type": "made_up"}, custom]
    space = {"type": "namespace", "name": "n", "tools": [{"type": "mcp"}, custom]}
    async with town.connect() as socket:
        answered = await turn(socket, tools=[*tools, space])
    assert answered[-1]["type"] == "response.completed"
    counted = await metrics(town)
    dropped = {labels[1]: count for labels, count in counted.items() if len(labels) == 2}
    assert dropped == {"web_search": 2, "mcp": 1, "other": 1}
