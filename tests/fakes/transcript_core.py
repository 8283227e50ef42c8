"""Plays transcripts through the pure core: session, turns and connection state, with counted ids.

What a `!` line may say:

    resp_1 text "Hel"           the engine goes on (also: reasoning "...", call NAME ARGUMENTS)
    resp_1 stop                 and ends (also: length, content_filter, cancelled, missing)
    resp_1 says "Hello"         both at once
    resp_1 recalls              as `says`, with what `remember:KEY=VALUE` says in the whole prompt
    resp_1 evaluated            the prefill of a warm-up is over
    resp_1 fail overloaded      the engine fails (also: internal, bug, ...)
    resp_1 prompt               show what the engine was to read
    conv_1 made                 a conversation is there, of the tenant of the moment
    conv_1 gains "Hello"        another client adds a message (also: deleted)
    conv_1 items                show what is in it
    clock 15                    seconds pass
    drop, 2 drop                the client is gone, without a close frame
    binary                      the client sends a binary frame
    drain, drain over           the server stops; its time to do so is over
    set NAME VALUE              a setting, before anything else; `events all`: see `is_outer`
    set engine scripted         a simulated model does not do this, so no server plays it
    tenant NAME                 whose the connections opened from here on are
    workers NAMES               the inference workers that are there now
    verdict flagged             the classifiers' verdict (passed, incomplete); `hold`: not yet
    storage away, ledger full   as they say (back, room: well again)
    actor lost                  the connection's actor dies, its state with it
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from scripted_ports import KEYRING, FakeLedger, FakeSafety, FakeStore, LocalConnection, World
from transcript_client import CoreClient, Gateway
from transcript_engine import DirectedEngine
from transcripts import Line, is_outer, shown

from turnwire.pipelines import messages as m
from turnwire.pipelines.limits import ByteBudget, Settlements
from turnwire.pipelines.protocol.errors import ModelNotFound, Overloaded
from turnwire.pipelines.services import Services, TurnLimits

MODELS = ("sim-max", "sim-4000")
_VERDICTS = {
    "passed": m.Screened(flagged=False),
    "flagged": m.Screened(flagged=True, categories=("injection",)),
    "incomplete": m.Screened(flagged=False, complete=False),
}


@dataclass
class _Clock:
    """Stands still between `clock` lines."""

    at_s: float = 1000.0
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def now_s(self) -> float:
        return self.at_s

    def today_s(self) -> int:
        return 1_800_000_000

    async def sleep(self, delay_s: float) -> None:
        until_s = self.at_s + delay_s
        while self.at_s < until_s:
            await self._moved.wait()

    def move(self, by_s: float) -> None:
        self.at_s += by_s
        self._moved.set()
        self._moved = asyncio.Event()


@dataclass
class _Router:
    world: World

    async def resolve(self, command: m.Resolve) -> m.Route:
        if command.model not in MODELS:
            raise ModelNotFound(f"the model {command.model!r} is not served here", "model")
        if not self.world.workers:
            raise Overloaded("no worker")
        worker = command.keep if command.keep in self.world.workers else self.world.workers[0]
        return m.Route(m.Model(command.model, "items"), m.Endpoint(worker, "here"))

    def valid(self, route: m.Route) -> bool:
        return route.worker.id in self.world.workers


@dataclass
class _Store(FakeStore):
    away: bool = False

    async def save(self, command: m.Save) -> None:
        self._check()
        await super().save(command)

    async def load(self, command: m.Load) -> m.Chain:
        self._check()
        return await super().load(command)

    def _check(self) -> None:
        if self.away:
            raise Overloaded("storage is away")


@dataclass
class _Ledger(FakeLedger):
    told: Callable[[str], None]

    def settle(self, record: m.UsageRecord) -> None:
        super().settle(record)
        if record.status != "completed" or record.flagged:
            marks = "".join(f" {mark}" for mark in record.flagged)
            self.told(f"{record.response_id} settled {record.status}{marks}")


class Core:
    """One use each. The answers to a line are all there once nothing can go on without the next."""

    def __init__(self) -> None:
        self._world = World()
        self._engine = DirectedEngine(self._told)
        self._store = _Store(self._world)
        self._ledger = _Ledger(self._world, self._told)
        self._clock = _Clock()
        self._settings: dict[str, str] = {}
        self._tenant = "local"
        self._gateway: Gateway | None = None
        self._clients: dict[int, CoreClient] = {}
        self._everybody: list[CoreClient] = []
        self._frames = 0
        self._answers: list[Line] = []

    async def play(self, lines: list[Line]) -> list[Line]:
        """The transcript as it would be written today."""
        played: list[Line] = []
        for line in lines:
            if line.kind in "<=":
                continue
            played.append(line)
            if line.kind != "#":
                self._perform(line)
                await settled()
            played += self._answers
            self._answers.clear()
        await self._end()
        return played

    def _told(self, words: str) -> None:
        self._answers.append(Line("=", words))

    def _perform(self, line: Line) -> None:
        first, _, words = line.text.partition(" ")
        if line.kind == ">":
            self._frames += 1
            frame = line.text.encode()
            self._client(line.connection).receive(frame, f"resp_{self._frames}")
        elif first.startswith("resp_"):
            self._direct(first, *words.partition(" ")[::2])
        elif first.startswith("conv_"):
            self._converse(first, *words.partition(" ")[::2])
        elif first.isdecimal():
            self._occur(words, "", int(first))
        else:
            self._occur(first, words, 1)

    def _client(self, number: int) -> CoreClient:
        if number not in self._clients:
            if self._gateway is None:
                self._gateway = self._open()
            connection = LocalConnection(self._world, self._tenant)
            client = CoreClient(self._gateway, connection, self._tenant, self._sayer(number))
            self._clients[number] = client
            self._everybody.append(client)
        return self._clients[number]

    def _sayer(self, number: int) -> Callable[[dict[str, Any] | str], None]:
        everything = self._settings.get("events") == "all"

        def say(what: dict[str, Any] | str) -> None:
            if isinstance(what, str):
                self._answers.append(Line("<", what, number))
            elif everything or is_outer(what):
                self._answers.append(Line("<", shown(what), number))

        return say

    def _open(self) -> Gateway:
        chosen = self._settings
        policy: Any = chosen.get("policy", "score")
        reasoning_events: Any = chosen.get("reasoning_events", "openai")
        limits = TurnLimits(
            policy=policy,
            heartbeat_s=float(chosen.get("heartbeat_s", 15)),
            worker_wait_s=float(chosen.get("worker_wait_s", 10)),
            trim_echo=chosen.get("trim_echo") == "true",
            reasoning_events=reasoning_events,
        )
        services = Services(
            _Router(self._world),
            self._engine,
            FakeSafety(self._world),
            self._store,
            Settlements(self._ledger),
            self._clock,
            limits,
            keyring=KEYRING,
        )
        inbound = ByteBudget(int(chosen.get("inbound_bytes", 1_000_000)))
        return Gateway(services, self._clock, inbound, chosen)

    # --- the engine -------------------------------------------------------------------------------

    def _direct(self, response_id: str, verb: str, words: str) -> None:
        match verb:
            case "prompt":
                self._told(f"{response_id} reads {' | '.join(self._texts(response_id))}")
            case "recalls":
                said = orjson.dumps(self._recalled(response_id)).decode()
                self._engine.direct(response_id, "says", said)
            case _:
                self._engine.direct(response_id, verb, words)

    def _texts(self, response_id: str) -> list[str]:
        """The items of the whole prompt, each in a few words."""
        (client,) = (one for one in self._everybody if response_id in one.asked)
        prompt = client.connection.state.recall(m.Recall("", response_id))
        assert isinstance(prompt, m.ItemPrompt)
        return [_words(item) for item in orjson.loads(prompt.items)]

    def _recalled(self, response_id: str) -> str:
        texts = self._texts(response_id)
        key = texts[-1].partition("recall:")[2]
        sought = f"remember:{key}="
        return next((t.partition(sought)[2] for t in texts if sought in t), "unknown")

    def _converse(self, conversation_id: str, verb: str, words: str) -> None:
        where = self._tenant, conversation_id
        match verb:
            case "made":
                self._store.ask(m.CreateConversation(*where, 0, {}))
            case "gains":
                content = orjson.loads(words)
                message = {"type": "message", "id": f"msg_{content}", "role": "user"}
                item = orjson.dumps(message | {"content": content})
                self._store.ask(m.AddItems(*where, f"add_{content}", (item,)))
            case "deleted":
                self._store.ask(m.DeleteConversation(*where))
            case "items":
                page = self._store.ask(m.ListItems(*where, 100, descending=False))
                held = map(_words, map(orjson.loads, page.items))
                self._told(f"{conversation_id} holds {' | '.join(held)}".rstrip())
            case _:
                raise AssertionError(f"there is no directive {verb!r}")

    # --- the rest of the world --------------------------------------------------------------------

    def _occur(self, what: str, words: str, number: int) -> None:
        match what, words:
            case "set", _:
                assert self._gateway is None, "settings come first"
                name, value = words.split(" ")
                self._settings[name] = value
            case "clock", _:
                self._clock.move(float(words))
                for client in self._clients.values():
                    client.tick(self._clock.at_s)
            case "drop", "":
                self._clients.pop(number).leave()
            case "binary", "":
                self._client(number).binary()
            case "drain", _:
                for client in self._clients.values():
                    client.drain(over=words == "over")
            case _:
                self._change(what, words)

    def _change(self, what: str, words: str) -> None:
        world = self._world
        match what, words:
            case "tenant", _:
                self._tenant = words
            case "workers", _:
                world.workers = words.split()
            case "verdict", "hold":
                world.screen_gate = asyncio.Event()
            case "verdict", _:
                world.verdict = _VERDICTS[words]
                if world.screen_gate is not None:
                    world.screen_gate.set()
            case "storage", ("away" | "back"):
                self._store.away = words == "away"
            case "ledger", ("full" | "room"):
                world.ledger_room = 0 if words == "full" else 1_000_000
            case "actor", "lost":
                for client in self._clients.values():
                    client.lose_actor()
            case _:
                raise AssertionError(f"there is no directive {what!r} {words!r}")

    async def _end(self) -> None:
        """Everybody leaves: nothing may be held then."""
        if self._world.screen_gate is not None:
            self._world.screen_gate.set()
        for client in self._clients.values():
            client.leave()
        tasks = [task for client in self._everybody for task in client.tasks]
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._everybody:
            client.check()
            assert client.connection.state._running == {}
        assert self._engine.open_streams == 0
        assert self._gateway is None or self._gateway.inbound.held_bytes == 0


async def settled() -> None:
    """Returns when no task of the loop can go on by itself: all wait for another line."""
    loop: Any = asyncio.get_running_loop()
    quiet = 0
    while quiet < 2:  # a timer that is due is seen one round later
        await asyncio.sleep(0)
        quiet = 0 if loop._ready else quiet + 1


def _words(item: dict[str, Any]) -> str:
    match item["type"]:
        case "message":
            content = item["content"]
            texts = [content] if isinstance(content, str) else [p.get("text", "") for p in content]
            return f"{item['role']}: {' '.join(texts)}".replace("\n", " ")
        case "function_call":
            return f"call {item['name']} {item['arguments']}"
        case "function_call_output":
            return f"output: {item['output']}"
        case "reasoning" if item.get("content"):
            return f"reasoning: {' '.join(part['text'] for part in item['content'])}"
        case kind:
            return str(kind)
