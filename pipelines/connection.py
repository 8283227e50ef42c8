"""Everything one connection remembers, and what it does with a request. Pure.

Rule 1: all calls of a connection come one after the other, so a `prepare` sees every earlier end.
Rule 2: whatever is wrong with a request is an `InvalidRequest`; a parent that is not here is a
        reply, since it may be stored, and so is a conversation, since others may add to it.
Rule 3: the cost of a request depends on what is new in it, not on what came before.
"""

from collections import OrderedDict
from collections.abc import Callable

from msgspec import structs
from msgspec.structs import replace

from turnwire.pipelines import conversations
from turnwire.pipelines import messages as m
from turnwire.pipelines.compaction import (
    Plan,
    compacted,
    kept_run,
    plan_of,
)
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.continuity import continuation
from turnwire.pipelines.drafts import Drafts
from turnwire.pipelines.history import ConversationName, Entry, History
from turnwire.pipelines.past import Past
from turnwire.pipelines.prepared_turn import answered, facts_of, prepared_of
from turnwire.pipelines.prompts.check import PromptCheck
from turnwire.pipelines.prompts.format import AnyFormat, format_of
from turnwire.pipelines.prompts.rendered import (
    Head,
    Prompts,
)
from turnwire.pipelines.protocol.codec import parent_named
from turnwire.pipelines.protocol.echo import Echoes
from turnwire.pipelines.protocol.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
)
from turnwire.pipelines.protocol.ids import RandomBytes
from turnwire.pipelines.protocol.requests import Request
from turnwire.pipelines.remembered import Remembered
from turnwire.pipelines.running_turn import RunningTurn
from turnwire.pipelines.sealing import Keyring, Sealer
from turnwire.pipelines.window import packed, window_of

_RECALLABLE = 32
"""Turns that ended lately whose prompt can still be asked for: a warm-up's prefill outlives it."""


class ConnectionState:
    """One connection of one tenant."""

    def __init__(
        self,
        tenant: str,
        settings: ConnectionSettings,
        random_bytes: RandomBytes,
        formats: Callable[[m.Model], AnyFormat] = format_of,
        remembered: Remembered | None = None,
        sampled: Callable[[PromptCheck], None] | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        """`remembered`: by all connections of an actor together; None: by this one alone.

        `sampled` is handed each turn when it is over, to check its prompt if it likes to.
        `keyring` opens what clients carried for us; without one everything is foreign.
        """
        self._sampled = sampled
        self._remembered = remembered or Remembered(settings.content_index_bytes)
        self.history = History(settings.cache_bytes)
        self._tenant = tenant
        self._settings = settings
        self._sealer = Sealer(tenant, keyring or Keyring())
        self._past = Past(
            self.history,
            self._remembered,
            self._sealer,
            random_bytes,
            settings.max_input_characters,
        )
        self._drafts = Drafts(tenant, settings.max_context_bytes, formats, self.history.charge)
        self._echoes = Echoes()
        self._running: dict[str, RunningTurn] = {}
        self._ended: OrderedDict[str, tuple[Prompts, Head]] = OrderedDict()

    def prepare(
        self, command: m.Prepare
    ) -> m.Prepared | m.ParentUnknown | m.ContentUnknown | m.ConversationAt:
        """Validate, find and pin the parent, render what is new.

        Preparing a turn again replaces what was prepared. A continuation that is refused here takes
        its parent with it when both are of the same lane, as clients expect of a failed one.
        """
        self.abort(m.Abort(command.connection_id, command.response_id))
        if len(self._running) >= self._settings.max_prepared:
            raise Overloaded(f"{len(self._running)} turns of this connection are running")
        try:
            return self._prepare(command)
        except InvalidRequest:
            parent_id = parent_named(command.frame)
            if parent_id is not None and command.transport == "websocket":
                self._past.evict(parent_id, command.lane)
            raise

    def commit(self, command: m.Commit) -> None:
        """The turn's answer is there. For a turn that has ended before, nothing changes."""
        running = self._running.pop(command.response_id, None)
        if running is None:
            return
        try:
            turn = answered(running.turn, running.items, command, self._sealer)
            if running.conversation_id is None:
                # What is said in a conversation ends with it, and is found by its name.
                self._remembered.add(turn)
            if self._sampled is not None and turn.mark is not None:
                self._sampled(PromptCheck(self._tenant, turn, running.prompts, running.head))
            # Over HTTP nothing but a stored response may be continued.
            if running.on_socket or turn.stored:
                before = None if turn.parent is None else running.parent
                entry = self.history.add(turn, before, latest=running.on_socket)
                self.history.unpin(entry)
                self._ended[command.response_id] = running.prompts, running.head
                if len(self._ended) > _RECALLABLE:
                    self._ended.popitem(last=False)
            if running.conversation_id is not None and command.conversation_version:
                # There it is stored, whatever becomes of the response itself.
                newest = replace(turn, stored=True, version=command.conversation_version)
                self.history.unpin(
                    conversations.remember(
                        self.history,
                        running.conversation_id,
                        newest,
                        None if turn.parent is None else running.parent,
                    )
                )
        finally:
            if running.parent is not None:
                self.history.unpin(running.parent)

    def abort(self, command: m.Abort) -> None:
        """The turn has no answer to go on from. For a turn that has ended before, nothing changes.

        A parent of another lane is never evicted: a failed fork must not hurt its source.
        """
        running = self._running.pop(command.response_id, None)
        if running is None and command.evict and command.parent_id is not None:
            self._past.evict(command.parent_id, command.lane)
        if running is None or running.parent is None:
            return
        if command.evict and running.on_socket and running.conversation_id is None:
            self._past.evict(running.parent.checkpoint.response_id, running.turn.lane)
        self.history.unpin(running.parent)

    def recall(self, command: m.Recall) -> m.Prompt:
        """The whole prompt of a turn that runs or ended lately. Raises NotFound."""
        running = self._running.get(command.response_id)
        if running is not None:
            return running.prompts.whole(running.turn, running.head)
        ended = self._ended.get(command.response_id)
        entry = self.history.pin(command.response_id)
        if entry is None:
            raise NotFound("no such turn is running on this connection")
        self.history.unpin(entry)
        if ended is None:
            raise NotFound("that turn ended too long ago")
        prompts, head = ended
        return prompts.whole(entry.checkpoint, head)

    def summarize(self, command: m.Summarize) -> m.Summarizing:
        """The turn asks for a summary first. Raises NotFound."""
        running, plan = self._compacting(command.response_id)
        running, prompt, facts = running.asking(self._tenant, plan)
        self._running[command.response_id] = running
        return m.Summarizing(facts, prompt)

    def compact(self, command: m.Compact) -> m.Compacted:
        """The turn begins a conversation with its summary. Forks from before see all of the past.

        Raises NotFound.
        """
        running, plan = self._compacting(command.response_id)
        text = packed(command.summary, kept_run(plan))
        sealed = self._sealer.seal("compaction", text)
        items = window_of(command.item_id, text)
        turn = compacted(running.turn, items, answers=plan.stage != "only")
        if not turn.generated:
            self._running[command.response_id] = replace(running, turn=turn, items=items)
            return m.Compacted(sealed)
        head = self._drafts.head(running.model, running.prompts, running.request, turn)
        prompt, mark = running.prompts.continued(turn, items, head)
        facts = facts_of(
            command.response_id,
            self._tenant,
            running.model,
            running.request,
            prompt,
            mark.tokens,
        )
        turn = replace(turn, mark=mark)
        self._running[command.response_id] = replace(running, turn=turn, items=items, head=head)
        return m.Compacted(sealed, facts, prompt)

    def count(self, command: m.CountTokens) -> m.TokenCount | m.ParentUnknown | m.ConversationAt:
        """How long the prompt of a request would be, as its turn would report it."""
        request = self._past.parsed(command)
        if isinstance(request, m.ParentUnknown):
            return request
        before = self._past.before(request, command)
        if isinstance(before, m.ParentUnknown | m.ConversationAt):
            return before
        assert not isinstance(before, m.ContentUnknown), "only a Prepare may ask"
        parent, repeated = before
        try:
            draft = self._drafts.draft("", None, command.model, request, parent, repeated)
            prompt, mark = draft.prompts.continued(draft.turn, draft.new.items, draft.head)
            if isinstance(prompt, m.ItemPrompt):
                prompt = draft.prompts.whole(replace(draft.turn, mark=mark), draft.head)
        finally:
            if parent is not None:
                self.history.unpin(parent)
        return m.TokenCount(mark.tokens, prompt if isinstance(prompt, m.ItemPrompt) else None)

    def forget(self, response_id: str) -> None:
        """The response was deleted: it is no parent any more, also if its turn still runs."""
        self.history.forget(response_id)
        self._remembered.forget(response_id)

    def forget_conversation(self, conversation_id: str) -> None:
        """The conversation was deleted: nothing is held for it any more."""
        self.history.forget(ConversationName(conversation_id))

    def _prepare(
        self, command: m.Prepare
    ) -> m.Prepared | m.ParentUnknown | m.ContentUnknown | m.ConversationAt:
        request = self._past.parsed(command)
        if isinstance(request, m.ParentUnknown):
            return request
        self._remembered.learn(command.known)
        before = self._past.before(request, command)
        if isinstance(before, m.ParentUnknown | m.ConversationAt | m.ContentUnknown):
            return before
        parent, repeated = before
        try:
            return self._begin(command, request, parent, repeated)
        except BaseException:
            if parent is not None:
                self.history.unpin(parent)
            raise

    def _begin(
        self, command: m.Prepare, request: Request, parent: Entry | None, repeated: int
    ) -> m.Prepared:
        response_id, lane = command.response_id, command.lane
        draft = self._drafts.draft(response_id, lane, command.model, request, parent, repeated)
        prompts, head = draft.prompts, draft.head
        prompt, mark = prompts.continued(draft.turn, draft.new.items, head)
        turn = replace(draft.turn, mark=mark)
        if command.ablated:
            prompt, draft = self._drafts.again(command, request, replace(draft, turn=turn), prompt)
        plan = None
        if request.compacts or request.compact_threshold is not None:
            plan = plan_of(request, turn, draft.new.items, mark.tokens)
        on_socket = command.transport == "websocket"
        running = RunningTurn(
            turn,
            draft.new.items,
            prompts,
            head,
            parent,
            on_socket,
            request,
            command.model,
            plan,
            request.conversation_id,
        )
        if plan is not None and plan.stage != "count":
            running, prompt, facts = running.asking(self._tenant, plan)
        else:
            facts = facts_of(response_id, self._tenant, command.model, request, prompt, mark.tokens)
        here = self.history.has_latest(command.lane)
        continued = request.names_what_is_before and parent is not None
        came = continuation(continued, request.input, parent_here=here)
        echo = self._echoes.of(request)
        prepared = prepared_of(command, request, echo, draft.new, running.turn, facts, prompt, came)
        # From here on the parent is its own, to be let go when it ends.
        self._running[response_id] = running
        if plan is None:
            return prepared
        threshold = request.compact_threshold or 0
        return structs.replace(prepared, compaction=plan.stage, compact_threshold=threshold)

    def _compacting(self, response_id: str) -> tuple[RunningTurn, Plan]:
        running = self._running.get(response_id)
        if running is None or running.plan is None:
            raise NotFound("no such turn compacts a conversation of this connection")
        return running, running.plan
