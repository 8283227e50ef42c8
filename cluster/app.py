"""The Serve applications of a server: one a pool and one a model, since deploying to a running
application restarts every replica of it, and a separate application leaves the others alone.
"""

import re
import time
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, LoggingConfig

from turnwire.cluster.deployments import ROUTING, Gateway, Pool, Routing
from turnwire.cluster.place import Place
from turnwire.cluster.server import ServerFailed
from turnwire.cluster.settings import Settings
from turnwire.pipelines.config import ModelSettings, PoolSettings

GATEWAY = "gateway"
HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 10.0
"""A busy machine must not look dead; a dead process is noticed at once, without this."""
START_TRIES = 2
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
DELETE_POLL_S = 0.1
SHUTDOWN_SLACK_S = 5.0
"""What a replica may take beyond its drain before it is killed."""


@dataclass(frozen=True)
class Application:
    """One Serve application with one deployment of one class."""

    name: str
    replica: type
    arguments: tuple[Any, ...]
    replicas: int
    drain_s: float

    def target(self) -> serve.RunTarget:
        deploy = serve.deployment(
            name=self.replica.__name__,
            num_replicas=self.replicas,
            ray_actor_options={"num_cpus": 0},
            max_ongoing_requests=1000,
            health_check_period_s=HEALTH_PERIOD_S,
            health_check_timeout_s=HEALTH_TIMEOUT_S,
            graceful_shutdown_wait_loop_s=0.05,
            graceful_shutdown_timeout_s=self.drain_s + SHUTDOWN_SLACK_S,
            max_constructor_retry_count=START_TRIES,
            logging_config=QUIET,
        )
        target = deploy(self.replica).bind(*self.arguments)
        return serve.RunTarget(target=target, name=self.name, route_prefix=None)


def model_application(model: ModelSettings, settings: Settings, place: Place) -> Application:
    """Deploying it again restarts that model alone."""
    return Application(
        f"model-{model.name}",
        Pool,
        (place, model, settings.channel),
        model.replicas,
        model.drain_s,
    )


def applications(settings: Settings, place: Place) -> list[Application]:
    """All of a server, in the order they are worth starting: the others need routing."""

    def pool(name: str, section: PoolSettings) -> Application:
        arguments = (place, section, settings.channel)
        return Application(name, Pool, arguments, section.replicas, section.drain_s)

    names = tuple(model.name for model in settings.models)
    gateway = settings.gateway
    return [
        Application(ROUTING, Routing, (place, settings.channel, names), 1, 0.0),
        *(model_application(model, settings, place) for model in settings.models),
        Application(GATEWAY, Gateway, (place, settings), gateway.replicas, gateway.drain_s),
        pool("safety", settings.safety),
        pool("storage", settings.storage),
        pool("billing", settings.billing),
    ]


class Applications:
    """The applications of one server on the Ray this process is connected to. Calls block."""

    def __init__(self, settings: Settings, place: Place) -> None:
        self._all = applications(settings, place)
        self._private = settings.ray.address is None

    def deploy(self) -> None:
        """Ask for all of them; they come up side by side."""
        serve.start(proxy_location="Disabled", logging_config=QUIET)
        serve.run_many(
            [application.target() for application in self._all],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def waiting(self) -> list[str]:
        """Names of those that do not run yet. Raises ServerFailed."""
        found = serve.status().applications
        waiting = []
        for name in (application.name for application in self._all):
            state = found.get(name)
            if state is not None and state.status is ApplicationStatus.DEPLOY_FAILED:
                messages = [row.message for row in state.deployments.values() if row.message]
                raise ServerFailed(f"{name} cannot start: {_last_line(messages)}")
            if state is None or state.status is not ApplicationStatus.RUNNING:
                waiting.append(name)
        return waiting

    def give_keys(self, keys: bytes) -> bool:
        """Hand routing what seals are made with. False: it is not there yet, or away."""
        try:
            routing = serve.get_app_handle(ROUTING)
            routing.keep_keys.remote(keys, True).result(timeout_s=10)
        except (RayError, RayServeException, TimeoutError):
            return False
        return True

    def address(self) -> tuple[str, int]:
        """Where the gateway listens."""
        host, port = serve.get_app_handle(GATEWAY).address.remote().result(timeout_s=10)
        return host, port

    def delete_gateway(self) -> None:
        """Returns when its turns have ended and it is gone."""
        serve.delete(GATEWAY)

    def delete(self) -> None:
        """All the others, side by side; on a private Ray, Serve too."""
        if self._private:
            serve.shutdown()  # type: ignore[no-untyped-call]
            return
        names = {application.name for application in self._all}
        for name in names:
            serve.delete(name, _blocking=False)
        while names & serve.status().applications.keys():
            time.sleep(DELETE_POLL_S)


def _last_line(messages: list[str]) -> str:
    """Of a traceback that is: what was wrong, without the class of the error."""
    lines = [line.strip() for line in "\n".join(messages).splitlines() if line.strip()]
    return re.sub(r"^[\w.]+: ", "", lines[-1]) if lines else "no reason was given"
