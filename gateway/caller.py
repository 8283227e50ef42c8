"""Who calls, as far as an operator wants to tell clients apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Transport = Literal["websocket", "http"]

_FAMILIES: Final = (
    ("codex", "codex"),
    ("agents/python", "agents-python"),
    ("agents/javascript", "agents-js"),
    ("asyncopenai/python", "openai-python"),
    ("openai/python", "openai-python"),
    ("openai/js", "openai-node"),
    ("ai/", "ai-sdk"),
    ("ai-sdk/", "ai-sdk"),
    ("python/", "python"),
    ("curl/", "curl"),
)
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Caller:
    """A client of one tenant. `conversation` is empty where nothing names it."""

    family: str
    transport: Transport
    tenant: str
    conversation: str

    def on_lane(self, lane: str | None) -> "Caller":
        """Lanes of one socket are conversations of their own, unless the client named its."""
        if lane is None:
            return self
        return Caller(self.family, self.transport, self.tenant, f"{self.conversation}/{lane}")


def caller_of(
    headers: Mapping[str, str], transport: Transport, tenant: str, connection_id: str = ""
) -> Caller:
    """`connection_id` stands for the conversation of a client that does not name it."""
    conversation = headers.get("thread-id", "")[:256] or connection_id
    return Caller(family(headers.get("user-agent", "")), transport, tenant, conversation)


def family(user_agent: str) -> str:
    """One of a few names, whatever clients send: it becomes a label of metrics."""
    agent = user_agent.lower()
    return next((name for start, name in _FAMILIES if agent.startswith(start)), OTHER)
