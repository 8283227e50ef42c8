"""The background part of a storage worker: records written through its writer, and followed.

Followers are woken by what this process commits; what another storage worker commits they find by
looking again.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import cast

from turnwire.actors.background_records import SweepBackground, Swept
from turnwire.actors.background_rows import Key
from turnwire.actors.channel import StreamHandler, UnaryHandler
from turnwire.pipelines import messages as m
from turnwire.pipelines.background import is_background, is_running
from turnwire.pipelines.config import StorageSettings
from turnwire.pipelines.protocol.errors import (
    ApiError,
    InvalidRequest,
    Overloaded,
)

SWEEP_S = 1.0
LOOK_AGAIN_S = 0.25
"""Where other workers may write to the same database."""
ALONE_S = 5.0
"""Where none can."""

_log = logging.getLogger(__name__)


class BackgroundStorage:
    """Its handlers belong to the worker's listener; `sweep_until_cancelled` to its block."""

    def __init__(
        self,
        settings: StorageSettings,
        write: Callable[[object], Awaitable[object]],
        page: Callable[[m.FollowBackground], Awaitable[tuple[m.BackgroundEvents, bool]]],
        fetch: Callable[[m.Fetch], Awaitable[m.Stored]],
    ) -> None:
        """`write` commits one command and returns its result; `page` and `fetch` read."""
        self._settings = settings
        self._write = write
        self._page = page
        self._fetch = fetch
        self._closing = False
        self._news: dict[Key, set[asyncio.Event]] = defaultdict(set)
        self._look_again_s = ALONE_S if settings.url.startswith("sqlite") else LOOK_AGAIN_S

    def handlers(self) -> dict[type[m.Message], UnaryHandler]:
        return {
            m.BeginBackground: self._written,
            m.RecordEvents: self._record,
            m.EndBackground: self._record,
            m.RenewBackground: self._written,
            m.CancelBackground: self._cancel,
        }

    def streams(self) -> dict[type[m.Message], StreamHandler]:
        return {m.FollowBackground: self._follow}

    def close(self) -> None:
        """Send followers away: what they follow may take long, and others can tell them."""
        self._closing = True
        for events in self._news.values():
            for event in events:
                event.set()

    def changed(self, tenant: str, response_id: str) -> None:
        """Wake who follows it."""
        for event in self._news.get((tenant, response_id), ()):
            event.set()

    async def sweep_until_cancelled(self) -> None:
        """After a start, or a database that was away, gateways renew their leases first."""
        pause_s = self._settings.background_grace_s
        swept = Swept((), 0)
        while True:
            await asyncio.sleep(pause_s)
            try:
                swept = cast(Swept, await self._write(SweepBackground(swept.cleared_ms)))
            except ApiError as error:
                _log.warning("background.sweep_failed: %s", error)
                pause_s = self._settings.background_grace_s
                continue
            pause_s = SWEEP_S
            for key in swept.ended:
                _log.warning("background.lost %s: its gateway is gone", key[1])
                self.changed(*key)

    async def _written(self, command: m.Message, _caller: object) -> m.Message:
        return _message(await self._write(command))

    async def _record(
        self, command: m.RecordEvents | m.EndBackground, _caller: object
    ) -> m.Message:
        result = await self._write(command)
        self.changed(command.tenant, command.response_id)
        return _message(result)

    async def _cancel(self, command: m.CancelBackground, _caller: object) -> m.Message:
        stored = await self._fetch(m.Fetch(command.tenant, command.response_id))
        if not is_background(stored.response):
            raise InvalidRequest("Cannot cancel a synchronous response.", "response_id")
        if not is_running(stored.response):
            return stored
        result = await self._write(command)
        self.changed(command.tenant, command.response_id)
        return _message(result)

    async def _follow(
        self, command: m.FollowBackground, _caller: object
    ) -> AsyncGenerator[m.Message | list[m.Message], None]:
        tenant, response_id, after = command.tenant, command.response_id, command.after
        begun = False
        with self._listening((tenant, response_id)) as news:
            while True:
                if self._closing:
                    raise Overloaded("this storage worker is stopping")
                news.clear()
                page, is_over = await self._page(m.FollowBackground(tenant, response_id, after))
                if page.events or not begun:
                    # An empty first one says that there is something to follow.
                    yield page
                begun, after = True, page.last
                if is_over:
                    return
                if not page.events:
                    await self._wait(news)

    async def _wait(self, news: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._look_again_s):
                await news.wait()
        except TimeoutError:
            pass

    @contextmanager
    def _listening(self, key: Key) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._news[key].add(event)
        try:
            yield event
        finally:
            self._news[key].discard(event)
            if not self._news[key]:
                del self._news[key]


def _message(result: object) -> m.Message:
    assert isinstance(result, m.Message), "what answers a command is a message"
    return result
