"""Which plain actor stands behind each pool. Only the one that is built is imported."""

from pathlib import Path
from typing import Protocol, runtime_checkable

from turnwire.pipelines import messages as m
from turnwire.pipelines.config import (
    BillingSettings,
    ChannelSettings,
    ModelSettings,
    SafetySettings,
    StorageSettings,
)

Section = ModelSettings | SafetySettings | StorageSettings | BillingSettings
"""The settings decide what is built."""


class PoolActor(Protocol):
    """What the plain actors of the pools have in common."""

    async def start(self, folder: Path, tcp_host: str | None = None) -> m.Worker: ...
    async def close(self) -> None: ...
    @property
    def secret(self) -> bytes: ...
    def load(self) -> tuple[int, int]: ...


@runtime_checkable
class LongRunning(PoolActor, Protocol):
    """One whose commands take so long that its end has to wait for them."""

    async def drain(self, deadline_s: float) -> None: ...


@runtime_checkable
class Breakable(PoolActor, Protocol):
    """One that can come to be of no use although its process lives; then this raises."""

    def check_health(self) -> None: ...


def build(
    section: Section, worker_id: str, node: str, channel: ChannelSettings, rank: int
) -> PoolActor:
    """`rank`: the worker's number in its pool, that of the dead one for its successor."""
    match section:
        case SafetySettings():
            from turnwire.actors.safety import SafetyActor

            return SafetyActor(worker_id, node, section, channel)
        case StorageSettings():
            from turnwire.actors.storage import StorageActor

            return StorageActor(worker_id, node, section, channel, slot=rank)
        case BillingSettings():
            from turnwire.actors.billing import BillingActor

            return BillingActor(worker_id, node, section, channel)
        case ModelSettings():
            from turnwire.actors.inference import InferenceWorker

            return InferenceWorker(worker_id, node, section, channel)
