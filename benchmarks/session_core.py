"""How many turns a second the pure core carries: session and response stream, without I/O.

A turn is a Codex-sized frame, a call of 60 tokens in 20 batches, and all of its events. Prints one
JSON line; `--seconds 0.05` is the smoke run.
"""

import argparse
import json
import platform
import statistics
import time

import orjson

from turnwire.pipelines import messages as m
from turnwire.pipelines.config import SessionSettings
from turnwire.pipelines.effects import StartTurn
from turnwire.pipelines.limits import ByteBudget
from turnwire.pipelines.protocol.responses import Echo
from turnwire.pipelines.response_stream import ResponseStream
from turnwire.pipelines.session import Session

TOOLS = [
    {
        "type": "function",
        "name": f"tool_{number}",
        "description": "x" * 1900,
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
        "strict": False,
    }
    for number in range(9)
]
FRAME = orjson.dumps(
    {
        "type": "response.create",
        "model": "sim-max",
        "store": False,
        "stream": True,
        "previous_response_id": "resp_before",
        "instructions": "y " * 8500,
        "tools": TOOLS,
        "input": [{"type": "function_call_output", "call_id": "call_1", "output": "z" * 2048}],
    }
)
ECHO = Echo(
    b"key",
    b'"model":"sim-max","parallel_tool_calls":true,"tool_choice":"auto"',
    b'"instructions":%b,"tools":%b' % (orjson.dumps("y " * 8500), orjson.dumps(TOOLS)),
)
BATCHES: list[list[m.EngineEvent]] = [
    [
        m.TextProduced(f"word{batch * 3 + at} ", m.Counts(1000, 900, batch * 3 + at + 1))
        for at in range(3)
    ]
    for batch in range(20)
]
END: list[m.EngineEvent] = [m.GenerationFinished("stop", m.Counts(1000, 900, 60))]


def turn(session: Session, number: int) -> int:
    """One turn through the core; the bytes of its events."""
    (start,) = session.received(FRAME, f"resp_{number:032x}", 0.0)
    assert isinstance(start, StartTurn)
    response_id = start.turn.response_id
    session.prepared(response_id)
    stream = ResponseStream(response_id, 1, ECHO, b'"metadata":{}')
    events = stream.created() + stream.started()
    for batch in BATCHES:
        events += stream.produced(batch)
    events += stream.produced(END) + stream.closed("stop", 2)
    events.append(stream.terminal())
    session.finished(response_id, 0.0)
    return sum(map(len, events))


def trial(seconds: float) -> float:
    session = Session(SessionSettings(), ByteBudget(2**30), 2**27, 0.0)
    turns, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        turn(session, turns)
        turns += 1
    return turns / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--trials", type=int, default=5)
    args = parser.parse_args()
    trial(args.seconds / 10)
    rates = [trial(args.seconds) for _ in range(args.trials)]
    line = {
        "bench": "session_core",
        "unit": "turns/s",
        "median": round(statistics.median(rates)),
        "min": round(min(rates)),
        "max": round(max(rates)),
        "frame_bytes": len(FRAME),
        "python": platform.python_version(),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
