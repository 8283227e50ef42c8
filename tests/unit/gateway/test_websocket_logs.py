"""What the end of a connection leaves in the log: nothing, unless an operator should know."""

import logging

import pytest
from gateway_worlds import Opener, Town, heard, turn
from scripted_ports import create
from websockets.exceptions import ConnectionClosed

from turnwire.pipelines.config import GatewaySettings


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "turnwire.gateway")


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """The first word of what was logged at that level or above."""
    loud = (record for record in caplog.records if record.levelno >= level)
    return [record.getMessage().split(" ")[0] for record in loud]


@pytest.mark.parametrize("in_a_turn", [False, True], ids=["between turns", "in a turn"])
async def test_a_client_that_leaves_without_a_close_frame_is_no_news(
    town: Town, caplog: pytest.LogCaptureFixture, in_a_turn: bool
) -> None:
    async with town.connect() as socket:
        await turn(socket)
        if in_a_turn:
            town.world.hang_at = len(town.world.steps) + 3
            await socket.send(create().decode())
            await town.world.hanging.wait()
        caplog.clear()
        socket.transport.abort()
        await town.leases.ended.wait()
    assert said(caplog, logging.INFO) == []
    assert "connection.ended" in said(caplog, logging.DEBUG)


async def test_a_message_that_is_too_big_is_logged_in_band_and_beyond(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    town = await opener.open(settings=GatewaySettings(port=0, max_message_bytes=10_000))
    async with town.connect() as socket:
        await socket.send(create(input="x" * 15_000).decode())
        (refusal,) = await heard(socket)
        assert refusal["status"] == 400
        assert said(caplog, logging.WARNING) == ["request.too_big"]
        await socket.send(create(input="x" * 30_000).decode())
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        await town.leases.ended.wait()
    assert said(caplog, logging.WARNING) == ["request.too_big", "connection.ended"]
