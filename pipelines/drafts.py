"""A request as the next turn of what it continues, with what makes its prompt. Pure."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from turnwire.pipelines import conversations
from turnwire.pipelines import messages as m
from turnwire.pipelines.ablation import all_text, unrendered, validated_again
from turnwire.pipelines.history import Entry
from turnwire.pipelines.lineage import Checkpoint, context_of
from turnwire.pipelines.new_items import NewItems, check
from turnwire.pipelines.prompts.format import AnyFormat
from turnwire.pipelines.prompts.rendered import (
    Head,
    HeadCache,
    ItemPrompts,
    Prompts,
)
from turnwire.pipelines.prompts.token_prompts import Charge, token_prompts
from turnwire.pipelines.protocol.errors import ContextLengthExceeded
from turnwire.pipelines.protocol.items import asks
from turnwire.pipelines.protocol.requests import Request


class Draft(msgspec.Struct, frozen=True):
    turn: Checkpoint
    """Without its prompt's mark."""
    new: NewItems
    prompts: Prompts
    head: Head


class Drafts:
    """Of one connection: heads that were rendered are kept."""

    def __init__(
        self,
        tenant: str,
        max_context_bytes: int,
        formats: Callable[[m.Model], AnyFormat],
        charge: Charge,
    ) -> None:
        self._tenant = tenant
        self._max_context_bytes = max_context_bytes
        self._formats = formats
        self._charge = charge
        self._heads = HeadCache()

    def draft(
        self,
        response_id: str,
        lane: str | None,
        model: m.Model,
        request: Request,
        parent: Entry | None,
        repeated: int,
    ) -> Draft:
        """`repeated`: so many of its items are in `parent` already. Raises InvalidRequest."""
        before = parent.checkpoint if parent is not None else None
        if repeated:
            new = check(request.input, context_of(None), request.window).behind(repeated)
        else:
            if request.window:
                before = None
            new = check(request.input, context_of(before), request.window)
        if request.conversation_id is not None:
            conversations.check_ids(new.items, context_of(before))
        context = context_of(before)
        if new.repeated:
            context = context.renamed(new.repeated)
        turn = Checkpoint(
            response_id=response_id,
            parent=before,
            lane=lane,
            model=model.name,
            stored=request.store,
            generated=request.generate,
            context=context.plus(new.items, new.json),
            input=new.json,
            asked=any(map(asks, new.items)),
            effort=request.reasoning.effort,
            renamed=len(new.repeated),
        )
        self._check_size(turn)
        prompts = self._prompts(model)
        return Draft(turn, new, prompts, self.head(model, prompts, request, turn))

    def head(self, model: m.Model, prompts: Prompts, request: Request, turn: Checkpoint) -> Head:
        return self._heads.get(
            model.name,
            prompts,
            request.instructions,
            request.tools,
            turn.context.leading,
            turn.effort,
        )

    def again(
        self, command: m.Prepare, request: Request, draft: Draft, prompt: m.Prompt
    ) -> tuple[m.Prompt, Draft]:
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

    def _prompts(self, model: m.Model) -> Prompts:
        if model.form == "items":
            return ItemPrompts(self._tenant, model.name)
        return token_prompts(self._tenant, model.name, self._formats(model), self._charge)

    def _check_size(self, turn: Checkpoint) -> None:
        if turn.context.json_bytes > self._max_context_bytes:
            raise ContextLengthExceeded(
                f"The conversation has {turn.context.json_bytes} bytes, more than the "
                f"{self._max_context_bytes} that are kept. Start a new one.",
                "input",
            )
