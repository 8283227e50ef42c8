"""Blocking calls beside an event loop."""

import asyncio
import threading

import pytest

from turnwire.cluster.blocking import in_thread


async def test_the_answer_comes_back_while_the_loop_goes_on() -> None:
    loop_went_on = threading.Event()
    asyncio.get_running_loop().call_soon(loop_went_on.set)
    assert await in_thread(lambda: loop_went_on.wait(10)) is True


async def test_what_the_call_raises_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


def test_an_abandoned_call_does_not_keep_the_loop() -> None:
    release = threading.Event()

    async def leave() -> None:
        call = asyncio.create_task(in_thread(release.wait))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(leave())
    release.set()
