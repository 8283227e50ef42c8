"""A frame becomes a prepared turn: at the connection's actor, with storage for a parent it lost."""

import msgspec

from turnwire.pipelines.messages import Load, ParentUnknown, Prepare, Prepared
from turnwire.pipelines.ports import Connection, Store
from turnwire.pipelines.protocol.errors import NotFound, PreviousResponseNotFound


async def prepare(command: Prepare, connection: Connection, store: Store, tenant: str) -> Prepared:
    """Raises what the actor refuses, or PreviousResponseNotFound. The parent is pinned after it."""
    answer = await connection.prepare(command)
    if isinstance(answer, ParentUnknown):
        parent_id = answer.response_id
        try:
            chain = await store.load(Load(tenant, parent_id))
        except (NotFound, PreviousResponseNotFound):
            raise _unknown(parent_id) from None
        answer = await connection.prepare(msgspec.structs.replace(command, chain=chain))
        if isinstance(answer, ParentUnknown):
            raise _unknown(parent_id)
    return answer


def _unknown(response_id: str) -> PreviousResponseNotFound:
    return PreviousResponseNotFound(
        f"Previous response with id '{response_id[:128]}' not found.", "previous_response_id"
    )
