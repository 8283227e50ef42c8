"""Connections for HTTP turns: one long-lived connection a tenant, leased when first needed."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from turnwire.actors.leased_connection import LeasedConnection
from turnwire.pipelines.protocol.errors import Overloaded


@dataclass
class _Shared:
    connection: LeasedConnection
    users: int = 0


class SharedConnections:
    """The tenants used last keep theirs; one that no turn uses makes room for another tenant's."""

    def __init__(
        self,
        open: Callable[[str], LeasedConnection],
        close: Callable[[LeasedConnection], None],
        max_tenants: int,
    ) -> None:
        self._open = open
        self._close = close
        self._max_tenants = max_tenants
        self._by_tenant: dict[str, _Shared] = {}
        """The one used longest ago comes first."""

    @asynccontextmanager
    async def shared(self, tenant: str) -> AsyncGenerator[LeasedConnection, None]:
        """The tenant's connection, for one turn. Raises Overloaded."""
        entry = self._by_tenant.pop(tenant, None) or _Shared(self._lease(tenant))
        self._by_tenant[tenant] = entry
        entry.users += 1
        try:
            await entry.connection.placed()
            yield entry.connection
        finally:
            entry.users -= 1

    def close(self) -> None:
        """Give all of them back; turns that use one end with their actor."""
        entries, self._by_tenant = self._by_tenant, {}
        for entry in entries.values():
            self._close(entry.connection)

    def _lease(self, tenant: str) -> LeasedConnection:
        if len(self._by_tenant) >= self._max_tenants:
            unused = next((t for t, entry in self._by_tenant.items() if not entry.users), None)
            if unused is None:
                raise Overloaded(f"{self._max_tenants} tenants have HTTP turns running")
            self._close(self._by_tenant.pop(unused).connection)
        return self._open(tenant)
