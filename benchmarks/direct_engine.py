"""The simulated engine by itself, asked for what a Codex-sized continuation asks it for.

What it takes is the engine's own time: a turn's overhead is what a client waits beyond it.
"""

import time
from hashlib import blake2b

import orjson
from agent_client import OUTPUT, TOOLS, Turn, first_input

from turnwire.actors.engines.simulated import ALL_MODELS, SimulatedEngine
from turnwire.pipelines.config import ModelSettings
from turnwire.pipelines.messages import Facts, Generate, GenerationFinished, ItemPrompt

_FUNCTIONS = [tool for tool in TOOLS if tool["type"] == "function"]
_HEAD = orjson.dumps({"instructions": "", "tools": _FUNCTIONS})
CHAIN_TURNS = 20


class DirectEngine:
    """Turns in this process, one after the other; a new chain begins every 20."""

    def __init__(self) -> None:
        self._engine = SimulatedEngine(ModelSettings(name=ALL_MODELS, engine="simulated"))
        self._started = False
        self._left = 0
        self._number = 0
        self._key = b""

    async def next_turn(self) -> Turn:
        if not self._started:
            await self._engine.start()
            self._started = True
        if not self._left:
            await self._generated(orjson.dumps(first_input()), b"", _HEAD)
            self._left = CHAIN_TURNS
        self._left -= 1
        output = {"type": "function_call_output", "call_id": "call_1", "output": OUTPUT}
        items = orjson.dumps([output])
        begin_s = time.perf_counter()
        await self._generated(items, self._key, None)
        return Turn(ended_s=time.perf_counter() - begin_s)

    async def _generated(self, items: bytes, prefix_key: bytes, head: bytes | None) -> None:
        self._number += 1
        self._key = blake2b(str(self._number).encode(), digest_size=16).digest()
        facts = Facts(
            f"resp_{self._number:032x}",
            "local",
            "sim-max",
            4096,
            metadata={"sim.tool_turns": "10000"},
            calls=True,
        )
        prompt = ItemPrompt(self._key, prefix_key, items, head)
        last = None
        async for batch in self._engine.generate(Generate(facts, prompt)):
            last = batch[-1]
        if not isinstance(last, GenerationFinished):
            raise SystemExit(f"the engine ended with a {type(last).__name__}")
