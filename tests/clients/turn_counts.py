"""What a server's `/metrics` say of the turns of one family of clients."""

from collections import Counter

import httpx
from prometheus_client.parser import text_string_to_metric_families
from running_server import RunningServer

Turns = Counter[tuple[str, str, str]]
"""By transport, continuation and status."""


def turns_of(server: RunningServer, client: str) -> Turns:
    return Turns(
        {
            (labels["transport"], labels["continuation"], labels["status"]): int(value)
            for name, labels, value in samples(server)
            if name == "turnwire_turns_total" and labels["client"] == client
        }
    )


def refusals_of(server: RunningServer, client: str) -> Counter[str]:
    """By code."""
    found: Counter[str] = Counter()
    for name, labels, value in samples(server):
        if name == "turnwire_refusals_total" and labels["client"] == client:
            found[labels["code"]] += int(value)
    return found


def samples(server: RunningServer) -> list[tuple[str, dict[str, str], float]]:
    text = httpx.get(f"{server.url.removesuffix('/v1')}/metrics").raise_for_status().text
    families = text_string_to_metric_families(text)
    return [
        (one.name, dict(one.labels), one.value) for family in families for one in family.samples
    ]
