"""ChatML as SmolLM2 was trained on it: `<|im_start|>role`, text, `<|im_end|>`, line by line.

The format has no place for tools, so the model is not shown any. Calls that clients put into a
history, and calls a grammar forces, are written the way later models of that family write them.
"""

import json
from collections.abc import Sequence

import msgspec

from turnwire.pipelines.messages import Finish, TokenIds
from turnwire.pipelines.prompts.item_groups import Assistant, Group, Outputs, grouped, leading
from turnwire.pipelines.prompts.markup import Marker, Markup, Tag
from turnwire.pipelines.prompts.tokenizer import Tokenizer, pack
from turnwire.pipelines.protocol.items import Call, Item
from turnwire.pipelines.protocol.tools import Tools

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

START, END = Marker("<|im_start|>"), Marker("<|im_end|>")
CALL, CALL_END = Tag("<tool_call>"), Tag("</tool_call>")
RESPONSE, RESPONSE_END = Tag("<tool_response>"), Tag("</tool_response>")

_ID_BYTES = 4


class ChatML:
    """Implements `prompts.format.Format`."""

    append_only = True
    names_outputs = False
    default_system: str | None = DEFAULT_SYSTEM

    def __init__(self, tokenizer: Tokenizer, key: str) -> None:
        self.key = key
        self.markup = Markup(tokenizer)
        self._terminal = self.markup.ids(END)
        end_of_text = tokenizer.find("<|endoftext|>")
        self._end_of_text = None if end_of_text is None else pack(end_of_text)
        self._line_end = tokenizer.encode("\n")
        self.header = self.markup.ids(START, "assistant\n")

    def begin(
        self,
        instructions: str | None,
        tools: Tools,
        items: Sequence[Item],
        *,
        settled: bool = False,
        effort: str | None = None,
    ) -> TokenIds:
        """A system message of the client's takes the place of the default one."""
        system = instructions
        if system is None:
            system, items = leading(items)
        if system is None:
            system = self.default_system
        told: tuple[str, ...] = () if system is None else (system,)
        if shown := self.tool_section(tools):
            told += ("\n\n", *shown) if told else shown
        parts = _block("system", *told) if told else ()
        return self.markup.ids(*parts) + self.items(items, settled=settled)

    def opening(self, effort: str | None) -> TokenIds:
        return b""

    def items(self, items: Sequence[Item], *, settled: bool = False) -> TokenIds:
        parts = [part for group in grouped(items, settled=settled) for part in self._parts(group)]
        return self.markup.ids(*parts)

    def answer(self, sampled: TokenIds, finish: Finish, *, settled: bool = False) -> TokenIds:
        """However it ended, an answer is closed by one `<|im_end|>` and its line end.

        A stop by `<|im_end|>` has sampled it already; `<|endoftext|>`, with which grammars stop, is
        replaced by it; a cut or cancelled answer gets it added.
        """
        if sampled[-_ID_BYTES:] in (self._terminal, self._end_of_text):
            sampled = sampled[:-_ID_BYTES]
        return sampled + self._terminal + self._line_end

    def tool_section(self, tools: Tools) -> tuple[str, ...]:
        """What a system message says of tools."""
        return ()

    def thought(self, said: Assistant) -> tuple[str, ...]:
        """What stands before the text of an answer that was not sampled here."""
        return ()

    def _parts(self, group: Group) -> tuple[str, ...]:
        match group:
            case Outputs(outputs):
                parts: list[str] = []
                for output in outputs:
                    parts += ("\n", RESPONSE, "\n", output.text, "\n", RESPONSE_END)
                return (START, "user", *parts, END, "\n")
            case Assistant(message=None, calls=[]):
                return ()
            case Assistant():
                thought, text = self.thought(group), group.text
                said = (*thought, text.lstrip("\n") if thought else text)
                return _block("assistant", *said, *_calls(group.calls, bool(text)))
            case _:
                role = "system" if group.role == "developer" else group.role
                return _block(role, group.text)


def _block(role: str, *parts: str) -> tuple[str, ...]:
    return (START, f"{role}\n", *parts, END, "\n")


def _calls(calls: list[Call], spoke: bool) -> list[str]:
    parts: list[str] = []
    for call in calls:
        lead = "\n" if spoke or parts else ""
        parts += (lead, CALL, f"\n{call_json(call)}\n", CALL_END)
    return parts


def call_json(call: Call, arguments: str = "arguments") -> str:
    """A call as most models write it. `arguments`: what the format calls them."""
    name = msgspec.json.encode(call.name).decode()
    return f'{{"name": {name}, "{arguments}": {given_to(call)}}}'


def given_to(call: Call) -> str:
    """The arguments of a call, spaced as templates space JSON, whatever way a client wrote them.

    A custom tool is shown as a function of one `input`.
    """
    given: object = {"input": call.arguments}
    if call.kind == "function_call":
        try:
            given = json.loads(call.arguments)
        except (ValueError, RecursionError):
            return call.arguments
    return json.dumps(given, ensure_ascii=False)
