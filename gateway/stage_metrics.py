"""How long the stages of turns took, as histograms of `/metrics`.

Counted in plain lists, since `observe` of the metrics library costs some 30 us a turn; what it
understands is made of them when somebody asks.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from turnwire.pipelines.stages import STAGES

BOUNDS_US = (50, 100, 250, 500, *(n * 10**e for e in (3, 4, 5, 6) for n in (1, 2.5, 5)), 10**7)
NAME = "turnwire_turn_stage_seconds"


class StageMetrics(Collector):
    """All turns of one gateway."""

    def __init__(self) -> None:
        self._counts = {stage: [0] * (len(BOUNDS_US) + 1) for stage in STAGES}
        self._sums_us = dict.fromkeys(STAGES, 0)

    def add(self, spent_us: Mapping[str, int]) -> None:
        """One turn that is over."""
        for stage, us in spent_us.items():
            self._counts[stage][bisect_left(BOUNDS_US, us)] += 1
            self._sums_us[stage] += us

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            NAME, "How long each stage of a turn took.", labels=["stage"]
        )
        bounds = [*(f"{us / 1e6:g}" for us in BOUNDS_US), "+Inf"]
        for stage, counts in self._counts.items():
            buckets, total = [], 0
            for bound, count in zip(bounds, counts, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric([stage], buckets, self._sums_us[stage] / 1e6)
        yield family
