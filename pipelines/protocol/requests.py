"""A create body as a typed, frozen request: what is left after parsing needs no more checks."""

from typing import Literal

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from turnwire.pipelines.messages import Json, Sampling
from turnwire.pipelines.protocol.codec import (
    NULL,
    Body,
    FormatKind,
    Summary,
    Verbosity,
    check_portable,
    decode_body,
    opening,
    read,
)
from turnwire.pipelines.protocol.errors import InvalidRequest
from turnwire.pipelines.protocol.ids import RandomBytes, is_plain
from turnwire.pipelines.protocol.items import Item, Reference, characters, parse_input
from turnwire.pipelines.protocol.tool_choice import parse_tool_choice
from turnwire.pipelines.protocol.tools import (
    Instructions,
    Name,
    Parsed,
    Tools,
    parse_instructions,
    parse_tools,
)

Transport = Literal["websocket", "http"]

PLAIN_TEXT = b'{"type":"text"}'


class Reasoning(msgspec.Struct, frozen=True):
    """`reasoning`, as it is repeated in the response."""

    effort: str | None = None
    summary: Summary | None = None


class Request(msgspec.Struct, frozen=True):
    """One `response.create`, or one HTTP body."""

    model: str
    previous_response_id: str | None
    conversation_id: str | None
    input: tuple[Item | Reference, ...]
    instructions: Instructions
    tools: Tools
    tool_choice: Json
    """As the response repeats it. `choice`: with the names that models know tools by."""
    choice: Json
    text: Json
    """`text` as the response repeats it: always with a `format`."""
    text_format: Json
    verbosity: str | None
    """`text.verbosity`."""
    reasoning: Reasoning
    sampling: Sampling
    max_output_tokens: int | None
    max_tool_calls: int | None
    top_logprobs: int
    parallel_tool_calls: bool
    truncation: str
    metadata: dict[str, str]
    include: tuple[str, ...]
    generate: bool
    store: bool
    stream: bool
    background: bool
    compacts: bool
    """The input ends with a `compaction_trigger`."""
    compact_threshold: int | None
    """Tokens of the context from which on it is compacted before the answer."""
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None
    sent: Json | None = None
    """The input as it came, a run of items, where what was sealed in it is opened in `input`."""
    window: int = 0
    """So many of the first items stand for a compaction item and all before it."""
    repeats: "Request | None" = None
    """One before it, without its input: the same but for what is new in each turn."""

    @property
    def names_what_is_before(self) -> bool:
        return self.previous_response_id is not None or self.conversation_id is not None


class _Format(msgspec.Struct, frozen=True):
    type: FormatKind
    name: Name | None = None
    schema: dict[str, object] | None = None
    description: str | None = None
    strict: bool | None = None


class _Conversation(msgspec.Struct, frozen=True):
    id: str


_READ_ANEW = {"input": NULL, "tools": NULL, "instructions": NULL}
"""Members that are known another way."""
_texts = msgspec.json.Decoder(dict[str, Raw])
_verbosities = msgspec.json.Decoder(Verbosity | None)
_formats = msgspec.json.Decoder(_Format)
_conversations = msgspec.json.Decoder(_Conversation)
_strings = msgspec.json.Decoder(str)
_booleans = msgspec.json.Decoder(bool | None)


class RequestParser:
    """Parses the requests of one connection; knows the tools and instructions it saw before.

    Most turns of an agent differ from the last one in what is new alone: then only that is read.
    """

    def __init__(self, random_bytes: RandomBytes, max_input_characters: int) -> None:
        self._random_bytes = random_bytes
        self._max_input_characters = max_input_characters
        self._tools = Parsed(parse_tools)
        self._instructions = Parsed(parse_instructions)
        self._last: tuple[Transport, Body, Request] | None = None
        """What the last request on a conversation had beside its input."""

    def parse(self, frame: Json, transport: Transport) -> Request:
        """Raises InvalidRequest that names the field at fault."""
        body = decode_body(frame)
        if body.previous_response_id is None:
            return self._parsed(body, transport)
        given = None
        rest = replace(body, previous_response_id="", metadata=None, **_READ_ANEW)
        if self._last is not None and self._last[:2] == (transport, rest):
            last = self._last[2]
            given = items, triggered = self._input(body)
            tools = self._tools.get(body.tools)
            instructions = self._instructions.get(body.instructions)
            if tools is last.tools and instructions is last.instructions:
                return replace(
                    last,
                    input=items,
                    compacts=triggered,
                    previous_response_id=body.previous_response_id,
                    metadata=body.metadata or {},
                    repeats=last,
                )
        request = self._parsed(body, transport, given)
        if request.generate:
            self._last = transport, _let_go(rest), replace(request, input=())
        return request

    def _parsed(
        self,
        body: Body,
        transport: Transport,
        given: tuple[tuple[Item | Reference, ...], bool] | None = None,
    ) -> Request:
        """`given`: its input, where that was read already."""
        model = _model(body)
        _refuse_unservable(body)
        _check_background(body, transport)
        items, triggered = given or self._input(body)
        generate = body.generate is not False and not _prewarms(body)
        if triggered and not generate:
            raise InvalidRequest("A warm-up cannot compact: leave 'generate' out.", "generate")
        tools = self._tools.get(body.tools)
        text, text_format, verbosity = _text(bytes(body.text))
        tool_choice, choice = parse_tool_choice(bytes(body.tool_choice), tools)
        return Request(
            model=model,
            previous_response_id=body.previous_response_id,
            conversation_id=_conversation(body),
            input=items,
            instructions=self._instructions.get(body.instructions),
            tools=tools,
            tool_choice=tool_choice,
            choice=choice,
            text=text,
            text_format=text_format,
            verbosity=verbosity,
            reasoning=_reasoning(body),
            sampling=Sampling(
                body.temperature,
                body.top_p,
                body.presence_penalty or 0.0,
                body.frequency_penalty or 0.0,
                body.seed,
            ),
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            top_logprobs=body.top_logprobs or 0,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            truncation=body.truncation or "disabled",
            metadata=body.metadata or {},
            include=tuple(body.include or ()),
            generate=generate,
            compacts=triggered,
            compact_threshold=_compact_threshold(body),
            store=body.store is not False,
            # On the socket clients send any value, although it means nothing there.
            stream=transport == "http" and bool(read(_booleans.decode, body.stream, "stream")),
            background=bool(body.background),
            prompt_cache_key=body.prompt_cache_key,
            safety_identifier=body.safety_identifier,
            user=body.user,
        )

    def _input(self, body: Body) -> tuple[tuple[Item | Reference, ...], bool]:
        """As `parse_input`. The API bounds each text, not all of them together."""
        items, triggered = parse_input(body.input, self._random_bytes)
        for index, item in enumerate(items):
            size = 0 if isinstance(item, Reference) else characters(item)
            if size > self._max_input_characters:
                raise InvalidRequest(
                    f"Invalid 'input[{index}]': it has {size} characters, more than the "
                    f"{self._max_input_characters} allowed.",
                    f"input[{index}]",
                )
        return items, triggered


def _let_go(body: Body) -> Body:
    """The same, without the frame that raw members are a part of."""
    raws = {
        name: Raw(bytes(value))
        for name in Body.__struct_fields__
        if isinstance(value := getattr(body, name), Raw)
    }
    return replace(body, **raws)


def _model(body: Body) -> str:
    if not body.model:
        raise InvalidRequest("Invalid 'model': it is required.", "model")
    return body.model


def _prewarms(body: Body) -> bool:
    return body.prompt_cache_options is not None and body.prompt_cache_options.prewarm is True


def _compact_threshold(body: Body) -> int | None:
    rules = body.context_management or ()
    return min((at for rule in rules if (at := rule.compact_threshold)), default=None)


def _refuse_unservable(body: Body) -> None:
    """What would change the answer and cannot be done is refused, never left out silently."""
    if bytes(body.prompt) != b"null":
        raise InvalidRequest(
            "No prompt templates are kept here: send 'instructions' and 'input'.", "prompt"
        )


def _check_background(body: Body, transport: Transport) -> None:
    if not body.background:
        return
    if transport == "websocket":
        refusal = "it is for HTTP: send it with POST /v1/responses, or leave it out here"
    elif body.store is False:
        refusal = "a background response is stored: leave 'store' out, or send true"
    elif body.generate is False or _prewarms(body):
        refusal = "a warm-up is answered at once: leave 'background' out"
    else:
        return
    raise InvalidRequest(f"Invalid 'background': {refusal}.", "background")


def _conversation(body: Body) -> str | None:
    """`conversation`: an id, or an object with one."""
    raw = bytes(body.conversation)
    if raw == b"null":
        return None
    if body.previous_response_id is not None:
        raise InvalidRequest(
            "'conversation' and 'previous_response_id' cannot be used together.", "conversation"
        )
    if opening(body.conversation) == b"{":
        name = read(_conversations.decode, raw, "conversation").id
    else:
        name = read(_strings.decode, raw, "conversation")
    if not is_plain(name):
        message = "Invalid 'conversation': expected the id of a conversation, as it was given."
        raise InvalidRequest(message, "conversation")
    return name


def _reasoning(body: Body) -> Reasoning:
    given = body.reasoning
    if given is None:
        return Reasoning()
    return Reasoning(given.effort, given.summary or given.generate_summary)


def _text(raw: Json) -> tuple[Json, Json, str | None]:
    """`text` as it is repeated, and the format and the verbosity in it."""
    if raw == b"null":
        return b'{"format":%b}' % PLAIN_TEXT, PLAIN_TEXT, None
    members = read(_texts.decode, raw, "text")
    check_portable(raw, "text")
    given = members.get("verbosity", Raw(b"null"))
    verbosity = read(_verbosities.decode, given, "text.verbosity")
    text_format = bytes(members.get("format", b"null"))
    if text_format == b"null":
        members["format"] = Raw(PLAIN_TEXT)
        return msgspec.json.encode(members), PLAIN_TEXT, verbosity
    form = read(_formats.decode, text_format, "text.format")
    if form.type == "json_schema":
        for member, value in (("name", form.name), ("schema", form.schema)):
            if value is None:
                at = f"text.format.{member}"
                raise InvalidRequest(f"Invalid '{at}': it is required.", at)
    return raw, text_format, verbosity
