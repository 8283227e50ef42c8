"""What the listener of one turn is told: in order, each thing once, and together what may wait."""

from collections.abc import Callable

from turnwire.pipelines.messages import Json, Prepared
from turnwire.pipelines.response_stream import ResponseStream
from turnwire.pipelines.turn_request import Listener


class Telling:
    """Of a turn whose response exists. `created` and `started` may be called again."""

    def __init__(
        self,
        listener: Listener,
        now_s: Callable[[], float],
        prepared: Prepared,
        stream: ResponseStream,
    ) -> None:
        self._listener = listener
        self._now_s = now_s
        self._prepared = prepared
        self._stream = stream
        self._kept: list[Json] = []
        """Events that have their numbers and leave with the next ones."""
        self._told = self._started = False
        self._sent_s = 0.0

    def prepared(self) -> None:
        """That its frame is not needed any more."""
        if not self._told:
            self._told = True
            self._listener.prepared(self._prepared)

    def created(self) -> None:
        """That the response exists, in front of whatever comes next."""
        self.prepared()
        if not self._stream.exists:
            background = self._prepared.background
            self.keep(self._stream.accepted() if background else self._stream.created())

    def queued(self) -> None:
        """That no worker is free."""
        self.created()
        self.send(self._stream.queued())

    def started(self, *, now: bool = True) -> None:
        """That a worker has it, or will have it in a moment."""
        self.created()
        if not self._started:
            self._started = True
            self.keep(self._stream.started())
        self.send([], now=now)

    def keep(self, events: list[Json]) -> None:
        """They leave with the next ones that are sent."""
        self._kept += events

    def send(self, events: list[Json], *, now: bool = True) -> None:
        """With those that were kept. Unless `now`, they may wait some milliseconds for others."""
        events, self._kept = self._kept + events, []
        if events:
            self._sent_s = self._now_s()
            self._listener.events(events, now=now)

    def beat(self, now_s: float, heartbeat_s: float) -> None:
        """Repeat the state to a client that has heard nothing for so long."""
        if now_s - self._sent_s >= heartbeat_s:
            self.send(self._stream.heartbeat())
