"""The tables of stored responses, for SQLite and PostgreSQL, and the rows made of messages."""

from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from turnwire.actors.schema import Schema
from turnwire.pipelines import messages as m

if TYPE_CHECKING:
    from alembic.operations import Operations

metadata = sa.MetaData()

responses = sa.Table(
    "responses",
    metadata,
    sa.Column("tenant", sa.String(256), primary_key=True),
    sa.Column("response_id", sa.String(256), primary_key=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("parent_id", sa.String(256)),
    sa.Column("response", sa.LargeBinary, nullable=False),
    sa.Column("input", sa.LargeBinary, nullable=False),
    sa.Column("output", sa.LargeBinary, nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("sampled", sa.LargeBinary, nullable=False),
    sa.Column("finish", sa.String(32), nullable=False),
    sa.Column("context", sa.LargeBinary),
    sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("responses_by_age", "created_at"),
)
"""`context` (MessagePack of a Chain) is set where the parent itself is not stored. `bytes` is what
the row counts in `storage_slots`."""

storage_slots = sa.Table(
    "storage_slots",
    metadata,
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)
"""One row a storage worker. `epoch` grows with each worker that takes the slot. All `bytes` add up
to what is stored; one alone may be negative, since a worker deletes what another has written."""

BEFORE_SLOTS = -1
"""The slot that counts what was stored by the first release."""


def _create(op: "Operations") -> None:
    op.create_table(
        "responses",
        sa.Column("tenant", sa.String(256), primary_key=True),
        sa.Column("response_id", sa.String(256), primary_key=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("parent_id", sa.String(256)),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("output", sa.LargeBinary, nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("sampled", sa.LargeBinary, nullable=False),
        sa.Column("finish", sa.String(32), nullable=False),
        sa.Column("context", sa.LargeBinary),
        sa.Index("responses_by_age", "created_at"),
    )


def _count_bytes(op: "Operations") -> None:
    op.add_column(
        "responses", sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0")
    )
    op.create_table(
        "storage_slots",
        sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )
    op.execute(
        "UPDATE responses SET bytes = length(response) + length(input) + length(output)"
        " + length(sampled) + coalesce(length(context), 0)"
    )
    op.execute(
        f"INSERT INTO storage_slots SELECT {BEFORE_SLOTS}, 0, coalesce(sum(bytes), 0)"
        " FROM responses"
    )


SCHEMA = Schema("storage", metadata, (_create, _count_bytes))


def response_row(save: m.Save) -> dict[str, Any]:
    context = None if save.context is None else msgspec.msgpack.encode(save.context)
    content = (save.response, save.turn.input, save.turn.output, save.turn.sampled, context or b"")
    return {
        "tenant": save.tenant,
        "response_id": save.response_id,
        "created_at": save.created_at,
        "parent_id": save.parent_id,
        "response": save.response,
        "input": save.turn.input,
        "output": save.turn.output,
        "model": save.turn.model,
        "sampled": save.turn.sampled,
        "finish": save.turn.finish,
        "context": context,
        "bytes": sum(map(len, content)),
    }


_chain = msgspec.msgpack.Decoder(m.Chain)


def stored_turns(row: sa.Row[Any]) -> list[m.StoredTurn]:
    """The turn of a row, after all that its snapshot says came before; oldest first."""
    turn = m.StoredTurn(row.response_id, row.input, row.output, row.model, row.sampled, row.finish)
    return [*(() if row.context is None else _chain.decode(row.context).turns), turn]


def conversation_before(row: sa.Row[Any]) -> str | None:
    """The conversation whose turns come before the row's, if its snapshot names one."""
    return None if row.context is None else _chain.decode(row.context).conversation_id


def chain_query(tenant: str, response_id: str, max_turns: int) -> sa.Select[Any]:
    """The rows from `response_id` back to its first turn or snapshot, newest first."""
    columns = (responses.c.response_id, responses.c.parent_id, responses.c.context)
    mine = responses.c.tenant == tenant
    start = sa.select(*columns, sa.literal(0).label("depth")).where(
        mine, responses.c.response_id == response_id
    )
    walk = start.cte("walk", recursive=True)
    step = (
        sa.select(*columns, walk.c.depth + 1)
        .join_from(walk, responses, responses.c.response_id == walk.c.parent_id)
        .where(mine, walk.c.context.is_(None), walk.c.depth < max_turns)
    )
    walk = walk.union_all(step)
    return (
        sa.select(responses, walk.c.depth)
        .join_from(walk, responses, responses.c.response_id == walk.c.response_id)
        .where(mine)
        .order_by(walk.c.depth)
    )
