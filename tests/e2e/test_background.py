"""Background responses with the SDK, on both databases: across dropped connections, through any
gateway, and beyond the death of a gateway or of storage."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urljoin

import httpx
import openai
import psutil
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from responses_client import RUNNING
from running_server import RunningServer, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MOST_TRIES = 64
"""The kernel deals connections out at random: so many all with one are 1 in 2 ** 63."""
only_postgresql = pytest.mark.parametrize("stored_server", ["postgresql"], indirect=True)
"""Where there is another one of what is killed."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def one_a_gateway(server: RunningServer, stack: ExitStack) -> dict[int, OpenAI]:
    """A client with one fresh connection to each gateway, by its process."""
    found: dict[int, OpenAI] = {}
    replicas = int(server.settings.get("TURNWIRE_GATEWAY__REPLICAS", "1"))
    wait_until(lambda: len(server.pids("ServeReplica:gateway")) == replicas)
    gateways = [psutil.Process(pid) for pid in server.pids("ServeReplica:gateway")]
    for _ in range(MOST_TRIES):
        http = stack.enter_context(httpx.Client(limits=httpx.Limits(max_connections=1), timeout=60))
        stream = http.get(urljoin(server.url, "/healthz")).extensions["network_stream"]
        port = stream.get_extra_info("client_addr")[1]
        for gateway in gateways:
            if port in {one.raddr.port for one in gateway.net_connections("tcp") if one.raddr}:
                found.setdefault(gateway.pid, client_of(server, http_client=http))
        if len(found) == replicas:
            return found
    raise AssertionError(f"{MOST_TRIES} connections went to {len(found)} gateways")


def two_clients(server: RunningServer, stack: ExitStack) -> tuple[OpenAI, OpenAI]:
    """Of two gateways where there are two."""
    more = stack.enter_context(client_of(server))
    clients = [*one_a_gateway(server, stack).values(), more]
    return clients[0], clients[1]


def client_of(server: RunningServer, **options: Any) -> OpenAI:  # noqa: ANN401 -- of the SDK
    return OpenAI(base_url=server.url, api_key="none", **options)


def begun(client: OpenAI, tokens: int, model: str = "sim-250") -> str:
    response = client.responses.create(
        model=model,
        input="go",
        background=True,
        metadata={"sim.output_tokens": str(tokens)},
        max_output_tokens=100_000,
    )
    assert response.status == "queued"
    return response.id


def polled(client: OpenAI, response_id: str) -> Response:
    found: list[Response] = []

    def is_over() -> bool:
        found.append(client.responses.retrieve(response_id))
        return found[-1].status not in RUNNING

    wait_until(is_over)
    return found[-1]


def kill(pid: int) -> None:
    process = psutil.Process(pid)
    process.kill()
    process.wait(timeout=60)


def text_of(events: list[ResponseStreamEvent]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_a_stream_that_drops_is_resumed_through_another_connection(
    stored_server: RunningServer, stack: ExitStack
) -> None:
    here, there = two_clients(stored_server, stack)
    events: list[ResponseStreamEvent] = []
    with here.responses.create(
        model="sim-250",
        input="go",
        background=True,
        stream=True,
        metadata={"sim.output_tokens": "500"},
        max_output_tokens=500,
    ) as stream:
        for event in stream:
            events.append(event)
            if len(text_of(events)) > 100:
                break
    assert events[0].type == "response.created"
    response_id = events[0].response.id
    assert there.responses.retrieve(response_id).status == "in_progress"
    last = events[-1].sequence_number
    with there.responses.retrieve(response_id, stream=True, starting_after=last) as resumed:
        events += resumed
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    whole = polled(here, response_id)
    assert events[-1].response.to_dict() == whole.to_dict()
    assert text_of(events) == whole.output_text
    with there.responses.stream(response_id=response_id) as again:
        assert again.get_final_response().output_text == whole.output_text
    following = there.responses.create(
        model="sim-250", input="and?", previous_response_id=response_id
    )
    assert following.status == "completed"
    wait_until(lambda: response_id in stored_server.ledger())
    assert stored_server.ledger()[response_id]["output_tokens"] == 500
    there.responses.delete(response_id)
    for client in (here, there):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response_id)


def test_one_is_cancelled_and_its_gateway_stops_it(
    stored_server: RunningServer, stack: ExitStack
) -> None:
    here, there = two_clients(stored_server, stack)
    response_id = begun(here, 100_000)
    wait_until(lambda: there.responses.retrieve(response_id).status == "in_progress")
    assert there.responses.cancel(response_id).status == "cancelled"
    wait_until(lambda: response_id in stored_server.ledger())
    assert stored_server.ledger()[response_id]["status"] == "cancelled"
    for client in (here, there):
        assert client.responses.cancel(response_id).status == "cancelled"
        assert client.responses.retrieve(response_id).status == "cancelled"


def test_a_chain_is_compacted_and_goes_on_through_another_connection(
    stored_server: RunningServer, stack: ExitStack
) -> None:
    here, there = two_clients(stored_server, stack)
    first = here.responses.create(model="sim-max", input="remember:color=blue " + "and more " * 99)
    compacted = there.responses.compact(model="sim-max", previous_response_id=first.id)
    window: list[Any] = [item.model_dump(exclude_none=True) for item in compacted.output]
    window.append({"role": "user", "content": "recall:color"})
    answer = there.responses.create(model="sim-max", input=window, background=True)
    assert polled(here, answer.id).output_text == "blue"
    trigger: Any = {"type": "compaction_trigger"}
    summary = here.responses.create(
        model="sim-max", input=[trigger], previous_response_id=answer.id, background=True
    )
    assert [item.type for item in polled(there, summary.id).output] == ["compaction"]
    last = there.responses.create(
        model="sim-max", input="recall:color", previous_response_id=summary.id
    )
    assert last.output_text == "blue"
    assert first.usage is not None
    assert last.usage is not None
    assert last.usage.input_tokens < first.usage.input_tokens


@only_postgresql
def test_all_that_a_killed_gateway_ran_ends_and_nothing_else_is_touched(
    stored_server: RunningServer, stack: ExitStack
) -> None:
    (victim, doomed), (_, safe) = one_a_gateway(stored_server, stack).items()
    over = begun(doomed, 10)
    assert polled(doomed, over).error is None
    lost = [begun(doomed, 5000) for _ in range(10)]
    kept = [begun(safe, 1000) for _ in range(10)]
    watched = safe.responses.retrieve(lost[0], stream=True)
    kill(victim)
    with watched:
        events = list(watched)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.failed"
    client = stack.enter_context(client_of(stored_server))
    assert {polled(client, response_id).status for response_id in lost} == {"failed"}
    whole = [polled(client, response_id) for response_id in kept]
    assert {response.status for response in whole} == {"completed"}
    assert polled(client, over).status == "completed"
    wait_until(lambda: set(kept) <= set(stored_server.ledger()))
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="sim-250", input="and?", previous_response_id=lost[0])
    assert refused.value.code == "previous_response_not_found"


@only_postgresql
def test_storage_is_killed_while_they_run_and_all_are_completed(
    stored_server: RunningServer, stack: ExitStack
) -> None:
    one, other = one_a_gateway(stored_server, stack).values()
    running = [begun(client, 1000) for client in (one, other) for _ in range(5)]
    stream = one.responses.retrieve(running[0], stream=True)
    for pid in stored_server.pids("ServeReplica:storage"):
        kill(pid)
    with stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    client = stack.enter_context(client_of(stored_server, max_retries=10))
    assert {polled(client, response_id).status for response_id in running} == {"completed"}
    wait_until(lambda: set(running) <= set(stored_server.ledger()))
