"""What a connection actor's process takes for a conversation. Prints one JSON line.

`idle`: a conversation of 100,000 tokens, as a coding agent makes one, in MiB beyond a process with
its tokenizer loaded and no connection: the proportional set size, in which library code counts
that is touched for the first time, and `anonymous`, what the conversation takes by itself.
`growth`: of 1,000 turns on one connection, held against the bytes of the context itself: its JSON,
the ids of its prompt and those that were sampled. `--seconds 0.05 --trials 1` is the smoke run.
"""

import argparse
import ctypes
import gc
import json
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any

import psutil
from prepare import CALL, WINDOW, frame
from served import pss_bytes

from turnwire.actors.connection import ConnectionCore, rehearse
from turnwire.actors.engines import gguf_file
from turnwire.actors.engines.gguf_tokenizer import build_tokenizer
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ConnectionSettings

IDLE_TOKENS, TURNS = 100_000, 1_000
SETTLED_TURNS = 50
"""Before the growth is measured: what is bounded is full by then, or nearly."""
WORDS = ("return", "table", "key", "index", "None", "self", "else", "value", "count", "assert")
MIB = 1024 * 1024


class Talk:
    """A conversation of tool calls, over an actor's core."""

    def __init__(self, model: m.Model) -> None:
        self._model = model
        self._core = ConnectionCore(ConnectionSettings())
        self._core.open(m.Open("c", "bench"))
        self._random = random.Random(1)
        self._parent: str | None = None
        self._echo = b""
        self.turns = 0
        self.tokens = 0
        self.context_bytes = 0

    def turn(self, words: int = 300) -> None:
        """About as many tokens, in and out."""
        self.turns += 1
        response_id, call_id = f"resp_{self.turns:032d}", f"call_{self.turns}"
        text = " ".join(self._random.choices(WORDS, k=words))
        item = {"type": "function_call_output", "call_id": f"call_{self.turns - 1}", "output": text}
        if self._parent is None:
            item = {"role": "user", "content": text}
        command = m.Prepare(
            "c", response_id, frame(self._parent, [item]), self._model, known_echo=self._echo
        )
        prepared = self._core.prepare(command)
        assert isinstance(prepared, m.Prepared)
        self._echo = prepared.echo_key
        call = CALL | {"id": f"fc_{self.turns}", "call_id": call_id, "arguments": "{}"}
        output = json.dumps([call]).encode()
        sampled = array("I", self._random.choices(range(300, 9000), k=60)).tobytes()
        self._core.commit(m.Commit("c", response_id, output, sampled))
        self._parent = response_id
        ids = 4 * (prepared.input_tokens - self.tokens)
        self.tokens = prepared.input_tokens
        self.context_bytes += len(json.dumps([item])) + len(output) + len(sampled) + ids


def taken_bytes() -> tuple[int, int]:
    """By this process, without what the allocator merely keeps: in all, and of its own making."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rollup = Path("/proc/self/smaps_rollup").read_text()
    anonymous = re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.MULTILINE)
    assert anonymous is not None, "every Linux says it"
    return pss_bytes(psutil.Process()), int(anonymous[1]) * 1024


def alone(path: str, idle_tokens: int, turns: int) -> dict[str, float]:
    """In a process of its own."""
    model = m.Model("bench", "tokens", "chatml", path, WINDOW)
    rehearse(ConnectionSettings(), (model,))  # as an actor does before it is leased
    frame(None, [])  # what making frames takes is not the actor's
    gc.collect()
    gc.freeze()
    empty_pss, empty = taken_bytes()
    talk = Talk(model)
    while talk.tokens < idle_tokens:
        talk.turn()
    idle_pss, idle = taken_bytes()
    grown = Talk(model)
    for _ in range(SETTLED_TURNS):
        grown.turn()
    (_, begin), context = taken_bytes(), grown.context_bytes
    for _ in range(turns):
        grown.turn()
    growth, added = taken_bytes()[1] - begin, grown.context_bytes - context
    return {
        "idle_pss_mib": (idle_pss - empty_pss) / MIB,
        "idle_anonymous_mib": (idle - empty) / MIB,
        "idle_context_mib": talk.context_bytes / MIB,
        "growth_bytes_a_turn": growth / turns,
        "context_bytes_a_turn": added / turns,
        "growth_to_context": growth / added,
    }


def trial(path: str, idle_tokens: int, turns: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--alone", path, str(idle_tokens), str(turns)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "min": round(min(values), 2),
        "max": round(max(values), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="below 1: shorter in proportion")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--alone", nargs=3, metavar=("TOKENIZER", "TOKENS", "TURNS"))
    args = parser.parse_args()
    if args.alone is not None:
        path, tokens, turns = args.alone
        print(json.dumps(alone(path, int(tokens), int(turns))))
        return
    share = min(1.0, args.seconds)
    idle_tokens, turns = int(IDLE_TOKENS * share), int(TURNS * share)
    with tempfile.TemporaryDirectory() as folder:
        path = build_tokenizer(gguf_file.read(gguf_file.default_path()), Path(folder))
        trials = [trial(str(path), idle_tokens, turns) for _ in range(args.trials)]
    figures: dict[str, Any] = {name: spread([one[name] for one in trials]) for name in trials[0]}
    about = {"idle_tokens": idle_tokens, "turns": turns, "python": platform.python_version()}
    print(json.dumps({"bench": "connection_memory", **figures, **about}))


if __name__ == "__main__":
    main()
