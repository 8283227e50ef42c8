"""The benchmarks run: a moment each, and their one line is read."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
FOLDER = Path(__file__).parents[2] / "benchmarks"


def line_of(name: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / name), "--trials", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_end_to_end_measures_turns_three_floors_and_the_pace(server: RunningServer) -> None:
    found = line_of("end_to_end.py", "--url", server.url, "--seconds", "0.1")
    turns = found["as_it_is"]
    for name in ("back_to_back", "gaps_20_ms"):
        assert 0 < turns[f"floor_echo_{name}"]["p50_ms"] < turns[name]["p50_ms"]
        assert 0 < turns[f"floor_hops_{name}"]["p50_ms"] < turns[name]["p50_ms"]
        assert 0 < turns[f"floor_engine_{name}"]["p50_ms"] < turns[name]["p50_ms"]
    assert 0 < turns["stream_4000_achieved"]["median"] < 1.1
    assert 0 < turns["streams_25_x_1000_achieved"]["min"] < 1.1


def test_footprint_names_every_process() -> None:
    found = line_of("footprint.py", "--seconds", "0.1")
    assert found["ready_s"]["median"] > 0
    roles = [name for name, _ in found["processes"]]
    assert {"turnwire", "raylet", "ServeReplica:gateway:Gateway"} <= set(roles)
    assert sum(mib for _, mib in found["processes"]) == pytest.approx(
        found["pss_mib"]["median"], abs=2
    )


def test_end_to_end_measures_two_histories_and_names_who_spends_what() -> None:
    found = line_of("end_to_end.py", "--seconds", "0.1", "--policies", "score")
    turns = found["safety_score"]
    for name in ("back_to_back_1000", "back_to_back_100000", "gaps_20_ms_1000"):
        cost = turns[name]["cpu_us"]
        assert 0 < cost["ServeReplica:gateway:Gateway"] < cost["all"]
        for floor in ("floor_engine", "floor_echo", "floor_hops"):
            assert 0 < found[floor]["back_to_back"]["p50_ms"] < turns[name]["p50_ms"]
        assert turns[name]["overhead"]["p50_ms"] < turns[name]["p50_ms"]
    assert turns["back_to_back_ratio"]["median"] > 0


def test_soak_finds_no_turn_that_knows_less_or_more_than_its_past(server: RunningServer) -> None:
    found = line_of("soak.py", "--url", server.url, "--turns", "300")
    assert found["mismatches"] == 0
    assert min(found[how] for how in ("named", "in_full", "in_full_http", "cached")) > 0


def test_connection_memory_measures_an_idle_conversation_and_its_growth() -> None:
    found = line_of("connection_memory.py", "--seconds", "0.1")
    assert found["idle_context_mib"]["median"] > 0
    assert found["idle_pss_mib"]["median"] > 0


def test_store_keeps_its_bound_and_measures_both_databases() -> None:
    found = line_of(
        "store.py", "--seconds", "0.1", "--responses", "400", "--turns-on", "postgresql"
    )
    for kept in found["kept"].values():
        assert kept["end_over_bound"] <= 0
        assert kept["deletes_freed_at_once"] == kept["deletes"] == 10
    for name in ("postgresql_store_false", "postgresql_store_true", "floor_fdatasync"):
        assert found["turn"][name]["p50_ms"] > 0
