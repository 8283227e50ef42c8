"""What one Prepare costs in the connection actor, by length of history. Prints one JSON line.

The frame is a coding agent's: 19 KB of tools and 17 KB of instructions as in the turn before, and
one new tool output of 2 KB. `ratio` is the longest history against the shortest of the same run.
`--seconds 0.05 --trials 1` is the smoke run.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

from turnwire.actors.engines import gguf_file
from turnwire.actors.engines.gguf_tokenizer import build_tokenizer
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.connection import ConnectionState

HISTORY_TOKENS = (0, 1_000, 100_000)
WINDOW = 1_000_000
LINE = "def step(self, key): return table[key] if key in table else None\n"
TOOLS = [
    {
        "type": "function",
        "name": f"tool_{index}",
        "description": "x" * 1950,
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
        "strict": False,
    }
    for index in range(9)
]
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "tool_1"}


def frame(parent: str | None, items: list[dict[str, str]]) -> bytes:
    body = {
        "type": "response.create",
        "model": "bench",
        "store": False,
        "stream": True,
        "previous_response_id": parent,
        "instructions": "Be precise. " * 1400,
        "tools": TOOLS,
        "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "session",
        "input": items,
    }
    return json.dumps(body).encode()


class Connection:
    """A connection with so much history, asked for the same continuation again and again."""

    def __init__(self, model: m.Model, history_tokens: int) -> None:
        self.state = ConnectionState("bench", ConnectionSettings(), os.urandom)
        self._model = model
        self._numbers = iter(range(1_000_000_000))
        self._echo = b""
        self.parent: str | None = None
        self._turn([{"role": "user", "content": "begin"}])
        while history_tokens > 0:
            history_tokens -= 1_000
            self._turn([{"type": "function_call_output", "call_id": "call_1", "output": LINE * 45}])

    def frames(self) -> Iterator[bytes]:
        for number in self._numbers:
            output = f"{number} {LINE * 31}"[:2048]
            item = {"type": "function_call_output", "call_id": "call_1", "output": output}
            yield frame(self.parent, [item])

    def prepare_us(self, body: bytes) -> float:
        command = m.Prepare("c", "resp_bench", body, self._model, known_echo=self._echo)
        begin = time.perf_counter()
        prepared = self.state.prepare(command)
        spent = time.perf_counter() - begin
        assert isinstance(prepared, m.Prepared)
        self._echo = prepared.echo_key
        self.state.abort(m.Abort("c", "resp_bench"))
        return spent * 1e6

    def _turn(self, items: list[dict[str, str]]) -> None:
        response_id = f"resp_{next(self._numbers)}"
        body = frame(self.parent, items)
        prepared = self.state.prepare(m.Prepare("c", response_id, body, self._model))
        assert isinstance(prepared, m.Prepared)
        self._echo = prepared.echo_key
        output = json.dumps([CALL | {"arguments": "{}"}]).encode()
        sampled = array("I", range(20, 80)).tobytes()
        self.state.commit(m.Commit("c", response_id, output, sampled))
        self.parent = response_id


def trial(connections: list[Connection], seconds: float) -> list[float]:
    """Medians, one a connection; taking turns, so that a slow moment hits all alike."""
    found: list[list[float]] = [[] for _ in connections]
    streams = [connection.frames() for connection in connections]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for times, connection, frames in zip(found, connections, streams, strict=True):
            times.append(connection.prepare_us(next(frames)))
    return [statistics.median(times) for times in found]


def measure(model: m.Model, seconds: float, trials: int) -> dict[str, object]:
    connections = [Connection(model, tokens) for tokens in HISTORY_TOKENS]
    trial(connections, seconds / 10)  # warm-up, thrown away
    medians = list(zip(*(trial(connections, seconds) for _ in range(trials)), strict=True))
    ratios = [last / first for first, last in zip(medians[0], medians[-1], strict=True)]
    return {
        **{
            f"history_{tokens}": {
                "median": round(statistics.median(found), 1),
                "min": round(min(found), 1),
                "max": round(max(found), 1),
            }
            for tokens, found in zip(HISTORY_TOKENS, medians, strict=True)
        },
        "ratio": round(statistics.median(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--trials", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = build_tokenizer(gguf_file.read(gguf_file.default_path()), Path(folder))
        tokens = m.Model("bench", "tokens", "chatml", str(path), WINDOW)
        items = m.Model("bench", "items", context_window=WINDOW)
        result = {
            "bench": "prepare",
            "unit": "us",
            "frame_bytes": len(frame("resp_1", [])) + 2048,
            "tokens": measure(tokens, args.seconds, args.trials),
            "items": measure(items, args.seconds, args.trials),
            "python": platform.python_version(),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
