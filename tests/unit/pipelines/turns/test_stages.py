"""How long the stages of a turn took."""

from itertools import count

import orjson

from turnwire.pipelines.stages import Stages


def test_all_time_belongs_to_the_stage_that_is_passed_next() -> None:
    seconds = count(10)
    stages = Stages(lambda: float(next(seconds)), start_s=7.0)
    stages.passed("receive", 9.5)
    stages.passed("queue")
    stages.passed("route")
    stages.passed("prepare")
    stages.passed("route")
    assert stages.spent_us == {
        "receive": 2_500_000,
        "queue": 500_000,
        "route": 2_000_000,
        "prepare": 1_000_000,
    }
    assert orjson.loads(stages.json())["total"] == 7_000_000


def test_waiting_at_the_worker_is_no_part_of_the_prefill() -> None:
    seconds = count(1)
    stages = Stages(lambda: float(next(seconds)), start_s=0.0)
    stages.evaluated(waited_us=300_000)
    stages.evaluated(waited_us=300_000)
    stages.produced()
    stages.produced()
    assert stages.spent_us == {"queue": 300_000, "prefill": 700_000, "first_token": 1_000_000}


def test_time_that_nobody_waited_for_belongs_to_no_stage() -> None:
    seconds = count(1)
    stages = Stages(lambda: float(next(seconds)), start_s=0.0)
    stages.passed("commit")
    stages.resumed()
    stages.passed("settle")
    assert stages.spent_us == {"commit": 1_000_000, "settle": 1_000_000}
