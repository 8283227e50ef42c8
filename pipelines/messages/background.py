"""Turns that outlive their client: what the gateway that runs one and storage say to each other.

The gateway is the response's owner by a lease it renews. Storage keeps the events within a bound,
ends what lost its owner, and tells whoever follows.
"""

from typing import Literal

from turnwire.pipelines.messages.base import Json, Message
from turnwire.pipelines.messages.conversations import AppendTurn
from turnwire.pipelines.messages.records import Save

BackgroundStatus = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]


class BeginBackground(Message, frozen=True):
    """A background response exists from now on: `Done`, or RateLimitExceeded. Idempotent."""

    tenant: str
    response_id: str
    owner: str
    """The gateway that runs it."""
    created_at: int
    response: Json
    """The response object in its status `queued`."""
    input: Json
    """List of its new input items, each with an id."""
    events: tuple[Json, ...]
    """Numbered from 0."""
    lease_s: float
    max_running: int
    """Background responses of the tenant that may run at once, this one included."""


class RecordEvents(Message, frozen=True):
    """More events of a running response: `Recorded`. Those there already change nothing."""

    tenant: str
    response_id: str
    owner: str
    first: int
    """The number of the first of `events`."""
    events: tuple[Json, ...]
    status: BackgroundStatus
    response: Json | None = None
    """The response object, when its status has changed."""
    lease_s: float = 0.0
    """It renews the lease, too; 0: it does not."""


class EndBackground(Message, frozen=True):
    """The response is over, with its last events: `Recorded`. Idempotent.

    With `save` the response is stored in the same transaction, and with `append`, instead of it,
    also added to its conversation: it is completed or is not there. Refused as `append` is; then
    the response still runs.
    """

    tenant: str
    response_id: str
    owner: str
    first: int
    events: tuple[Json, ...]
    status: BackgroundStatus
    response: Json
    save: Save | None = None
    append: AppendTurn | None = None


class Recorded(Message, frozen=True):
    """`accepted` is false when the response was ended by somebody else, or deleted: stop it."""

    accepted: bool


class RenewBackground(Message, frozen=True):
    """The owner lives and still runs these: `StillRunning`. What it writes to one says the same."""

    owner: str
    response_ids: tuple[str, ...]
    lease_s: float


class StillRunning(Message, frozen=True):
    """Those of the responses asked about that have not been ended or deleted meanwhile."""

    response_ids: tuple[str, ...]


class CancelBackground(Message, frozen=True):
    """End a background response as cancelled: `Stored` as it is then, or NotFound.

    One that is over already stays as it is. InvalidRequest for one that is not in the background.
    """

    tenant: str
    response_id: str


class FollowBackground(Message, frozen=True):
    """Stream command: `BackgroundEvents` with numbers above `after`, then more as they come.

    Ends with the response. NotFound: there is no record of it (any more). EventsGone: some of
    those events are not kept.
    """

    tenant: str
    response_id: str
    after: int = -1


class BackgroundEvents(Message, frozen=True):
    """Events in order, without a gap."""

    events: tuple[Json, ...]
    last: int
    """The number of the last of `events`."""
