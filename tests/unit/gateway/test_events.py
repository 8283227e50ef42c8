"""docs/events.md, cell by cell: what is sent under which setting, and whose schemas it fits."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
import pytest
from event_scenarios import ON_SOCKETS_ONLY, RUN, SCENARIOS, frame, over_http, over_socket
from event_validators import complaint, response_complaint
from gateway_worlds import Opener, heard
from scripted_ports import calls
from simulated_ports import SimulatedPorts
from turn_worlds import check_items

from turnwire.pipelines.config import GatewaySettings

TABLE = Path(__file__).parents[3] / "docs" / "events.md"
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "Open Responses": {"reasoning_events": "open_responses", "echo_schema": "open_responses"},
    "hidden": {"reasoning_events": "hidden"},
}
TRANSPORTS = {"socket": over_socket, "HTTP": over_http}

PATCHING = calls("patch", '{"input":"a', 'b"}')

Events = dict[str, list[bytes]]


class Row(NamedTuple):
    event: str
    scenarios: tuple[str, ...]
    """Empty: all that no other row of the event names."""
    cells: dict[tuple[str, str], str]
    """By setting and validator."""


def rows() -> Iterator[Row]:
    lines = [line.strip("|\n ").split(" | ") for line in TABLE.read_text().splitlines()]
    wide = [cells for cells in lines if len(cells) == 2 + 2 * len(SETTINGS)]
    columns = [tuple(column.split(": ")) for column in wide[0][2:]]
    for event, scenarios, *cells in wide[2:]:
        named = () if scenarios == "others" else tuple(scenarios.split(", "))
        yield Row(event.strip("`"), named, dict(zip(columns, cells, strict=True)))


ROWS = list(rows())


async def _all_events() -> dict[tuple[str, str], Events]:
    found: dict[tuple[str, str], Events] = {}
    async with AsyncExitStack() as stack:
        opener = Opener(stack)
        for setting, values in SETTINGS.items():
            for transport, play in TRANSPORTS.items():
                simulated = SimulatedPorts()
                settings = GatewaySettings(port=0, **values)
                town = await opener.open(settings=settings, simulated=simulated)
                events = found[setting, transport] = {}
                for scenario in SCENARIOS:
                    if transport == "HTTP" and scenario in ON_SOCKETS_ONLY:
                        continue
                    simulated.leaves = scenario == "waiting"
                    simulated.instead = PATCHING if scenario == "custom call" else None
                    events[scenario] = await play(town, scenario)
    return found


@pytest.fixture(scope="module")
def all_events() -> dict[tuple[str, str], Events]:
    """By setting and transport."""
    return asyncio.run(_all_events())


def kind(event: bytes) -> str:
    return str(orjson.loads(event)["type"])


def covered(row: Row) -> set[str]:
    if row.scenarios:
        return set(row.scenarios)
    named = {s for other in ROWS if other.event == row.event for s in other.scenarios}
    return set(SCENARIOS) - named


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.event} {' '.join(row.scenarios)}")
def test_every_cell_of_the_table_is_true(
    all_events: dict[tuple[str, str], Events], row: Row, transport: str
) -> None:
    if transport == "HTTP" and covered(row) <= ON_SOCKETS_ONLY:
        assert not any(kind(e) == row.event for e in _flat(all_events, transport))
        return
    for (setting, validator), cell in row.cells.items():
        events = all_events[setting, transport]
        sent = [e for s in covered(row) for e in events.get(s, ()) if kind(e) == row.event]
        verdicts = {"no" if complaint(validator, event) else "yes" for event in sent}
        said = {"-": set(), "yes": {"yes"}, "no": {"no"}}[cell]
        assert verdicts == said, (setting, validator, [complaint(validator, e) for e in sent])


def _flat(all_events: dict[tuple[str, str], Events], transport: str) -> Iterator[bytes]:
    for (_, other), events in all_events.items():
        if other == transport:
            for sent in events.values():
                yield from sent


def test_the_table_names_every_event_that_is_sent(
    all_events: dict[tuple[str, str], Events],
) -> None:
    assert {kind(e) for transport in TRANSPORTS for e in _flat(all_events, transport)} == {
        row.event for row in ROWS
    }


@pytest.mark.parametrize("setting", SETTINGS)
def test_both_transports_send_the_same_events(
    all_events: dict[tuple[str, str], Events], setting: str
) -> None:
    for scenario, events in all_events[setting, "HTTP"].items():
        assert _steps(events) == _steps(all_events[setting, "socket"][scenario])


def _steps(events: list[bytes]) -> list[str]:
    """Kinds of events; how text is cut into deltas is a matter of time."""
    kinds = [kind(event) for event in events]
    return [k for k, before in zip(kinds, ["", *kinds], strict=False) if k != before]


@pytest.mark.parametrize("setting", SETTINGS)
def test_items_are_whole_and_numbers_have_no_gap(
    all_events: dict[tuple[str, str], Events], setting: str
) -> None:
    for transport in TRANSPORTS:
        for scenario, sent in all_events[setting, transport].items():
            events = [orjson.loads(event) for event in sent]
            if scenario not in ON_SOCKETS_ONLY:
                check_items(events)
                assert [e["sequence_number"] for e in events] == list(range(len(events)))


@pytest.mark.parametrize(
    ("setting", "kinds"),
    [
        ("default", ["reasoning", "message"]),
        ("Open Responses", ["reasoning", "message"]),
        ("hidden", ["message"]),
    ],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_reasoning_is_shown_as_the_setting_says_and_always_counted(
    all_events: dict[tuple[str, str], Events], setting: str, kinds: list[str], transport: str
) -> None:
    final = orjson.loads(all_events[setting, transport]["reasoning"][-1])["response"]
    assert [item["type"] for item in final["output"]] == kinds
    usage = final["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 6}
    assert usage["output_tokens"] == 12
    if "reasoning" in kinds:
        assert final["output"][0]["content"][0]["type"] == "reasoning_text"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("scenario", ["cut", "cut reasoning", "cut call"])
def test_a_capped_answer_is_incomplete_and_its_last_item_too(
    all_events: dict[tuple[str, str], Events], scenario: str, transport: str
) -> None:
    for setting in SETTINGS:
        final = orjson.loads(all_events[setting, transport][scenario][-1])
        assert final["type"] == "response.incomplete"
        assert final["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert final["response"]["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("setting", ["default", "Open Responses"])
async def test_a_whole_response_over_http_fits_the_setting_too(
    opener: Opener, setting: str
) -> None:
    settings = GatewaySettings(port=0, **SETTINGS[setting])
    town = await opener.open(settings=settings, simulated=SimulatedPorts())
    validator = "OpenAI" if setting == "default" else setting
    # Open Responses knows no custom calls.
    others = {"failed", "refused by the engine"}
    if setting == validator:
        others.add("custom call")
    async with town.httpx() as client:
        for scenario in set(SCENARIOS) - ON_SOCKETS_ONLY - others:
            answer = await client.post("/responses", content=frame(scenario, store=True))
            assert response_complaint(validator, answer.content) == ""
            asked = {"include": "reasoning.encrypted_content"}
            stored = await client.get(f"/responses/{answer.json()['id']}", params=asked)
            assert stored.content == answer.content


async def test_a_second_turn_reports_what_was_cached_and_what_was_written(opener: Opener) -> None:
    town = await opener.open(simulated=SimulatedPorts())
    async with town.connect() as socket:
        await socket.send(frame("text").decode())
        first = (await heard(socket))[-1]["response"]
        await socket.send(frame("text", previous_response_id=first["id"]).decode())
        second = (await heard(socket))[-1]["response"]
    before, after = first["usage"], second["usage"]
    assert before["input_tokens_details"]["cached_tokens"] == 0
    assert before["input_tokens_details"]["cache_write_tokens"] == before["input_tokens"]
    details = after["input_tokens_details"]
    assert details["cached_tokens"] == before["input_tokens"]
    assert details["cached_tokens"] + details["cache_write_tokens"] == after["input_tokens"]
    assert after["total_tokens"] == after["input_tokens"] + after["output_tokens"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("echo_schema", ["openai", "open_responses"])
async def test_the_echo_can_be_left_out_of_all_but_the_final_object(
    opener: Opener, transport: str, echo_schema: Literal["openai", "open_responses"]
) -> None:
    settings = GatewaySettings(port=0, trim_echo=True, echo_schema=echo_schema)
    town = await opener.open(settings=settings, simulated=SimulatedPorts())
    sent = await TRANSPORTS[transport](town, "text")
    responses = [event["response"] for e in sent if "response" in (event := orjson.loads(e))]
    for response in responses[:-1]:
        assert (response["tools"], response["instructions"]) == ([], None)
    assert responses[-1]["instructions"] == "be brief"
    assert responses[-1]["tools"][0]["name"] == RUN["name"]
    for event in sent:
        for validator in ("OpenAI", "Open Responses"):
            assert complaint(validator, event) == ""
