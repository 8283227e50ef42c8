"""What an operator sees of turns: each is counted by the client's family, and one line of the log.

Above all how conversations are continued: a client that sends everything again with each turn gets
right answers, slowly, and nothing else would show it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from turnwire.gateway.caller import Caller
from turnwire.gateway.stage_metrics import StageMetrics
from turnwire.pipelines.continuity import Setbacks
from turnwire.pipelines.messages import Continuation, Prepared, UsageRecord
from turnwire.pipelines.protocol.errors import ApiError
from turnwire.pipelines.protocol.tool_choice import HOSTED
from turnwire.pipelines.stages import Stages
from turnwire.pipelines.turn import Turn

NOTED_S = 0.05
"""Ended turns wait so long at most to be counted and logged, together: by then nobody waits for
the next event of a client that came back at once."""
MAX_UNNOTED = 256

logger = logging.getLogger("turnwire.turn")


@dataclass(slots=True)
class _Ended:
    """A turn that got a response, as far as it is counted and logged."""

    response_id: str
    caller: Caller
    came: Continuation
    usage: UsageRecord
    stages: Stages


class Observation:
    """All turns of one gateway. It lives as long as the gateway; `close` it then."""

    def __init__(
        self,
        index_bytes: Callable[[], int] = lambda: 0,
        prompt_checks: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """`index_bytes`: what is kept now, to find conversations by their content.

        `prompt_checks`: how many prompts were compared so far, and how many differed.
        """
        self._prompt_checks = prompt_checks
        self._counted = 0, 0
        self._unnoted: list[_Ended] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.setbacks = Setbacks()
        self._registry = CollectorRegistry()
        self.turns = Counter(
            "turnwire_turns",
            "Turns that got a response: how they came (continuation), and how they ended (status).",
            ("client", "transport", "continuation", "status"),
            registry=self._registry,
        )
        self.lookups = Counter(
            "turnwire_content_lookups",
            "Turns that repeated what was said before: was it known by its content (hit, miss)?",
            ("client", "transport", "result"),
            registry=self._registry,
        )
        self.refusals = Counter(
            "turnwire_refusals",
            "Requests that were answered with an error instead of a response.",
            ("client", "transport", "code"),
            registry=self._registry,
        )
        Gauge(
            "turnwire_content_index_bytes",
            "Conversations kept by this gateway, to find them by their content.",
            registry=self._registry,
        ).set_function(index_bytes)
        self.checks = Counter(
            "turnwire_prompt_checks",
            "Prompts that were rendered anew, to compare them with what was sent.",
            registry=self._registry,
        )
        self.mismatches = Counter(
            "turnwire_prompt_mismatch",
            "Prompts that were not what rendering all of the conversation gives: a bug.",
            registry=self._registry,
        )
        self.stages = StageMetrics()
        self._registry.register(self.stages)

        self.dropped_tools = Counter(
            "turnwire_dropped_tools",
            "Tools of turns that no model was shown, since nothing here could run them.",
            ("client", "kind"),
            registry=self._registry,
        )

    def text(self) -> bytes:
        """In the text format of Prometheus."""
        self.note()
        before, self._counted = self._counted, self._prompt_checks()
        self.checks.inc(self._counted[0] - before[0])
        self.mismatches.inc(self._counted[1] - before[1])
        return generate_latest(self._registry)

    def refused(self, caller: Caller, error: ApiError) -> None:
        """No response was made. What follows in that conversation follows an error."""
        self.refusals.labels(caller.family, caller.transport, error.code).inc()
        self.setback(caller)

    def ended(self, turn: _Ended) -> None:
        """To be noted in a moment."""
        self._unnoted.append(turn)
        if self._closed or len(self._unnoted) >= MAX_UNNOTED:
            self.note()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTED_S, self.note)

    def note(self) -> None:
        """Count and log all turns that ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        turns, self._unnoted = self._unnoted, []
        for turn in turns:
            self._note(turn)

    def close(self) -> None:
        """What comes now is noted at once."""
        self._closed = True
        self.note()

    def _note(self, turn: _Ended) -> None:
        caller, usage = turn.caller, turn.usage
        labels = caller.family, caller.transport, turn.came, usage.status
        self.turns.labels(*labels).inc()
        self.stages.add(turn.stages.spent_us)
        logger.info(
            "turn.ended response_id=%s client=%s transport=%s continuation=%s status=%s "
            "model=%s input_tokens=%d cached_tokens=%d output_tokens=%d us=%s",
            turn.response_id,
            *labels,
            usage.model,
            usage.counts.input_tokens,
            usage.counts.cached_tokens,
            usage.counts.output_tokens,
            turn.stages,
        )

    def setback(self, caller: Caller) -> None:
        if caller.conversation:
            self.setbacks.add(caller.tenant, caller.conversation)


class ObservedTurn:
    """One turn of a caller: `prepared` if it comes so far, then `ended` once."""

    def __init__(self, observation: Observation, caller: Caller) -> None:
        self._observation = observation
        self._caller = caller
        self._came: Continuation = "new"

    def prepared(self, prepared: Prepared) -> None:
        caller, setbacks = self._caller, self._observation.setbacks
        self._came = setbacks.explain(caller.tenant, caller.conversation, prepared.continuation)
        if prepared.repeated_items or prepared.continuation.startswith("full"):
            result = "hit" if prepared.repeated_items else "miss"
            self._observation.lookups.labels(caller.family, caller.transport, result).inc()
        for kind in prepared.dropped_tools:
            known = kind if kind in HOSTED else "other"
            self._observation.dropped_tools.labels(caller.family, known).inc()

    def ended(self, turn: Turn, refusal: ApiError | None) -> None:
        """`refusal`: why there is no response. With neither, the client left before there was."""
        caller, usage = self._caller, turn.usage
        if refusal is not None:
            self._observation.refused(caller, refusal)
            logger.info(
                "turn.refused response_id=%s client=%s transport=%s code=%s",
                turn.id,
                caller.family,
                caller.transport,
                refusal.code,
            )
        elif usage is not None:
            if turn.failure is not None:
                self._observation.setback(caller)
            self._observation.ended(_Ended(turn.id, caller, self._came, usage, turn.stages))
