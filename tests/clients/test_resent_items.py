"""What each client sends again of the items it was given: to the server they are the same items.

Every exception is written down in `CHANGES`, member by member, and in docs/clients.md.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from codex_client import Codex
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits
from recording_relay import Exchange, recorded
from resent_items import changes, pairs, same
from running_server import RunningServer

pytestmark = pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning")

CHANGES: dict[str, set[str]] = {
    "codex": {"-reasoning.status"},
    "openai-python": set(),
    "openai-python, sim-max on a lane": {
        "+function_call.parsed_arguments",
        "+message.content.parsed",
    },
    "openai-python, smollm2 on a lane": set(),
    "openai-node": set(),
    "agents-python": set(),
    "ai-sdk, store true": {
        "reasoning as item_reference",
        "message as item_reference",
        "-function_call.id",
        "-function_call.status",
    },
    "ai-sdk, store false": {
        "-function_call.id",
        "-function_call.status",
        "-message.type",
        "-message.status",
        "-message.content.annotations",
        "-message.content.logprobs",
    },
}
"""`-` left out, `+` added, `~` another value."""
STEERED = {
    "sim.tool_turns": "2",
    "sim.parallel_calls": "2",
    "sim.reasoning_tokens": "8",
}
LOOK_UP: dict[str, Any] = {
    "type": "function",
    "name": "look_up",
    "description": "Look a word up.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
    },
}
BOOKS = {"type": "namespace", "name": "books", "description": "Works.", "tools": [LOOK_UP]}
NOTE = {
    "type": "custom",
    "name": "note",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]{1,8}"},
}
LIMITS = ResponsesWebSocketLimits(
    max_lanes=2,
    max_events_per_lane=512,
    max_events=2048,
    max_bytes_per_lane=1 << 22,
    max_bytes=1 << 24,
)

Steps = list[dict[str, Any]]
Items = list[Any]


def check(client: str, exchanges: list[Exchange], *kinds: str) -> None:
    """All that was sent again is the same to us, and differs only where it is known to."""
    found: set[str] = set()
    seen: set[str] = set()
    for item, sent in pairs(exchanges):
        found |= changes(item, sent)
        assert sent is not None, f"{client} leaves out {item}"
        assert same(item, sent) or sent["type"] == "item_reference", (item, sent)
        seen.add(item["type"])
        if item.get("namespace"):
            seen.add("namespace")
        if any(part.get("logprobs") for part in item.get("content", ())):
            seen.add("logprobs")
    assert seen >= set(kinds)
    assert found == CHANGES[client]


SIMULATED: Steps = [{"model": "sim-max", "tools": [BOOKS], "metadata": STEERED}] * 3
"""Reasoning and two calls of a function in a namespace, the answer, one more."""
# Not by chance: on a lane a complete answer gains `parsed`, one that the limit ends does not.
_SMALL = {
    "model": "smollm2",
    "store": False,
    "tools": [NOTE],
    "tool_choice": "none",
    "temperature": 0,
}
SMALL: Steps = [
    _SMALL | {"include": ["message.output_text.logprobs"], "max_output_tokens": 4},
    _SMALL | {"tool_choice": {"type": "custom", "name": "note"}},
    _SMALL | {"max_output_tokens": 4},
]
"""Log probabilities, then a custom tool."""
CONVERSATIONS = pytest.mark.parametrize(
    ("steps", "kinds"),
    [
        (SIMULATED, ("reasoning", "function_call", "namespace", "message")),
        (SMALL, ("message", "logprobs", "custom_tool_call")),
    ],
    ids=["simulated", "smollm2"],
)


def answers(output: Items) -> Items:
    """What follows an answer: the outputs of its calls, else another word of the user."""
    calls = [item for item in output if item.type in ("function_call", "custom_tool_call")]
    return [
        {"type": f"{call.type}_output", "call_id": call.call_id, "output": "a colour"}
        for call in calls
    ] or [{"role": "user", "content": "Go on."}]


@CONVERSATIONS
def test_openai_python_appends_the_output_over_http(
    server: RunningServer, steps: Steps, kinds: tuple[str, ...]
) -> None:
    items: Items = [{"role": "user", "content": "Look it up."}]
    with (
        recorded(server.url) as (url, recorder),
        OpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        for body in steps:
            output = client.responses.create(input=items, **body).output
            items += [*output, *answers(output)]
    check("openai-python", recorder.exchanges, *kinds)


@CONVERSATIONS
async def test_openai_python_appends_the_output_on_a_lane(
    server: RunningServer, steps: Steps, kinds: tuple[str, ...]
) -> None:
    items: Items = [{"role": "user", "content": "Look it up."}]
    with recorded(server.url) as (url, recorder):
        async with (
            AsyncOpenAI(base_url=url, api_key="none") as client,
            client.responses.connect() as connection,
            AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
        ):
            lane = session.lane("one")
            for body in steps:
                request: Any = {"type": "response.create", "input": items} | body
                await lane.send(request)
                output = (await lane.get_final_response()).output
                items += [*(item.to_dict() for item in output), *answers(list(output))]
    check(f"openai-python, {steps[0]['model']} on a lane", recorder.exchanges, *kinds)


@CONVERSATIONS
def test_openai_node_appends_the_output(
    npm: Path, server: RunningServer, steps: Steps, kinds: tuple[str, ...]
) -> None:
    with recorded(server.url) as (url, recorder):
        ran("node", "openai_repeat.mjs", url, json.dumps(steps), folder=npm)
    check("openai-node", recorder.exchanges, *kinds)


@pytest.mark.parametrize("store", ["true", "false"])
def test_the_ai_sdk_keeps_its_messages(npm: Path, server: RunningServer, store: str) -> None:
    """Reasoning comes only where it can refer to it: what is not encrypted it leaves out."""
    steering = {"sim.parallel_calls": "2"} | (
        {"sim.reasoning_tokens": "8"} if store == "true" else {}
    )
    with recorded(server.url, lambda _: {"metadata": steering}) as (url, recorder):
        ran("node", "ai_sdk_repeat.mjs", url, "sim-max", store, folder=npm)
    check(f"ai-sdk, store {store}", recorder.exchanges, "function_call", "message")
    (answered,) = recorder.exchanges[-1].returned[-1:]
    assert answered["content"][0]["text"] == "teal"


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_the_agents_sdk_repeats_its_run(
    agents_python: Path, server: RunningServer, transport: str
) -> None:
    script = Path(__file__).parent / "agents_run.py"
    with recorded(server.url, lambda _: {"metadata": STEERED}) as (url, recorder):
        ran(str(agents_python), str(script), url, "sim-max", transport)
    check("agents-python", recorder.exchanges, "reasoning", "function_call", "message")


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_codex_repeats_its_thread(
    npm: Path, server: RunningServer, tmp_path: Path, transport: str
) -> None:
    """Over HTTP with every turn; over WebSocket when it is resumed, on another socket."""
    steering = {"metadata": STEERED | {"sim.tool_turns": "4"}}
    with recorded(server.url, lambda _: steering) as (url, recorder):
        codex = Codex.of(npm, url, tmp_path)
        if transport == "http":
            codex.configure("supports_websockets = true", "supports_websockets = false")
        for arguments in (["Look around."], ["resume", "--last", "Look again."]):
            run = codex.exec(*arguments)
            assert (run.code, run.complaints) == (0, [])
    check("codex", recorder.exchanges, "reasoning", "function_call", "message")


def ran(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
