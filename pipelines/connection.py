"""Everything one connection remembers, and what it does with a request. Pure.

Rule 1: all calls of a connection come one after the other, so a `prepare` sees every earlier end.
Rule 2: whatever is wrong with a request is an `InvalidRequest`; a parent that is not here is a
        reply, since it may be stored, and so is a conversation, since others may add to it.
Rule 3: the cost of a request depends on what is new in it, not on what came before.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs

from turnwire.pipelines import conversations
from turnwire.pipelines import messages as m
from turnwire.pipelines.ablation import all_text, unrendered, validated_again
from turnwire.pipelines.compaction import (
    Plan,
    asking,
    compacted,
    kept_run,
    plan_of,
    summary_request,
)
from turnwire.pipelines.config import ConnectionSettings
from turnwire.pipelines.continuity import continuation
from turnwire.pipelines.history import ConversationName, Entry, History
from turnwire.pipelines.lineage import Checkpoint, context_of, joined, restored
from turnwire.pipelines.new_items import NewItems, check
from turnwire.pipelines.opened_items import opened
from turnwire.pipelines.prepared_turn import answered, facts_of, prepared_of
from turnwire.pipelines.prompts.check import PromptCheck
from turnwire.pipelines.prompts.format import AnyFormat, format_of
from turnwire.pipelines.prompts.rendered import (
    Head,
    HeadCache,
    ItemPrompts,
    Prompts,
)
from turnwire.pipelines.prompts.token_prompts import token_prompts
from turnwire.pipelines.protocol.codec import parent_named
from turnwire.pipelines.protocol.errors import (
    ContextLengthExceeded,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
)
from turnwire.pipelines.protocol.ids import RandomBytes
from turnwire.pipelines.protocol.items import Item, Reference, asks
from turnwire.pipelines.protocol.requests import Request, RequestParser
from turnwire.pipelines.remembered import Remembered
from turnwire.pipelines.sealing import Keyring, Sealer
from turnwire.pipelines.stored_references import resolved
from turnwire.pipelines.window import packed, window_of

_RECALLABLE = 32
"""Turns that ended lately whose prompt can still be asked for: a warm-up's prefill outlives it."""


@dataclass(frozen=True, slots=True)
class _Running:
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


@dataclass(frozen=True, slots=True)
class _Draft:
    turn: Checkpoint
    """Without its prompt's mark."""
    new: NewItems
    prompts: Prompts
    head: Head


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
        self._formats = formats
        self._random_bytes = random_bytes
        self._sealer = Sealer(tenant, keyring or Keyring())
        self._parser = self._new_parser()
        self._heads = HeadCache()
        self._running: dict[str, _Running] = {}
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
                self._evict(parent_id, command.lane)
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
            self._evict(command.parent_id, command.lane)
        if running is None or running.parent is None:
            return
        if command.evict and running.on_socket and running.conversation_id is None:
            self._evict(running.parent.checkpoint.response_id, running.turn.lane)
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
        running, prompt, facts = self._asking(command.response_id, running, plan)
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
        head = self._head(running.model, running.prompts, running.request, turn)
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
        request = self._parsed(command)
        if isinstance(request, m.ParentUnknown):
            return request
        before = self._before(request, command)
        if isinstance(before, m.ParentUnknown | m.ConversationAt):
            return before
        assert not isinstance(before, m.ContentUnknown), "only a Prepare may ask"
        parent, repeated = before
        try:
            draft = self._draft("", None, command.model, request, parent, repeated)
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
        request = self._parsed(command)
        if isinstance(request, m.ParentUnknown):
            return request
        self._remembered.learn(command.known)
        before = self._before(request, command)
        if isinstance(before, m.ParentUnknown | m.ConversationAt | m.ContentUnknown):
            return before
        parent, repeated = before
        try:
            return self._begin(command, request, parent, repeated)
        except BaseException:
            if parent is not None:
                self.history.unpin(parent)
            raise

    def _parsed(self, command: m.Prepare | m.CountTokens) -> Request | m.ParentUnknown:
        """With what is sealed in its input opened: all that follows knows plain items only."""
        transport = command.transport if isinstance(command, m.Prepare) else "http"
        parser = self._new_parser() if "validation" in _left_out(command) else self._parser
        request = parser.parse(command.frame, transport)
        items = self._resolved(request, command.chain)
        if isinstance(items, m.ParentUnknown):
            return items
        read, window = opened(items, self._sealer)
        if read is items:
            return request if items is request.input else structs.replace(request, input=items)
        sent = joined(*(item.json for item in items if not isinstance(item, Reference)))
        return structs.replace(request, input=read, sent=sent, window=window)

    def _resolved(
        self, request: Request, chain: m.Chain | None
    ) -> tuple[Item | Reference, ...] | m.ParentUnknown:
        if request.names_what_is_before:
            return request.input
        loaded = self._find(chain.turns[-1].response_id, chain) if chain and chain.turns else None
        items = resolved(request.input, self.history)
        if loaded is not None:
            self.history.unpin(loaded)
        return items

    def _before(
        self, request: Request, command: m.Prepare | m.CountTokens
    ) -> tuple[Entry | None, int] | m.ParentUnknown | m.ConversationAt | m.ContentUnknown:
        """What the turn continues, pinned, and how much of its input that is already; or what must
        be loaded first."""
        if request.conversation_id is not None:
            end = conversations.found(
                self.history, request.conversation_id, command.conversation, self._sealer
            )
            return end if isinstance(end, m.ConversationAt) else (end, 0)
        if request.previous_response_id is not None:
            parent = self._find(request.previous_response_id, command.chain)
            return m.ParentUnknown(request.previous_response_id) if parent is None else (parent, 0)
        if "token_cache" in _left_out(command):
            return None, 0
        known = self._remembered.find(request.input)
        if isinstance(command, m.Prepare) and command.may_ask and known.wanted is not None:
            return known.wanted
        return None if known.turn is None else self.history.adopt(known.turn), known.count

    def _find(self, response_id: str, chain: m.Chain | None) -> Entry | None:
        """The parent, pinned: from memory, else from what storage had of it."""
        entry = self.history.pin(response_id)
        if entry is not None or chain is None or not chain.turns:
            return entry
        if chain.turns[-1].response_id != response_id:
            raise Internal("storage answered with another conversation")
        for turn in chain.turns:
            before: Entry | None = entry
            entry = self.history.pin(turn.response_id)
            if entry is None:
                checkpoint = restored(turn, before.checkpoint if before else None, self._sealer)
                parent = None if checkpoint.parent is None else before
                entry = self.history.add(checkpoint, parent, latest=False)
                self._remembered.add(checkpoint)
            if before is not None:
                self.history.unpin(before)
        return entry

    def _begin(
        self, command: m.Prepare, request: Request, parent: Entry | None, repeated: int
    ) -> m.Prepared:
        response_id, lane = command.response_id, command.lane
        draft = self._draft(response_id, lane, command.model, request, parent, repeated)
        prompts, head = draft.prompts, draft.head
        prompt, mark = prompts.continued(draft.turn, draft.new.items, head)
        turn = replace(draft.turn, mark=mark)
        if command.ablated:
            prompt, draft = self._again(command, request, replace(draft, turn=turn), prompt)
        plan = None
        if request.compacts or request.compact_threshold is not None:
            plan = plan_of(request, turn, draft.new.items, mark.tokens)
        on_socket = command.transport == "websocket"
        running = _Running(
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
            running, prompt, facts = self._asking(response_id, running, plan)
        else:
            facts = facts_of(response_id, self._tenant, command.model, request, prompt, mark.tokens)
        self._running[response_id] = running
        here = self.history.has_latest(command.lane)
        continued = request.names_what_is_before and parent is not None
        came = continuation(continued, request.input, parent_here=here)
        prepared = prepared_of(command, request, draft.new, running.turn, facts, prompt, came)
        if plan is None:
            return prepared
        threshold = request.compact_threshold or 0
        return structs.replace(prepared, compaction=plan.stage, compact_threshold=threshold)

    def _asking(
        self, response_id: str, running: _Running, plan: Plan
    ) -> tuple[_Running, m.Prompt, m.Facts]:
        """The turn as it asks for a summary."""
        turn, items = asking(running.turn, plan)
        prompt, mark = running.prompts.continued(turn, items, running.head)
        request = summary_request(running.request, plan)
        facts = facts_of(response_id, self._tenant, running.model, request, prompt, mark.tokens)
        return replace(running, turn=replace(turn, mark=mark)), prompt, facts

    def _compacting(self, response_id: str) -> tuple[_Running, Plan]:
        running = self._running.get(response_id)
        if running is None or running.plan is None:
            raise NotFound("no such turn compacts a conversation of this connection")
        return running, running.plan

    def _draft(
        self,
        response_id: str,
        lane: str | None,
        model: m.Model,
        request: Request,
        parent: Entry | None,
        repeated: int,
    ) -> _Draft:
        before = parent.checkpoint if parent is not None else None
        if repeated:
            new = check(request.input, context_of(None), request.window).behind(repeated)
        else:
            if request.window:
                before = None
            new = check(request.input, context_of(before), request.window)
        if request.conversation_id is not None:
            conversations.check_ids(new.items, context_of(before))
        turn = Checkpoint(
            response_id=response_id,
            parent=before,
            lane=lane,
            model=model.name,
            stored=request.store,
            generated=request.generate,
            context=context_of(before).plus(new.items, new.json),
            input=new.json,
            asked=any(map(asks, new.items)),
            effort=request.reasoning.effort,
        )
        self._check_size(turn)
        prompts = self._prompts(model)
        return _Draft(turn, new, prompts, self._head(model, prompts, request, turn))

    def _head(self, model: m.Model, prompts: Prompts, request: Request, turn: Checkpoint) -> Head:
        return self._heads.get(
            model.name,
            prompts,
            request.instructions,
            request.tools,
            turn.context.leading,
            turn.effort,
        )

    def _again(
        self, command: m.Prepare, request: Request, draft: _Draft, prompt: m.Prompt
    ) -> tuple[m.Prompt, _Draft]:
        """What of the whole conversation is done again, although it is known."""
        turn, new, prompts, head = draft.turn, draft.new, draft.prompts, draft.head
        if "validation" in command.ablated:
            validated_again(turn)
        if "token_cache" in command.ablated:
            leading = turn.context.leading
            prompts.head(request.instructions, request.tools, leading, turn.effort)
            prompts.whole(unrendered(turn), head)
        if "screening" in command.ablated:
            new = replace(new, texts=all_text(turn, new.texts))
        if "delta" in command.ablated:
            prompt = prompts.whole(turn, head)
        return prompt, replace(draft, new=new)

    def _new_parser(self) -> RequestParser:
        return RequestParser(self._random_bytes, self._settings.max_input_characters)

    def _prompts(self, model: m.Model) -> Prompts:
        if model.form == "items":
            return ItemPrompts(self._tenant, model.name)
        return token_prompts(self._tenant, model.name, self._formats(model), self.history.charge)

    def _check_size(self, turn: Checkpoint) -> None:
        if turn.context.json_bytes > self._settings.max_context_bytes:
            raise ContextLengthExceeded(
                f"The conversation has {turn.context.json_bytes} bytes, more than the "
                f"{self._settings.max_context_bytes} that are kept. Start a new one.",
                "input",
            )

    def _evict(self, response_id: str, lane: str | None) -> None:
        entry = self.history.pin(response_id)
        if entry is None:
            return
        if entry.checkpoint.lane == lane:
            self.history.evict(response_id)
        self.history.unpin(entry)


def _left_out(command: m.Prepare | m.CountTokens) -> tuple[str, ...]:
    return command.ablated if isinstance(command, m.Prepare) else ()
