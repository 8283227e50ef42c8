"""What is said of a turn once its request is understood: facts for engines, the rest for gateways.

Pure functions of a request and the checkpoint made of it.
"""

from msgspec.structs import replace

from turnwire.pipelines import messages as m
from turnwire.pipelines.answer_rules import rules_of
from turnwire.pipelines.lineage import Checkpoint, chain_to, content_after, content_of, unbracketed
from turnwire.pipelines.new_items import NewItems
from turnwire.pipelines.opened_items import opened_run
from turnwire.pipelines.prompts.constraint import constraint_of
from turnwire.pipelines.protocol.echo import Echo, tools_echo
from turnwire.pipelines.protocol.errors import ContextLengthExceeded, Internal, InvalidRequest
from turnwire.pipelines.protocol.include import LOGPROBS
from turnwire.pipelines.protocol.items import Item, kept_items
from turnwire.pipelines.protocol.requests import Request
from turnwire.pipelines.sealing import Sealer


def facts_of(
    response_id: str,
    tenant: str,
    model: m.Model,
    request: Request,
    prompt: m.Prompt,
    tokens: int,
) -> m.Facts:
    """Raises ContextLengthExceeded when a prompt of so many tokens leaves no room to answer."""
    thinking = isinstance(prompt, m.TokenPrompt) and prompt.thinking
    room = model.context_window - tokens
    if room < 1:
        raise ContextLengthExceeded(
            f"This model's context window is {model.context_window} tokens, but the prompt has "
            f"{tokens} and needs room for an answer. Shorten it; nothing is cut here.",
            "input",
        )
    return m.Facts(
        response_id=response_id,
        tenant=tenant,
        model=model.name,
        max_output_tokens=min(request.max_output_tokens or model.default_output_tokens, room),
        sampling=request.sampling,
        tool_choice=request.choice,
        text_format=request.text_format,
        parallel_tool_calls=request.parallel_tool_calls,
        metadata=request.metadata,
        grammar=_grammar(model, request, thinking=thinking),
        logprobs=_logprobs(model, request),
        max_tool_calls=request.max_tool_calls,
        effort=request.reasoning.effort,
        verbosity=request.verbosity,
        calls=request.tools.shown != b"[]" and request.choice != b'"none"',
    )


def _grammar(model: m.Model, request: Request, *, thinking: bool) -> str:
    if model.form != "tokens":
        return ""
    return constraint_of(request, model.prompt_format, thinking=thinking)


def _logprobs(model: m.Model, request: Request) -> int | None:
    """`top_logprobs` alone asks for nothing: it says how many, should they be included."""
    if LOGPROBS not in request.include:
        return None
    if model.form != "tokens":
        message = "Invalid 'include': this model gives no log probabilities."
        raise InvalidRequest(message, "include")
    return request.top_logprobs


def prepared_of(
    command: m.Prepare,
    request: Request,
    echo: Echo,
    new: NewItems,
    turn: Checkpoint,
    facts: m.Facts,
    prompt: m.Prompt,
    came: m.Continuation,
) -> m.Prepared:
    known = echo.key == command.known_echo
    # A parent that nobody named is no part of what is stored: all of the input is.
    parent = None if new.repeated or turn.parent is None or turn.parent.stored else turn.parent
    kept = request.store or request.conversation_id is not None
    return m.Prepared(
        facts=facts,
        prompt=prompt,
        input_tokens=turn.mark.tokens if turn.mark else 0,
        echo_key=echo.key,
        echo=None if known else echo.members,
        new_text=new.texts,
        parent_id=request.previous_response_id,
        generate=request.generate,
        store=request.store,
        stream=request.stream,
        include=request.include,
        stored_input=b"[%b]" % (request.sent or new.given_json) if kept else None,
        stored_context=_stored_context(request, parent) if request.store else None,
        echo_turn=echo.turn,
        echo_tools=None if known else tools_echo(request),
        foreign_items=new.foreign,
        unsupported_tools=len(request.tools.dropped),
        dropped_tools=request.tools.dropped,
        rules=rules_of(request, command.model),
        warnings=_warnings(command.model, request, new),
        continuation=came,
        namespaced={} if known else request.tools.namespaced,
        custom=() if known else request.tools.custom,
        repeated_items=len(new.repeated),
        conversation_id=request.conversation_id,
        conversation_version=command.conversation.version if command.conversation else 0,
        background=request.background,
    )


def _stored_context(request: Request, parent: Checkpoint | None) -> m.Chain | None:
    """What came before a turn, as far as the parent's own record does not tell."""
    if request.conversation_id is not None:
        return m.Chain((), request.conversation_id)
    return chain_to(parent) if parent is not None and not parent.stored else None


def _warnings(model: m.Model, request: Request, new: NewItems) -> tuple[str, ...]:
    found: list[str] = []
    if new.unread and not model.sees:
        what = "1 image or file is" if new.unread == 1 else f"{new.unread} images or files are"
        found.append(f"{what} not shown to this model, which reads text only.")
    if new.foreign and model.form == "tokens":
        what = "1 input item" if new.foreign == 1 else f"{new.foreign} input items"
        found.append(f"{what} of a kind that is not understood here: not shown to this model.")
    if request.verbosity not in (None, "medium") and model.form == "tokens":
        found.append("This model knows no 'text.verbosity'.")
    return tuple(found)


def answered(
    turn: Checkpoint, given: tuple[Item, ...], command: m.Commit, sealer: Sealer
) -> Checkpoint:
    """A prepared turn with its answer. `given`: its own input items."""
    try:
        # A turn that was compacted begins with its window already.
        output, _ = opened_run(unbracketed(command.items), sealer, "output")
        items = kept_items(output)
    except InvalidRequest as error:
        raise Internal("the answer of a turn is not a list of items") from error
    # Here and not when it was prepared: nobody waits for it. Reasoning alone says nothing.
    asked = content_after(content_of(turn.parent), given, empty=turn.generated or not given)
    return replace(
        turn,
        context=turn.context.plus(items, output),
        output=output,
        sampled=command.sampled,
        finish=command.finish,
        content=content_after(asked, items, empty=not turn.generated),
    )
