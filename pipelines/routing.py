"""The registry of live workers, and which of them serves a model. Pure: decides, never waits.

A worker counts from the moment its channel is attached until that channel ends. Load figures come
from its reports; between two reports each new route is counted here, so that a burst spreads.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from turnwire.pipelines.messages import Model, Registry, Report, Route, Worker
from turnwire.pipelines.protocol.errors import ModelNotFound, Overloaded


@dataclass
class Live:
    """A worker that is there now, and what it has to do."""

    worker: Worker
    load: int = 0
    """Commands running and waiting, as far as known."""

    @property
    def overloaded(self) -> bool:
        return self.load >= self.worker.max_ongoing

    @property
    def pressure(self) -> float:
        return self.load / self.worker.max_ongoing

    def model(self, name: str) -> Model | None:
        """The model that `name` means here: a name, else an alias."""
        models = self.worker.models
        by_name = (model for model in models if model.name == name)
        by_alias = (model for model in models if name in model.aliases)
        return next(by_name, next(by_alias, None))


@dataclass
class RoutingTable:
    """All live workers by id, and every model name ever heard of."""

    rng: random.Random
    live: dict[str, Live] = field(default_factory=dict)
    version: int = 0
    _known: dict[str, None] = field(default_factory=dict)
    """Names and aliases that may be asked for, served at the moment or not; in order."""

    def know(self, names: Iterable[str]) -> None:
        """Names from the settings: their workers may still be starting."""
        self._known.update(dict.fromkeys(names))

    def attach(self, worker: Worker) -> bool:
        """The worker is there, or tells something new of itself. True: the registry changed."""
        entry = self.live.get(worker.endpoint.id)
        if entry is not None and entry.worker == worker:
            return False
        self.live[worker.endpoint.id] = Live(worker, 0 if entry is None else entry.load)
        for model in worker.models:
            self.know((model.name, *model.aliases))
        self.version += 1
        return True

    def lost(self, worker_id: str) -> bool:
        """The worker's channel ended. True: the registry changed."""
        if self.live.pop(worker_id, None) is None:
            return False
        self.version += 1
        return True

    def report(self, report: Report) -> None:
        if (entry := self.live.get(report.worker_id)) is not None:
            entry.load = report.ongoing + report.queued

    def registry(self) -> Registry:
        return Registry(self.version, tuple(entry.worker for entry in self.live.values()))

    def resolve(self, name: str, keep: str = "") -> Route:
        """The worker for `name`: the one in use while it is well, else the freer of two at random.

        Raises ModelNotFound for a name nobody ever served, Overloaded when it is known but no
        worker of it is there now.
        """
        candidates = self._candidates(name)
        if not candidates:
            raise self._refusal(name)
        entry, model = self._choose(candidates, keep)
        if entry.worker.endpoint.id != keep:
            entry.load += 1
        return Route(model, entry.worker.endpoint)

    def usable(self, worker_id: str) -> bool:
        """May an earlier route to this worker still be used?"""
        entry = self.live.get(worker_id)
        return entry is not None and not entry.worker.draining

    def _candidates(self, name: str) -> list[tuple[Live, Model]]:
        return [
            (entry, model)
            for entry in self.live.values()
            if not entry.worker.draining and (model := entry.model(name)) is not None
        ]

    def _choose(self, candidates: list[tuple[Live, Model]], keep: str) -> tuple[Live, Model]:
        for entry, model in candidates:
            if entry.worker.endpoint.id == keep and not entry.overloaded:
                return entry, model
        free = [pair for pair in candidates if not pair[0].overloaded] or candidates
        return min(self.rng.sample(free, min(2, len(free))), key=lambda pair: pair[0].pressure)

    def _refusal(self, name: str) -> ModelNotFound | Overloaded:
        if name in self._known:
            return Overloaded(f"no worker of the model {name!r} is there at the moment; try again")
        served = ", ".join(sorted(self.names())) or "none at the moment"
        return ModelNotFound(f"the model {name!r} is not served here; served: {served}", "model")

    def names(self) -> set[str]:
        """Every name a request may use, served at the moment or not."""
        return set(self._known)

    def __repr__(self) -> str:
        entries = (
            f"{id}={entry.load}/{entry.worker.max_ongoing}{' draining' * entry.worker.draining}"
            for id, entry in self.live.items()
        )
        return f"<RoutingTable v{self.version} {' '.join(entries)}>"
