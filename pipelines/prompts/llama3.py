"""Llama 3: `<|start_header_id|>role<|end_header_id|>`, an empty line, trimmed text, `<|eot_id|>`.

The system message comes first and always, with the dates the models were trained to see there: no
clock is asked, so it says the default date. Functions are listed in it too. A call is a JSON object
that is the whole message, its output has the role `ipython`.
"""

import json
from collections.abc import Sequence

from turnwire.pipelines.messages import Finish, TokenIds
from turnwire.pipelines.prompts.chatml import call_json
from turnwire.pipelines.prompts.hermes import functions, signature
from turnwire.pipelines.prompts.item_groups import Assistant, Group, Outputs, grouped, leading
from turnwire.pipelines.prompts.markup import Marker, Markup
from turnwire.pipelines.prompts.tokenizer import Tokenizer, pack
from turnwire.pipelines.protocol.items import Item
from turnwire.pipelines.protocol.tools import Tools

_BEGIN, _END = Marker("<|begin_of_text|>"), Marker("<|eot_id|>")
_HEADER, _HEADER_END = Marker("<|start_header_id|>"), Marker("<|end_header_id|>")
_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
_TOOLS = (
    "These functions can be called, each given by its JSON signature. To call one, answer with "
    'nothing but a JSON object of the form {"name": name of the function, "parameters": object of '
    "arguments}.\n\n"
)
_ID_BYTES = 4


class Llama3:
    """Implements `prompts.format.Format`."""

    append_only = True
    names_outputs = False

    def __init__(self, tokenizer: Tokenizer, key: str) -> None:
        self.key = key
        self._markup = Markup(tokenizer)
        self._terminal = self._markup.ids(_END)
        others = map(tokenizer.find, ("<|eom_id|>", "<|end_of_text|>"))
        self._ends = {self._terminal, *(pack(end) for end in others if end is not None)}
        self.header = self._markup.ids(_HEADER, "assistant", _HEADER_END, "\n\n")

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
        listed = [
            json.dumps(signature(tool), ensure_ascii=False, indent=4) for tool in functions(tools)
        ]
        told = "".join(f"{text}\n\n" for text in listed)
        text = ("Environment: ipython\n" if listed else "") + _DATES
        text += (_TOOLS + told if listed else "") + (system or "").strip()
        parts = (_HEADER, "system", _HEADER_END, f"\n\n{text}", _END)
        return self._markup.ids(_BEGIN, *parts) + self.items(items, settled=settled)

    def opening(self, effort: str | None) -> TokenIds:
        return b""

    def items(self, items: Sequence[Item], *, settled: bool = False) -> TokenIds:
        parts = [part for group in grouped(items, settled=settled) for part in _parts(group)]
        return self._markup.ids(*parts)

    def answer(self, sampled: TokenIds, finish: Finish, *, settled: bool = False) -> TokenIds:
        """Closed by one `<|eot_id|>`; `<|eom_id|>` and `<|end_of_text|>` are replaced by it."""
        if sampled[-_ID_BYTES:] in self._ends:
            sampled = sampled[:-_ID_BYTES]
        return sampled + self._terminal


def _parts(group: Group) -> list[str]:
    match group:
        case Outputs(outputs):
            texts = [json.dumps(output.text, ensure_ascii=False) for output in outputs]
            return [part for text in texts for part in _message("ipython", text)]
        case Assistant():
            said = [group.text] if group.message is not None else []
            said += [call_json(call, "parameters") for call in group.calls]
            return [part for text in said for part in _message("assistant", text)]
        case _:
            role = "system" if group.role == "developer" else group.role
            return list(_message(role, group.text))


def _message(role: str, text: str) -> tuple[str, ...]:
    return (_HEADER, role, _HEADER_END, f"\n\n{text.strip()}", _END)
