# ruff: noqa: ANN401 -- what conftest.py defines has no importable type
"""Whatever a request says, it is prepared or refused as the client's fault, in either form."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))

from any_bodies import BODIES

from turnwire.pipelines import messages as m
from turnwire.pipelines.protocol.errors import InvalidRequest


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(fields=BODIES)
def test_a_request_is_prepared_or_refused_and_leaves_nothing(
    new_talk: Any, token_model: m.Model, item_model: m.Model, fields: dict[str, Any]
) -> None:
    frame = json.dumps({"model": "m"} | fields).encode()
    for model in (token_model, item_model):
        state = new_talk(model).state
        with suppress(InvalidRequest):
            answer = state.prepare(m.Prepare("c", "resp_1", frame, model))
            if isinstance(answer, m.Prepared):
                orjson.loads(b"{%b,%b,%b}" % (answer.echo, answer.echo_tools, answer.echo_turn))
        state.abort(m.Abort("c", "resp_1"))
        assert (len(state._running), state.history.held_bytes) == (0, 0)
