"""Keys reach a gateway through routing, and come back to a routing that was replaced."""

import asyncio

from turnwire.actors.deployment_keys import DeploymentKeys
from turnwire.actors.routing import RoutingActor
from turnwire.pipelines.config import ChannelSettings
from turnwire.pipelines.sealing import Keyring

KEYS, OTHERS = bytes(range(32)), bytes(32)


class Door:
    """The calls of a `RoutingRef`, without Ray."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.kept = asyncio.Event()
        self.replace()

    def replace(self) -> None:
        self.actor = RoutingActor("routing", "here", ChannelSettings())

    async def keys(self) -> bytes:
        self.asked.set()
        return await self.actor.keys()

    async def keep_keys(self, keys: bytes) -> None:
        await self.actor.keep_keys(keys)
        self.kept.set()


async def test_a_gateway_waits_for_keys_and_reminds_a_replaced_routing() -> None:
    door, keyring = Door(), Keyring()
    block = DeploymentKeys(door, keyring, remind_s=0.001)  # type: ignore[arg-type]
    entering = asyncio.create_task(block.__aenter__())
    await door.asked.wait()
    assert not entering.done()
    await door.actor.keep_keys(KEYS, anew=True)
    await entering
    assert keyring.packed() == KEYS
    door.replace()
    door.kept.clear()
    await door.kept.wait()
    assert await door.actor.keys() == KEYS
    await block.__aexit__(None, None, None)


async def test_only_whoever_serves_puts_other_keys_in_place() -> None:
    actor = RoutingActor("routing", "here", ChannelSettings())
    await actor.keep_keys(KEYS)
    await actor.keep_keys(OTHERS)
    assert await actor.keys() == KEYS
    await actor.keep_keys(OTHERS, anew=True)
    assert await actor.keys() == OTHERS
