"""Connection actors as plain Ray actors: on this node, owned by this process, never restarted.

A restarted one would be empty without saying so; a dead one is seen by its channel and replaced.
"""

from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from turnwire.actors.lease import ActorFactory
from turnwire.pipelines.messages import Endpoint
from turnwire.pipelines.protocol.errors import Overloaded

MAX_CONCURRENCY = 8
"""Ray calls at once; turns do not come this way."""


class RayActors(ActorFactory):
    """`actor` is a class with `async start() -> Endpoint`; `arguments` gives its constructor's."""

    # Any: Ray's handles have no static type.
    def __init__(
        self,
        actor: type,
        arguments: Callable[[str], tuple[Any, ...]],
        keys: Callable[[], bytes] = bytes,
    ) -> None:
        """`keys` is asked at each start: what must not stand in a constructor's arguments, which
        Ray keeps and shows."""
        here = NodeAffinitySchedulingStrategy(
            node_id=ray.get_runtime_context().get_node_id(), soft=False
        )
        self._actor: Any = ray.remote(actor).options(
            num_cpus=0,
            max_concurrency=MAX_CONCURRENCY,
            max_restarts=0,
            scheduling_strategy=here,
        )
        self._arguments = arguments
        self._keys = keys
        self._handles: dict[str, Any] = {}

    async def start(self, actor_id: str) -> Endpoint:
        try:
            handle = self._actor.remote(*self._arguments(actor_id))
            self._handles[actor_id] = handle
            endpoint: Endpoint = await handle.start.remote(self._keys())
        except RayError as error:
            raise Overloaded(f"the actor {actor_id} did not start") from error
        return endpoint

    def kill(self, actor_id: str) -> None:
        if (handle := self._handles.pop(actor_id, None)) is not None:
            ray.kill(handle)
