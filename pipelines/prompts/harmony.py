"""Harmony, the format of gpt-oss: every message names its channel and whom it is for.

The model thinks on `analysis`, calls functions on `commentary` and answers on `final`. The format
rewrites history: once the user speaks again, earlier thoughts are left out.
"""

from array import array
from collections.abc import Iterator, Sequence

import msgspec

from turnwire.pipelines.messages import Finish, TokenIds
from turnwire.pipelines.prompts.effort import level
from turnwire.pipelines.prompts.harmony_tools import function_text
from turnwire.pipelines.prompts.hermes import functions
from turnwire.pipelines.prompts.item_groups import Assistant, Group, Outputs, grouped, leading
from turnwire.pipelines.prompts.markup import Marker, Markup
from turnwire.pipelines.prompts.tokenizer import Tokenizer, pack
from turnwire.pipelines.protocol.items import Call, Item, Message
from turnwire.pipelines.protocol.tools import Tools

START, END, MESSAGE = Marker("<|start|>"), Marker("<|end|>"), Marker("<|message|>")
CHANNEL, CONSTRAIN = Marker("<|channel|>"), Marker("<|constrain|>")
CALL, RETURN = Marker("<|call|>"), Marker("<|return|>")

_SYSTEM = (
    "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\n"
    "Reasoning: {level}\n\n# Valid channels: analysis, commentary, final. Channel must be included "
    "for every message."
)
_CALLS = "\nCalls to these tools must go to the commentary channel: 'functions'."
_UNKNOWN = "unknown"
"""The function of an output whose call nobody here understood."""


class Harmony:
    """Implements `prompts.format.Format`."""

    append_only = False
    names_outputs = True

    def __init__(self, tokenizer: Tokenizer, key: str) -> None:
        self.key = key
        self._markup = Markup(tokenizer)
        self._end = self._markup.ids(END)
        self._call = self._markup.ids(CALL)
        end_of_text = tokenizer.find("<|endoftext|>")
        self._replaced = {self._markup.ids(RETURN)}
        self._replaced |= set() if end_of_text is None else {pack(end_of_text)}
        self._start = tokenizer.special(START)
        self._message = tokenizer.special(MESSAGE)
        self._channel = self._markup.ids(CHANNEL)
        self._analysis = self._markup.ids(CHANNEL, "analysis")
        self._final = self._markup.ids(CHANNEL, "final", MESSAGE)
        self.header = self._markup.ids(START, "assistant")

    def begin(
        self,
        instructions: str | None,
        tools: Tools,
        items: Sequence[Item],
        *,
        settled: bool = False,
        effort: str | None = None,
    ) -> TokenIds:
        """Instructions, or a leading system message, share the developer's message with tools."""
        told = instructions
        if told is None:
            told, items = leading(items)
        shown = functions(tools)
        system = _SYSTEM.format(level=level(effort))
        parts = _message("system", system + (_CALLS if shown else ""))
        sections = [] if told is None else [_instructions(told)]
        if shown:
            written = "".join(f"{function_text(tool)}\n\n" for tool in shown)
            namespace = f"namespace functions {{\n\n{written}}} // namespace functions"
            sections.append(f"# Tools\n\n## functions\n\n{namespace}")
        if sections:
            parts += _message("developer", "\n\n".join(sections))
        return self._markup.ids(*parts) + self.items(items, settled=settled)

    def opening(self, effort: str | None) -> TokenIds:
        return b""

    def items(self, items: Sequence[Item], *, settled: bool = False) -> TokenIds:
        parts = [part for group in grouped(items, settled=settled) for part in _parts(group)]
        return self._markup.ids(*parts)

    def answer(self, sampled: TokenIds, finish: Finish, *, settled: bool = False) -> TokenIds:
        """The messages of an answer, the last one closed; a header that was cut off is left out.

        `<|call|>` stays, `<|return|>` and `<|endoftext|>` become `<|end|>`, a cut answer gets it.
        """
        if sampled[-4:] in self._replaced:
            sampled = sampled[:-4]
        if sampled[-4:] not in (self._end, self._call):
            sampled += self._end
        kept = [
            message
            for message in map(self._repaired, self._messages(sampled))
            if message and not (settled and message.startswith(self._analysis))
        ]
        return self.header.join(kept or [self._final + self._end])

    def _messages(self, sampled: TokenIds) -> Iterator[TokenIds]:
        """Each without its `<|start|>assistant`."""
        ids = array("I", sampled)
        starts = [at for at, id in enumerate(ids) if id == self._start]
        for begin, end in zip((0, *starts), (*starts, len(ids)), strict=True):
            message = ids[begin:end].tobytes()
            yield message.removeprefix(self.header)

    def _repaired(self, message: TokenIds) -> TokenIds:
        """Empty: only a header. Text without one is taken for the answer, as clients see it."""
        if self._message in array("I", message):
            return message
        if message == self._end or message.startswith((self._channel, pack(self._start))):
            return b""
        return self._final + message


def _parts(group: Group) -> list[str]:
    match group:
        case Outputs(outputs):
            return [
                part
                for out in outputs
                for part in _message(
                    f"functions.{out.name or _UNKNOWN} to=assistant", out.text, "commentary"
                )
            ]
        case Assistant():
            parts: list[str] = []
            if group.reasoning and not group.settled:
                parts += _message("assistant", group.reasoning, "analysis")
            if group.message is not None:
                parts += _message("assistant", group.text, _channel_of(group.message))
            return parts + [part for call in group.calls for part in _call(call)]
        case Message(role="user"):
            return _message("user", group.text)
        case _:
            return _message("developer", _instructions(group.text))


def _instructions(text: str) -> str:
    return f"# Instructions\n\n{text}"


def _message(author: str, text: str, channel: str = "") -> list[str]:
    place = [CHANNEL, channel] if channel else []
    return [START, author, *place, MESSAGE, text, END]


def _call(call: Call) -> list[str]:
    author = f"assistant to=functions.{call.name}"
    kind = ["commentary ", CONSTRAIN, "json"]
    return [START, author, CHANNEL, *kind, MESSAGE, _given_to(call), CALL]


def _given_to(call: Call) -> str:
    """A custom tool is shown as a function of one `input`."""
    if call.kind == "function_call":
        return call.arguments
    return msgspec.json.encode({"input": call.arguments}).decode()


def _channel_of(message: Message) -> str:
    """What was said before a call is commentary, where the item still says so."""
    return "commentary" if message.phase == "commentary" else "final"
