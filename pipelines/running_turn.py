"""A turn that a connection has prepared and that has not ended. Pure."""

import msgspec
from msgspec.structs import replace

from turnwire.pipelines import messages as m
from turnwire.pipelines.compaction import Plan, asking, summary_request
from turnwire.pipelines.history import Entry
from turnwire.pipelines.lineage import Checkpoint
from turnwire.pipelines.prepared_turn import facts_of
from turnwire.pipelines.prompts.rendered import Head, Prompts
from turnwire.pipelines.protocol.items import Item
from turnwire.pipelines.protocol.requests import Request


class RunningTurn(msgspec.Struct, frozen=True):
    turn: Checkpoint
    """As prepared: without its answer."""
    items: tuple[Item, ...]
    """Its own."""
    prompts: Prompts
    head: Head
    parent: Entry | None
    on_socket: bool
    request: Request
    model: m.Model
    plan: Plan | None = None
    """How it compacts the conversation."""
    conversation_id: str | None = None

    def asking(self, tenant: str, plan: Plan) -> tuple["RunningTurn", m.Prompt, m.Facts]:
        """The turn as it asks for a summary."""
        turn, items = asking(self.turn, plan)
        prompt, mark = self.prompts.continued(turn, items, self.head)
        request = summary_request(self.request, plan)
        facts = facts_of(self.turn.response_id, tenant, self.model, request, prompt, mark.tokens)
        return replace(self, turn=replace(turn, mark=mark)), prompt, facts
