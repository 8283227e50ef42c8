"""The data plane over TCP between actors on two Ray nodes, and a listener that is killed."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster

from turnwire.actors.channel import Caller, Channel, Listener
from turnwire.pipelines import messages as m
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.protocol.errors import ApiError, NotFound, Overloaded

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# So patient that a loss that is seen was seen by the cut of the connection.
SETTINGS = ChannelSettings(heartbeat_s=600, silence_s=3600)
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
}


class Serving:
    """Listens on its node."""

    async def start(self) -> tuple[m.Endpoint, bytes, int]:
        """The endpoint, the secret by Ray call, and the process to kill."""
        node = ray.get_runtime_context().get_node_id()
        self._folder = tempfile.TemporaryDirectory()
        self._listener = Listener(
            "serving",
            node,
            {m.Stored: self._echo, m.Load: self._refuse, m.Open: self._never},
            {m.Watch: self._count},
            SETTINGS,
        )
        folder = Path(self._folder.name) / "private"
        endpoint = await self._listener.start(folder=folder, tcp_host="127.0.0.1")
        return endpoint, self._listener.secret, os.getpid()

    def _echo(self, message: m.Stored, caller: Caller) -> m.Stored:
        assert caller.peer.startswith("tcp:")
        return message

    async def _refuse(self, message: m.Load, caller: Caller) -> m.Message:
        raise NotFound("no such response", "previous_response_id")

    async def _never(self, message: m.Open, caller: Caller) -> m.Message:
        await asyncio.Event().wait()
        return m.Done()

    async def _count(self, message: m.Watch, caller: Caller) -> AsyncGenerator[m.Message, None]:
        for number in range(1000):
            yield m.TextProduced(str(number), m.Counts())


class Calling:
    """Calls from its node."""

    async def connect(self, endpoint: m.Endpoint, secret: bytes) -> str:
        node = ray.get_runtime_context().get_node_id()
        self._lost = asyncio.Event()
        self._channel = await Channel.connect(
            endpoint, SETTINGS, node=node, secret=secret, on_lost=lambda _: self._lost.set()
        )
        return node

    async def call(self, message: m.Message) -> m.Message:
        return await self._channel.call(message)

    async def refused(self) -> tuple[str, str, str | None]:
        try:
            await self._channel.call(m.Load("tenant", "resp_1"))
        except ApiError as error:
            return type(error).__name__, error.message, error.param
        raise AssertionError("the call was not refused")

    async def count(self) -> list[str]:
        async with self._channel.stream(m.Watch()) as stream:
            return [item.text async for batch in stream for item in batch]

    async def until_lost(self) -> str:
        waiting = self._channel.call(m.Open("connection", "tenant"))
        await self._lost.wait()
        assert self._channel.lost
        try:
            await waiting
        except Overloaded as error:
            return error.message
        raise AssertionError("the call was answered")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes on one machine: `left` and `right`."""
    module = sys.modules[__name__]
    with tempfile.TemporaryDirectory(prefix="tw") as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        cloudpickle.register_pickle_by_value(module)
        node = {"num_cpus": 1, "object_store_memory": 100 * 1024 * 1024}
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                **node,
                "resources": {"left": 1},
                "include_dashboard": False,
                "temp_dir": folder,
            },
        )
        try:
            cluster.add_node(**node, resources={"right": 1})
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            cloudpickle.unregister_pickle_by_value(module)


def test_calls_and_streams_cross_nodes_and_a_killed_listener_is_seen_at_once(
    cluster: Cluster,
) -> None:
    serving = ray.remote(Serving).options(num_cpus=0, resources={"left": 1}).remote()
    calling = ray.remote(Calling).options(num_cpus=0, resources={"right": 1}).remote()
    endpoint, secret, pid = ray.get(serving.start.remote())
    node = ray.get(calling.connect.remote(endpoint, secret))
    assert node != endpoint.node
    sent = m.Stored(bytes(100_000), b"input")
    assert ray.get(calling.call.remote(sent)) == sent
    assert ray.get(calling.refused.remote()) == (
        "NotFound",
        "no such response",
        "previous_response_id",
    )
    assert ray.get(calling.count.remote()) == [str(number) for number in range(1000)]
    lost = calling.until_lost.remote()
    assert ray.get(calling.call.remote(sent)) == sent  # so the waiting call is under way
    os.kill(pid, signal.SIGKILL)
    assert ray.get(lost, timeout=60) == "serving went away"


def test_a_caller_without_the_secret_is_refused_between_nodes(cluster: Cluster) -> None:
    serving = ray.remote(Serving).options(num_cpus=0).remote()
    calling = ray.remote(Calling).options(num_cpus=0).remote()
    endpoint, secret, _ = ray.get(serving.start.remote())
    elsewhere = m.Endpoint(endpoint.id, "elsewhere", "", endpoint.tcp, endpoint.fingerprint)
    with pytest.raises(ray.exceptions.RayTaskError, match="cannot be reached"):
        ray.get(calling.connect.remote(elsewhere, secret[::-1]))
    ray.get(calling.connect.remote(elsewhere, secret))
