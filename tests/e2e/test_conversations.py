"""Conversations with a real model and with simulated ones, over both transports."""

import io
import re
from contextlib import redirect_stdout
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response
from responses_client import Ended, open_socket
from running_server import RunningServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    # The official client opens its socket in a way that its library is about to give up.
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context:DeprecationWarning"),
]

README = Path(__file__).parents[2] / "README.md"
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_output_tokens": 16}
FACT = "I have a cat called Luna."
QUESTIONS = ("Name a river in France.", "What is the name of my cat?")
_numbers = count(1)


def own() -> dict[str, Any]:
    """Options of a conversation that shares no prompt with another one, whose turns might be in
    the model's memory as well: then more would be cached than the conversation itself left."""
    return {"temperature": 0.0, "instructions": f"You are assistant number {next(_numbers)}."}


IN_JAPANESE = [
    {"role": "user", "content": "Say hello in Japanese."},
    {"role": "assistant", "content": "こんにちは、世界\N{FULLWIDTH EXCLAMATION MARK}🌸🦊"},
    {"role": "user", "content": "Say hello in Japanese."},
]


def client_of(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="none", max_retries=0)


def sdk_turn(connection: ResponsesConnection, text: str, parent: Response | None) -> Response:
    """One turn with the unmodified client, as the README does it."""
    more: dict[str, Any] = {} if parent is None else {"previous_response_id": parent.id}
    connection.response.create(model="smollm2", input=text, store=False, **GREEDY, **more)
    for event in connection:
        assert event.type not in ("error", "response.failed"), event
        if event.type in ("response.completed", "response.incomplete"):
            return event.response
    raise AssertionError("the socket was closed")


def evaluates_only_the_new(before: Ended, after: Ended) -> bool:
    """The worker held all of the turn before: its prompt and what it sampled, but for the last
    token, which was never evaluated."""
    return after.cached_tokens == before.input_tokens + before.output_tokens - 1


def test_the_third_turn_knows_what_only_the_first_said_over_a_websocket(
    server: RunningServer,
) -> None:
    with client_of(server) as client, client.responses.connect() as connection:
        first = sdk_turn(connection, FACT, None)
        second = sdk_turn(connection, QUESTIONS[0], first)
        third = sdk_turn(connection, QUESTIONS[1], second)
    assert "Luna" not in second.output_text
    assert "Luna" in third.output_text


def test_the_third_turn_knows_what_only_the_first_said_over_http(
    server: RunningServer,
) -> None:
    with client_of(server) as client:
        answers = [client.responses.create(model="smollm2", input=FACT, **GREEDY)]
        for question in QUESTIONS:
            parent = answers[-1].id
            answers.append(
                client.responses.create(
                    model="smollm2", input=question, previous_response_id=parent, **GREEDY
                )
            )
    assert [answer.store for answer in answers] == [True] * 3
    assert "Luna" not in answers[1].output_text
    assert "Luna" in answers[2].output_text


def test_what_http_stored_goes_on_over_a_websocket(server: RunningServer) -> None:
    with client_of(server) as client:
        first = client.responses.create(model="smollm2", input=FACT, **GREEDY)
        with client.responses.connect() as connection:
            answer = sdk_turn(connection, QUESTIONS[1], first)
    assert "Luna" in answer.output_text


def test_the_snippet_of_the_readme_runs(server: RunningServer) -> None:
    found = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (snippet,) = (one for one in found if "responses.connect()" in one)
    assert "http://127.0.0.1:8080/v1" in snippet
    said = io.StringIO()
    with redirect_stdout(said):
        exec(snippet.replace("http://127.0.0.1:8080/v1", server.url), {})
    assert len([line for line in said.getvalue().splitlines() if line.strip()]) >= 2


def test_each_turn_evaluates_only_its_new_tokens(server: RunningServer) -> None:
    options = own() | {"max_output_tokens": 16}
    with open_socket(server.url) as socket:
        turns = [socket.turn("smollm2", FACT, **options).succeeded()]
        for question in QUESTIONS:
            turns.append(socket.turn("smollm2", question, turns[-1], **options).succeeded())
    for before, after in pairwise(turns):
        assert evaluates_only_the_new(before, after)
        assert after.cached_tokens < after.input_tokens


@pytest.mark.parametrize("limit", [64, 9, 10, 11], ids=["stop", "cut", "cut a byte", "cut later"])
def test_the_ids_of_emoji_and_japanese_are_kept_as_they_were_sampled(
    server: RunningServer, limit: int
) -> None:
    """With the prompt rendered from text, ids would differ wherever characters were split."""
    options = own() | {"max_output_tokens": limit}
    with open_socket(server.url) as socket:
        turns = [socket.turn("smollm2", IN_JAPANESE, **options).succeeded()]
        for _ in range(2):
            turns.append(socket.turn("smollm2", "Say hello again.", turns[-1], **options))
    assert re.search("[\u3040-\u30ff\u4e00-\u9fff]", turns[0].text)
    for before, after in pairwise(turns):
        assert evaluates_only_the_new(before, after.succeeded())


def test_random_characters_cut_in_their_middle_are_kept_as_they_were_sampled(
    server: RunningServer,
) -> None:
    """Answers at high temperature, one token longer each time: some end inside a character."""
    options = own() | {"temperature": 1.2}
    cut = 0
    with open_socket(server.url) as socket:
        for limit in range(3, 19):
            options["max_output_tokens"] = limit
            first = socket.turn("smollm2", IN_JAPANESE, **options).succeeded()
            second = socket.turn("smollm2", "Go on.", first, **options).succeeded()
            assert evaluates_only_the_new(first, second)
            cut += first.text.endswith("\N{REPLACEMENT CHARACTER}")
    assert cut > 0


@pytest.mark.parametrize("turns", [3, 30])
def test_the_whole_context_reaches_the_engine_at_any_turn_of_a_websocket(
    server: RunningServer, turns: int
) -> None:
    with open_socket(server.url) as socket:
        parent = socket.turn("sim-max", "remember:COLOUR=teal").succeeded()
        for number in range(2, turns):
            parent = socket.turn("sim-max", f"Step {number}.", parent).succeeded()
            assert "teal" not in parent.text
        assert socket.turn("sim-max", "recall:COLOUR", parent).succeeded().text == "teal"
        assert socket.turn("sim-max", "recall:COLOUR").succeeded().text == "unknown"


@pytest.mark.parametrize("turns", [3, 30])
def test_the_whole_context_reaches_the_engine_at_any_turn_over_http(
    server: RunningServer, turns: int
) -> None:
    questions = ["remember:COLOUR=teal", *(f"Step {number}." for number in range(2, turns))]
    with client_of(server) as client:
        parent: str | None = None
        for question in [*questions, "recall:COLOUR"]:
            answer = client.responses.create(
                model="sim-max", input=question, previous_response_id=parent
            )
            parent = answer.id
        assert answer.output_text == "teal"
