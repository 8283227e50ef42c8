"""Whatever is asked of a connection's state: only the client's errors come out, nothing leaks."""

import itertools
import json

import orjson
from any_bodies import BODIES
from hypothesis import given
from hypothesis import strategies as st

from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.connection import ConnectionState
from turnwire.pipelines.protocol.errors import ApiError, Internal

MODEL = m.Model("sim-max", "items")
ANSWER = b'[{"type":"message","id":"msg_%d","role":"assistant","content":"yes"}]'

plain = st.sampled_from([{"input": "hi"}, {"input": []}, {"store": False}, {"generate": False}])
frames = plain | plain | BODIES | st.binary(max_size=30)
lanes = st.sampled_from([None, "a", "b"])
asks = st.tuples(st.just("prepare"), frames, lanes, st.integers(0, 5), st.booleans())
ends = st.tuples(st.sampled_from(["commit", "abort", "evict", "recall"]), st.integers(0, 5))


class Asked:
    """A connection, and what it was asked."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        settings = ConnectionSettings(cache_bytes=10_000, max_prepared=4)
        self.state = ConnectionState(
            "local", settings, lambda size: next(numbers).to_bytes(size, "big")
        )
        self.made: list[str] = []

    def prepare(
        self, frame: dict[str, object] | bytes, lane: str | None, parent: int, on_socket: bool
    ) -> None:
        response_id = f"resp_{len(self.made)}"
        if isinstance(frame, dict):
            named = {"previous_response_id": self.made[-parent]} if self._has(parent) else {}
            frame = json.dumps({"model": "sim-max"} | named | frame).encode()
        self.made.append(response_id)
        transport = "websocket" if on_socket else "http"
        command = m.Prepare("c", response_id, frame, MODEL, lane, transport)
        try:
            answer = self.state.prepare(command)
        except Internal:
            raise
        except ApiError:
            return
        if isinstance(answer, m.Prepared):
            check(answer)

    def end(self, how: str, which: int) -> None:
        if not self._has(which):
            return
        response_id = self.made[-which]
        match how:
            case "commit":
                self.state.commit(m.Commit("c", response_id, ANSWER % len(self.made)))
            case "recall":
                self._recall(response_id)
            case _:
                parent_id = self.made[0]
                evict = how == "evict"
                self.state.abort(m.Abort("c", response_id, evict, parent_id=parent_id))

    def _recall(self, response_id: str) -> None:
        try:
            prompt = self.state.recall(m.Recall("c", response_id))
        except ApiError:
            return
        assert isinstance(prompt, m.ItemPrompt)
        assert not prompt.prefix_key
        orjson.loads(prompt.items)

    def _has(self, which: int) -> bool:
        return 0 < which <= len(self.made)


def check(prepared: m.Prepared) -> None:
    """All that is spliced into other documents later is JSON."""
    assert isinstance(prepared.prompt, m.ItemPrompt)
    orjson.loads(prepared.prompt.items)
    orjson.loads(prepared.prompt.head or b"null")
    orjson.loads(prepared.stored_input or b"null")
    members = [prepared.echo, prepared.echo_turn, prepared.echo_tools]
    orjson.loads(b"{%b}" % b",".join(part for part in members if part))
    orjson.loads(prepared.facts.text_format)
    orjson.loads(prepared.facts.tool_choice)


@given(st.lists(asks | ends, max_size=8))
def test_a_connection_survives_whatever_it_is_asked(steps: list[tuple[object, ...]]) -> None:
    asked = Asked()
    for what, *details in steps:
        if what == "prepare":
            asked.prepare(*details)  # type: ignore[arg-type]
        else:
            asked.end(str(what), *details)  # type: ignore[arg-type]
    state, history = asked.state, asked.state.history
    assert len(state._running) <= 4
    for response_id in asked.made:
        state.abort(m.Abort("c", response_id))
    assert state._running == {}
    assert all(not entry.pins for entry in history._alive.values())
    assert history.held_bytes == sum(entry.size_bytes for entry in history._alive.values())
    assert history.spare_bytes <= 10_000
