"""Thousands of turns through a whole server, each asked for what only its own past says.

Sockets and HTTP with lanes, forks from any earlier turn, histories in full and changed tools; every
turn remembers a value of its own and recalls one of its ancestors', or one that another branch was
told and it was not. Prints one JSON line; `mismatches` must be 0, and it exits with 1 if it is not.
`--seconds 0.05` is the smoke run; `--url`: a server that runs already.
"""

import argparse
import json
import platform
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from openai import OpenAI
from served import ONLY_SIMULATED, served, websocket_url
from websockets.sync.client import ClientConnection, connect

TURNS, SOCKETS, LANES = 2_000, 3, 4
WAIT_S = 120.0
TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error")
LONG = "word " * 120


@dataclass(frozen=True)
class Told:
    """A turn that ended: all a client keeps of it."""

    number: int
    parent: "Told | None"
    response_id: str
    socket: int
    items: tuple[dict[str, Any], ...]
    """Its input and its answer, as a client repeats them."""

    def path(self) -> list["Told"]:
        found: list[Told] = []
        turn: Told | None = self
        while turn is not None:
            found.insert(0, turn)
            turn = turn.parent
        return found


class Soak:
    """One client of everything. At times it opens a socket anew, which loses what was there."""

    def __init__(self, url: str, stack: ExitStack, seed: int) -> None:
        self._chance = random.Random(seed)
        self._url = url
        self._stack = stack
        self._http = stack.enter_context(OpenAI(base_url=url, api_key="none", max_retries=0))
        self._sockets = [self._opened() for _ in range(SOCKETS)]
        self._turns: list[Told] = []
        self.came: Counter[str] = Counter()

    def turn(self, number: int) -> None:
        chance = self._chance
        if chance.random() < 0.01:
            at = chance.randrange(SOCKETS)
            self._sockets[at].close()
            self._sockets[at] = self._opened()
            self.came["reconnects"] += 1
        parent = self._parent()
        key, expected = self._asked(parent, number)
        text = f"remember:K{number}=V{number} {LONG} recall:{key}"
        item = {"type": "message", "role": "user", "content": text}
        body: dict[str, Any] = {"model": "sim-max", "store": False, "input": [item]}
        body["instructions"] = chance.choice(("Be brief.", "Be brief.", "Be long."))
        socket = chance.randrange(SOCKETS)
        response, how = self._answer(body, parent, socket)
        found = "".join(
            part["text"]
            for said in response["output"]
            if said["type"] == "message"
            for part in said["content"]
        )
        self.came[how] += 1
        self.came["mismatches"] += found != expected
        self.came["cached"] += response["usage"]["input_tokens_details"]["cached_tokens"] > 0
        answer = {"role": "assistant", "content": found}
        self._turns.append(Told(number, parent, response["id"], socket, (item, answer)))

    def _parent(self) -> Told | None:
        if not self._turns or self._chance.random() < 0.03:
            return None
        near = self._turns[-12:] if self._chance.random() < 0.9 else self._turns
        return self._chance.choice(near)

    def _asked(self, parent: Told | None, number: int) -> tuple[str, str]:
        """A key, and what a turn with this past must say to it."""
        past = {turn.number for turn in parent.path()} if parent is not None else set[int]()
        if past and self._chance.random() < 0.8:
            one = self._chance.choice(sorted(past))
            return f"K{one}", f"V{one}"
        one = self._chance.randrange(number + 1)
        return f"K{one}", f"V{one}" if one in past or one == number else "unknown"

    def _answer(
        self, body: dict[str, Any], parent: Told | None, socket: int
    ) -> tuple[dict[str, Any], str]:
        body["stream_id"] = f"lane-{self._chance.randrange(LANES)}"
        if parent is not None and self._chance.random() < 0.7:
            named = body | {"previous_response_id": parent.response_id}
            event = self._on_socket(parent.socket, named)
            if event["type"] == "response.completed":
                return event["response"], "named"
            if event.get("error", {}).get("code") != "previous_response_not_found":
                raise SystemExit(f"a turn ended with {event}")
            self.came["lost_parents"] += 1
        before = [item for turn in parent.path() for item in turn.items] if parent else []
        whole = body | {"input": [*before, *body["input"]]}
        how = "in_full" if before else "new"
        if self._chance.random() < 0.3:
            del whole["stream_id"]
            return self._http.responses.create(**whole).to_dict(), f"{how}_http"
        event = self._on_socket(socket, whole)
        if event["type"] != "response.completed":
            raise SystemExit(f"a turn ended with {event}")
        return event["response"], how

    def _on_socket(self, at: int, body: dict[str, Any]) -> dict[str, Any]:
        self._sockets[at].send(json.dumps({"type": "response.create"} | body))
        while True:
            event: dict[str, Any] = json.loads(self._sockets[at].recv(timeout=WAIT_S))
            if event["type"] in TERMINALS:
                return event

    def _opened(self) -> ClientConnection:
        made = connect(websocket_url(self._url), max_size=None, open_timeout=WAIT_S)
        return self._stack.enter_context(made)


def soak(url: str, turns: int, trials: int) -> dict[str, Any]:
    begin, came = time.monotonic(), Counter({"mismatches": 0})
    for trial in range(trials):
        with ExitStack() as stack:
            run = Soak(url, stack, trial)
            for number in range(turns):
                run.turn(number)
        came.update(run.came)
    return {**came, "seconds": round(time.monotonic() - begin, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help="of a trial")
    parser.add_argument("--seconds", type=float, default=1.0, help="below 1: fewer turns")
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--url", help="with /v1")
    args = parser.parse_args()
    turns = int(args.turns * min(1.0, args.seconds))
    if args.url:
        found = soak(args.url, turns, args.trials)
    else:
        with served(ONLY_SIMULATED) as server:
            found = soak(server.url, turns, args.trials)
    about = {"turns": turns, "trials": args.trials, "python": platform.python_version()}
    print(json.dumps({"bench": "soak", **found, **about}))
    sys.exit(found["mismatches"] > 0)


if __name__ == "__main__":
    main()
