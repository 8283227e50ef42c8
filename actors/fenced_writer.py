"""The one way into the stored tables: transactions that only the worker in charge can commit.

A worker takes a slot and with it an epoch, one above that of the worker before. Each transaction
ends with an update of the slot's row that finds it under the worker's own epoch only. So a worker
that was taken for dead and replaced, but lives on (a node cut off, a raylet killed), changes
nothing any more: the update waits for its successor's claim or makes that wait, never both pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from turnwire.actors.database import missing, persistently
from turnwire.actors.storage_schema import storage_slots
from turnwire.pipelines.protocol.errors import ApiError, Overloaded


@dataclass
class Transaction:
    """What a write works with."""

    connection: sa.Connection
    bytes_added: int = 0
    """A write adds the bytes it stores here and takes off those it deletes."""


Write = Callable[[Transaction, Any], object]
"""Carries out one command and returns its result. The second time it changes nothing, since a
command is sent again when nobody knows whether it was committed. It may refuse by raising an
ApiError as long as it has changed nothing; the commands beside it are committed all the same."""


class Fenced(Overloaded):
    """This worker was replaced by another and must not write any more."""


class FencedWriter:
    """`writes`: how each type of command is carried out. Blocking; one thread at a time."""

    def __init__(self, engine: sa.Engine, slot: int, writes: Mapping[type, Write]) -> None:
        self._engine = engine
        self._slot = slot
        self._writes = writes
        self._epoch = persistently(self._claim)
        self.fenced = False

    def commit(self, commands: Sequence[object]) -> list[object]:
        """One transaction, in order: a result each, or the ApiError that refuses the command.

        Raises Fenced, and Overloaded while the database is away; then nothing is known to have
        changed.
        """
        if self.fenced:
            raise Fenced("this storage worker was replaced")
        return persistently(lambda: self._commit(commands))

    def _commit(self, commands: Sequence[object]) -> list[object]:
        results: list[object] = []
        with self._engine.begin() as connection:
            transaction = Transaction(connection)
            for command in commands:
                try:
                    results.append(self._writes[type(command)](transaction, command))
                except ApiError as refusal:
                    results.append(refusal)
            mine = sa.and_(storage_slots.c.slot == self._slot, storage_slots.c.epoch == self._epoch)
            total = storage_slots.c.bytes + transaction.bytes_added
            if not connection.execute(
                sa.update(storage_slots).where(mine).values(bytes=total)
            ).rowcount:
                self.fenced = True
                raise Fenced("this storage worker was replaced")
        return results

    def _claim(self) -> int:
        mine = storage_slots.c.slot == self._slot
        with self._engine.begin() as connection:
            new = {"slot": self._slot, "epoch": 0, "bytes": 0}
            connection.execute(missing(connection, storage_slots), new)
            claim = sa.update(storage_slots).where(mine).values(epoch=storage_slots.c.epoch + 1)
            epoch = connection.execute(claim.returning(storage_slots.c.epoch)).scalar_one()
            return int(epoch)
