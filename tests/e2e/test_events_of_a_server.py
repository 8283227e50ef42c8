"""Every event of a whole server fits the schemas its settings are for."""

from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest
from event_scenarios import NEED_A_SCRIPT, ON_SOCKETS_ONLY, SCENARIOS, over_http, over_socket
from event_validators import complaint
from gateway_worlds import Town
from running_server import RunningServer
from websockets.asyncio.client import connect

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

OUTSIDE = {
    "default": {"refused by the engine"},
    "Open Responses": {"compaction", "steer"},
}
"""Scenarios with an event that does not fit; docs/events.md says why."""


@dataclass(frozen=True)
class Remote:
    """What the scenarios need of a gateway."""

    url: str

    def connect(self, **options: Any) -> connect:  # noqa: ANN401 -- those of the client library
        return connect(self.url.replace("http", "ws", 1) + "/responses", max_size=None, **options)

    def httpx(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=30)


async def _check(server: RunningServer, setting: str, validator: str) -> None:
    remote = cast(Town, Remote(server.url))
    for scenario in SCENARIOS.keys() - NEED_A_SCRIPT:
        events = await over_socket(remote, scenario)
        if scenario not in ON_SOCKETS_ONLY:
            events += await over_http(remote, scenario)
        fits = [complaint(validator, event) == "" for event in events]
        assert all(fits) == (scenario not in OUTSIDE[setting]), scenario


async def test_by_default_all_events_are_those_of_openai(server: RunningServer) -> None:
    await _check(server, "default", "OpenAI")


async def test_under_its_setting_all_events_are_those_of_open_responses(
    open_responses_server: RunningServer,
) -> None:
    await _check(open_responses_server, "Open Responses", "Open Responses")
