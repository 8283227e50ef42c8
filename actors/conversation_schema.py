"""The tables of conversations, for SQLite and PostgreSQL, and the rows made of messages.

A conversation is a row, its turns (one a version: a turn of a model, or items added by hand) and
its items, each of one of these turns.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from turnwire.actors.schema import Schema
from turnwire.pipelines import messages as m
from turnwire.pipelines.messages import Json
from turnwire.pipelines.protocol.item_list import item_id

if TYPE_CHECKING:
    from alembic.operations import Operations

metadata = sa.MetaData()

conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("tenant", sa.String(256), primary_key=True),
    sa.Column("conversation_id", sa.String(256), primary_key=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("metadata", sa.LargeBinary, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("rewritten", sa.BigInteger, nullable=False),
    sa.Column("added", sa.BigInteger, nullable=False),
    sa.Column("items", sa.BigInteger, nullable=False),
    sa.Column("item_bytes", sa.BigInteger, nullable=False),
)
"""`rewritten`: the version that last lost an item; `added`: how many it has ever been given."""

conversation_turns = sa.Table(
    "conversation_turns",
    metadata,
    sa.Column("tenant", sa.String(256), primary_key=True),
    sa.Column("conversation_id", sa.String(256), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True),
    sa.Column("response_id", sa.String(256), nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("sampled", sa.LargeBinary, nullable=False),
    sa.Column("finish", sa.String(32), nullable=False),
    sa.Index("conversation_turns_once", "tenant", "conversation_id", "response_id", unique=True),
)
"""`version`: that which the turn made; `response_id`: of the response, or a name given."""

conversation_items = sa.Table(
    "conversation_items",
    metadata,
    sa.Column("tenant", sa.String(256), primary_key=True),
    sa.Column("conversation_id", sa.String(256), primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True),
    sa.Column("item_id", sa.String(256), nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("output", sa.Boolean, nullable=False),
    sa.Column("item", sa.LargeBinary, nullable=False),
    sa.Index("conversation_items_by_id", "tenant", "conversation_id", "item_id", unique=True),
)
"""`output`: made by the turn's model, and not given to it."""


def _create(op: "Operations") -> None:
    op.create_table(
        "conversations",
        sa.Column("tenant", sa.String(256), primary_key=True),
        sa.Column("conversation_id", sa.String(256), primary_key=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("rewritten", sa.BigInteger, nullable=False),
        sa.Column("added", sa.BigInteger, nullable=False),
        sa.Column("items", sa.BigInteger, nullable=False),
        sa.Column("item_bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "conversation_turns",
        sa.Column("tenant", sa.String(256), primary_key=True),
        sa.Column("conversation_id", sa.String(256), primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True),
        sa.Column("response_id", sa.String(256), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("sampled", sa.LargeBinary, nullable=False),
        sa.Column("finish", sa.String(32), nullable=False),
        sa.Index(
            "conversation_turns_once", "tenant", "conversation_id", "response_id", unique=True
        ),
    )
    op.create_table(
        "conversation_items",
        sa.Column("tenant", sa.String(256), primary_key=True),
        sa.Column("conversation_id", sa.String(256), primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True),
        sa.Column("item_id", sa.String(256), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("output", sa.Boolean, nullable=False),
        sa.Column("item", sa.LargeBinary, nullable=False),
        sa.Index("conversation_items_by_id", "tenant", "conversation_id", "item_id", unique=True),
    )


SCHEMA = Schema("conversation", metadata, (_create,))


def turn_row(place: dict[str, str], version: int, turn: m.StoredTurn) -> dict[str, Any]:
    """`place`: tenant and conversation."""
    return place | {
        "version": version,
        "response_id": turn.response_id,
        "model": turn.model,
        "sampled": turn.sampled,
        "finish": turn.finish,
    }


def item_rows(
    place: dict[str, str], version: int, first: int, given: Sequence[Json], made: Sequence[Json]
) -> list[dict[str, Any]]:
    """`first`: the position of the first of them."""
    return [
        place
        | {
            "position": first + number,
            "item_id": item_id(item),
            "version": version,
            "output": number >= len(given),
            "item": item,
        }
        for number, item in enumerate((*given, *made))
    ]


def turns_of(rows: Iterable[sa.Row[Any]]) -> tuple[m.StoredTurn, ...]:
    """From items in their order, each with its turn."""
    turns: dict[int, tuple[sa.Row[Any], list[Json], list[Json]]] = {}
    for row in rows:
        _, given, made = turns.setdefault(row.version, (row, [], []))
        (made if row.output else given).append(row.item)
    return tuple(
        m.StoredTurn(
            row.response_id,
            b"[%b]" % b",".join(given),
            b"[%b]" % b",".join(made),
            row.model,
            row.sampled,
            row.finish,
        )
        for row, given, made in turns.values()
    )
