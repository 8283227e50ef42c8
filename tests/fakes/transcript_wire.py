"""Plays transcripts against a real server: what the engine is to do goes into `metadata`.

Order between lanes is chance there, so events are compared lane by lane, errors apart. Ids are
those of the transcript once their first use was matched; texts, counts and times are not compared,
except what a recall says.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson
from transcripts import Line, is_outer, shown
from websockets.asyncio.client import ClientConnection, connect

TURN_S = 60.0
_ENGINE = {"text", "stop", "says", "reasoning", "call", "recalls", "evaluated", "prompt", "length"}
_FAILURES = {"internal", "rate_limit_exceeded", "bug"}
_TEXTS = ("delta", "text", "arguments", "input", "message", "usage")

Key = tuple[int, str | None, str]
"""Connection, lane, and kind: these events come in one order."""


def is_playable(lines: list[Line]) -> bool:
    """Can a server and a client bring about all that the lines ask for?"""
    return all(_is_playable(line.text.split(" ")) for line in lines if line.kind == "!")


def _is_playable(words: list[str]) -> bool:
    match words:
        case [_, "text", '""']:
            return False
        case [name, verb, *rest] if name.startswith("resp_"):
            return verb in _ENGINE or (verb == "fail" and rest[0] in _FAILURES)
        case ["set", "events", "all"] | ["drop"] | [_, "drop"] | ["binary"]:
            return True
    return False


@dataclass
class _Steered:
    """What the transcript wants of one response."""

    verbs: list[str] = field(default_factory=list)
    failure: str = ""

    def metadata(self, request: dict[str, Any]) -> dict[str, str]:
        """Steering of the simulated engine for all of it."""
        calls = self.verbs.count("call")
        steering: dict[str, str] = {}
        if request.get("tools"):
            steering["sim.tool_turns"] = "9999" if calls else "0"
        if calls > 1:
            steering["sim.parallel_calls"] = str(calls)
        if "reasoning" in self.verbs:
            steering["sim.reasoning_tokens"] = "4"
        if at := self._stops_at():
            steering["sim.fail"] = at
        return steering

    def _stops_at(self) -> str:
        produced = 4 * ("reasoning" in self.verbs) + 4 * ("text" in self.verbs)
        if self.failure:
            return f"{self.failure}@{produced}"
        ended = {"stop", "says", "recalls", "evaluated", "length"} & {*self.verbs}
        return "" if ended else f"stall@{produced}"


class WirePlayer:
    """One use each."""

    def __init__(self, url: str, lines: list[Line]) -> None:
        self._url = url
        self._lines = lines
        self._everything = Line("!", "set events all") in lines
        self._steered = _steering(lines)
        self._sockets: dict[int, ClientConnection] = {}
        self._frames = 0
        self._exact: set[str] = set()
        """Responses whose text is a recall."""
        self._names: dict[str, str] = {}
        """From the transcript's ids to the server's."""
        self._seals: dict[str, str] = {}
        """The same for `encrypted_content`, which each server seals with a key of its own."""
        self._wanted = _wanted(lines)
        self._due: defaultdict[Key, int] = defaultdict(int)
        self._seen: defaultdict[Key, list[dict[str, Any]]] = defaultdict(list)
        self._numbers: dict[tuple[int, str], int] = {}

    async def play(self) -> None:
        """Raises AssertionError where the server departs from the transcript."""
        async with AsyncExitStack() as stack:
            for line in self._lines:
                match line.kind, line.text:
                    case "<", text if text.startswith("{"):
                        self._due_now(line)
                    case ">", text:
                        await self._caught_up(line.connection)
                        socket = await self._socket(line.connection, stack)
                        await socket.send(self._frame(text))
                    case "!", "binary":
                        await (await self._socket(1, stack)).send(b"\0\1")
                    case "!", text if text.endswith("drop"):
                        number = int(text.partition(" ")[0]) if text != "drop" else 1
                        await self._caught_up(number)
                        self._sockets.pop(number).transport.abort()
            for number in tuple(self._sockets):
                await self._caught_up(number)
                await self._is_quiet(self._sockets[number])

    async def _socket(self, number: int, stack: AsyncExitStack) -> ClientConnection:
        if number not in self._sockets:
            opening = connect(self._url, max_size=None)
            self._sockets[number] = await stack.enter_async_context(opening)
        return self._sockets[number]

    def _frame(self, text: str) -> str:
        self._frames += 1
        response_id = f"resp_{self._frames}"
        text = re.sub(r"\b(resp|call)_\d+\b", lambda found: self._theirs(found[0]), text)
        for ours, theirs in self._seals.items():
            text = text.replace(ours, theirs)
        steered = self._steered.get(response_id)
        if steered is None:
            return text
        request = orjson.loads(text)
        if "recalls" in steered.verbs:
            self._exact.add(response_id)
        metadata = steered.metadata(request)
        if metadata:
            request["metadata"] = (request.get("metadata") or {}) | metadata
        return orjson.dumps(request).decode()

    def _theirs(self, name: str) -> str:
        return self._names.get(name, name)

    # --- comparing --------------------------------------------------------------------------------

    def _due_now(self, line: Line) -> None:
        """The transcript has got so far; other lanes may already be ahead of it."""
        event = orjson.loads(line.text)
        key = _key(line.connection, event)
        if not _goes_on(self._wanted[key][: self._due[key]], event):
            self._due[key] += 1

    async def _caught_up(self, connection: int) -> None:
        """Receive until all that the transcript has by now is there."""
        while missing := [
            key
            for key, due in self._due.items()
            if key[0] == connection and len(self._seen[key]) < due
        ]:
            try:
                async with asyncio.timeout(TURN_S):
                    frame = await self._sockets[connection].recv()
            except TimeoutError:
                raise AssertionError(f"nothing more came for {missing[0]}") from None
            self._take(connection, orjson.loads(frame))

    def _take(self, connection: int, event: dict[str, Any]) -> None:
        self._count(connection, event)
        if not (self._everything or is_outer(event)):
            return
        key = _key(connection, event)
        seen, wanted = self._seen[key], self._wanted[key]
        if _goes_on(seen, event):
            return
        at = len(seen)
        seen.append(event)
        assert at < len(wanted), f"nothing was to come on {key}, but {shown(event)}"
        self._name(wanted[at], event)
        expected = self._comparable(wanted[at], wanted[at])
        assert self._comparable(self._ours(event), wanted[at]) == expected

    def _count(self, connection: int, event: dict[str, Any]) -> None:
        """Numbers have no gap, also among events that are not compared."""
        if event["type"] == "error" or event["type"].startswith("response.steer"):
            return
        lane = connection, event.get("stream_id", "")
        if event["type"] == "response.created":
            self._numbers[lane] = -1
        self._numbers[lane] += 1
        assert event["sequence_number"] == self._numbers[lane], event

    def _name(self, wanted: dict[str, Any], event: dict[str, Any]) -> None:
        """The first use of an id says what it is called there."""
        if event["type"] == "response.created":
            self._names[wanted["response"]["id"]] = event["response"]["id"]
        ours, theirs = (one.get("item", {}).get("call_id") for one in (wanted, event))
        if ours and theirs:
            self._names[ours] = theirs
        sealed, there = (one.get("item", {}).get("encrypted_content") for one in (wanted, event))
        if sealed and there:
            self._seals[sealed] = there

    def _ours(self, event: dict[str, Any]) -> dict[str, Any]:
        """In the transcript's ids and form."""
        response = event.get("response")
        if response is not None:
            metadata = {k: v for k, v in response["metadata"].items() if not k.startswith("sim.")}
            event = event | {"response": response | {"metadata": metadata}}
        text = shown(event)
        for ours, theirs in self._seals.items():
            text = text.replace(theirs, ours)
        for ours, theirs in self._names.items():
            text = text.replace(theirs, ours)
            # Ids of items are made of their response's.
            text = text.replace(theirs.removeprefix("resp_"), ours.removeprefix("resp_"))
        changed: dict[str, Any] = orjson.loads(text)
        return changed

    def _comparable(self, event: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
        exact = wanted.get("item", {}).get("id", "").removeprefix("msg_")[:-2]
        keeps = f"resp_{exact}" in self._exact
        event = dict(event)
        event.pop("sequence_number", None)
        made: dict[str, Any] = _without_texts(event, keep=keeps)
        return made

    async def _is_quiet(self, socket: ClientConnection) -> None:
        """Whatever was sent without need has come before the answer to a last frame."""
        await socket.send('{"type":"the end"}')
        last = orjson.loads(await socket.recv())
        assert last["type"] == "error", shown(last)


def _key(connection: int, event: dict[str, Any]) -> Key:
    kind = "steer" if event["type"].startswith("response.steer") else "response"
    return connection, event.get("stream_id"), "error" if event["type"] == "error" else kind


def _wanted(lines: list[Line]) -> defaultdict[Key, list[dict[str, Any]]]:
    wanted: defaultdict[Key, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if line.kind == "<" and line.text.startswith("{"):
            event = orjson.loads(line.text)
            before = wanted[_key(line.connection, event)]
            if not _goes_on(before, event):
                before.append(event)
    return wanted


def _goes_on(before: list[dict[str, Any]], event: dict[str, Any]) -> bool:
    """One more delta of the same text: where an engine cuts it is chance."""
    kind = event["type"]
    return kind.endswith(".delta") and bool(before) and before[-1]["type"] == kind


def _without_texts(value: Any, *, keep: bool) -> Any:  # noqa: ANN401 -- any JSON
    if isinstance(value, list):
        return [_without_texts(part, keep=keep) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        name: "..." if _is_chance(name, part, keep) else _without_texts(part, keep=keep)
        for name, part in value.items()
    }


def _is_chance(name: str, value: Any, keep: bool) -> bool:  # noqa: ANN401 -- any JSON
    return (
        name in _TEXTS and not (keep and name == "text") and isinstance(value, str) and value != ""
    )


def _steering(lines: list[Line]) -> dict[str, _Steered]:
    steered: dict[str, _Steered] = {}
    for response_id, verb, rest in _directives(lines):
        one = steered.setdefault(response_id, _Steered())
        one.verbs.append(verb)
        if verb == "says":
            one.verbs.append("text")
        if verb == "fail":
            one.failure = rest
    # A response that is not told anything is held, like one that is told to begin only.
    frames = [line.text for line in lines if line.kind == ">"]
    for number, text in enumerate(frames, 1):
        if _runs(lines, f"resp_{number}") and text.startswith("{"):
            steered.setdefault(f"resp_{number}", _Steered())
    return steered


def _directives(lines: list[Line]) -> Iterator[tuple[str, str, str]]:
    for line in lines:
        if line.kind == "!" and line.text.startswith("resp_"):
            response_id, verb, *rest = line.text.split(" ", 2)
            yield response_id, verb, rest[0] if rest else ""


def _runs(lines: list[Line], response_id: str) -> bool:
    created = f'"id":"{response_id}","status":"in_progress"'
    return any(line.kind == "<" and created in line.text for line in lines)
