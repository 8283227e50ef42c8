"""Gemma: turns of `user` and `model`; there is no system role, and all text is trimmed.

What a system message says begins the first turn of the user. The format has no tools either: they
are told of there too, in the way of Hermes. Answers keep their sampled ids, so trimming changes
nothing that was sent.
"""

from collections.abc import Sequence

from turnwire.pipelines.messages import Finish, TokenIds
from turnwire.pipelines.prompts.chatml import call_json
from turnwire.pipelines.prompts.hermes import tool_lines, tool_text
from turnwire.pipelines.prompts.item_groups import Assistant, Group, Outputs, grouped, leading
from turnwire.pipelines.prompts.markup import Marker, Markup
from turnwire.pipelines.prompts.tokenizer import Tokenizer, pack
from turnwire.pipelines.protocol.items import Item, Message
from turnwire.pipelines.protocol.tools import Tools

_BEGIN, _START, _END = Marker("<bos>"), Marker("<start_of_turn>"), Marker("<end_of_turn>")

_ID_BYTES = 4


class Gemma:
    """Implements `prompts.format.Format`."""

    append_only = True
    names_outputs = False

    def __init__(self, tokenizer: Tokenizer, key: str) -> None:
        self.key = key
        self._markup = Markup(tokenizer)
        self._terminal = self._markup.ids(_END)
        end = tokenizer.find("<eos>")
        self._end_of_text = None if end is None else pack(end)
        self._line_end = tokenizer.encode("\n")
        self.header = self._markup.ids(_START, "model\n")

    def begin(
        self,
        instructions: str | None,
        tools: Tools,
        items: Sequence[Item],
        *,
        settled: bool = False,
        effort: str | None = None,
    ) -> TokenIds:
        system = instructions
        if system is None:
            system, items = leading(items)
        lines = tool_lines(tools)
        told = [text for text in (system, "".join(tool_text(lines)) if lines else None) if text]
        parts: tuple[str, ...] = ()
        first = items[0] if items else None
        if told and isinstance(first, Message) and first.role == "user":
            parts, items = _turn("user", "\n\n".join((*told, first.text.strip()))), items[1:]
        elif told:
            parts = _turn("user", "\n\n".join(told).strip())
        return self._markup.ids(_BEGIN, *parts) + self.items(items, settled=settled)

    def opening(self, effort: str | None) -> TokenIds:
        return b""

    def items(self, items: Sequence[Item], *, settled: bool = False) -> TokenIds:
        parts = [part for group in grouped(items, settled=settled) for part in _parts(group)]
        return self._markup.ids(*parts)

    def answer(self, sampled: TokenIds, finish: Finish, *, settled: bool = False) -> TokenIds:
        """Closed by one `<end_of_turn>` and its line end; `<eos>` is replaced by it."""
        if sampled[-_ID_BYTES:] in (self._terminal, self._end_of_text):
            sampled = sampled[:-_ID_BYTES]
        return sampled + self._terminal + self._line_end


def _parts(group: Group) -> tuple[str, ...]:
    match group:
        case Outputs(outputs):
            texts = (f"<tool_response>\n{out.text}\n</tool_response>" for out in outputs)
            return _turn("user", "\n".join(texts))
        case Assistant(message=None, calls=[]):
            return ()
        case Assistant():
            calls = (f"<tool_call>\n{call_json(call)}\n</tool_call>" for call in group.calls)
            return _turn("model", "\n".join(text for text in (group.text.strip(), *calls) if text))
        case _:
            return _turn("user" if group.role != "assistant" else "model", group.text.strip())


def _turn(role: str, text: str) -> tuple[str, ...]:
    return (_START, f"{role}\n{text}", _END, "\n")
