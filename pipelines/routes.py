"""The routes a connection has in use: asked for once, kept while their worker is there."""

from collections.abc import Callable
from dataclasses import dataclass, field

from turnwire.pipelines.messages import Model, Resolve, Route
from turnwire.pipelines.ports import Router
from turnwire.pipelines.protocol.errors import Overloaded, RateLimitExceeded
from turnwire.pipelines.services import Clock

MAX_ROUTES = 16
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


def no_worker(model: str) -> RateLimitExceeded:
    """The refusal clients wait on, by its wording, before they try again."""
    return RateLimitExceeded(
        f"No worker of the model {model!r} is free at the moment. Please try again in 5s."
    )


@dataclass
class Routes:
    """By the name a request uses; the oldest is forgotten beyond `MAX_ROUTES`."""

    router: Router
    clock: Clock
    _routes: dict[str, Route] = field(default_factory=dict)

    def valid(self, name: str) -> Route | None:
        """The route in use, if its worker is still there."""
        route = self._routes.get(name)
        return route if route is not None and self.router.valid(route) else None

    def model(self, name: str) -> Model | None:
        """What is known of the model, even if its worker went away."""
        route = self._routes.get(name)
        return None if route is None else route.model

    async def resolved(self, name: str, give_up_s: float, *, anew: bool = False) -> Model:
        """As it is known, else, or `anew`, as `find` says.

        A model whose worker just went away is still known: its turn is created first and then
        waits for another worker, because clients try again after that refusal only.
        """
        model = None if anew else self.model(name)
        return model or (await self.find(name, give_up_s)).model

    async def find(
        self,
        name: str,
        give_up_s: float,
        lost: Route | None = None,
        losses: int = 0,
        waits: Callable[[], None] | None = None,
    ) -> Route:
        """A worker for `name`; asks again until `give_up_s` while there is none.

        `lost`: the worker that just failed this turn, the last of `losses`. The first loss is made
        good at once by another worker; after more of them, or while the registry still names the
        lost one, the answer is delayed, longer each time. `waits` is called when that begins.
        Raises ModelNotFound for a name nobody serves, RateLimitExceeded when the time is over.
        """
        pause_s = min(_FIRST_PAUSE_S * 2 ** max(0, losses - 1), _LONGEST_PAUSE_S)
        while True:
            try:
                route = await self.router.resolve(Resolve(name, self._keep(name, lost)))
            except Overloaded:
                route = None
            if route is not None and _usable_at_once(route, lost, losses):
                break
            if self.clock.now_s() + pause_s > give_up_s:
                raise no_worker(name)
            if waits is not None:
                waits()
                waits = None
            await self.clock.sleep(pause_s)
            if route is not None:
                break
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._remember(name, route)
        return route

    def _keep(self, name: str, lost: Route | None) -> str:
        route = self._routes.get(name)
        if route is None or (lost is not None and route.worker.id == lost.worker.id):
            return ""
        return route.worker.id

    def _remember(self, name: str, route: Route) -> None:
        self._routes.pop(name, None)
        while len(self._routes) >= MAX_ROUTES:
            del self._routes[next(iter(self._routes))]
        self._routes[name] = route


def _usable_at_once(route: Route, lost: Route | None, losses: int) -> bool:
    return lost is None or (losses == 1 and route.worker.id != lost.worker.id)
