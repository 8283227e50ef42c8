"""The tables of stored responses, for SQLite and PostgreSQL, and the rows made of messages."""

from typing import Any

import msgspec
import sqlalchemy as sa

from turnwire.pipelines import messages as m

VERSION = 1

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
    sa.Index("responses_by_age", "created_at"),
)
"""`context` (MessagePack of a Chain) is set where the parent itself is not stored."""


def response_row(save: m.Save) -> dict[str, Any]:
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
        "context": None if save.context is None else msgspec.msgpack.encode(save.context),
    }


_chain = msgspec.msgpack.Decoder(m.Chain)


def stored_turns(row: sa.Row[Any]) -> list[m.StoredTurn]:
    """The turn of a row, after all that its snapshot says came before; oldest first."""
    turn = m.StoredTurn(row.response_id, row.input, row.output, row.model, row.sampled, row.finish)
    return [*(() if row.context is None else _chain.decode(row.context).turns), turn]


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
