"""Any model through its own chat template, run in a sandbox by Jinja.

The template decides where markers go, so what people typed is guarded: a marker in it is broken up
by a character that is taken out again after rendering. Answers stand in the text as placeholders
that are replaced by the sampled ids. Whether history stands is for the template to say, so it is
not append-only as far as anyone knows.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwire.pipelines.messages import TokenIds
from turnwire.pipelines.prompts.effort import level, thinks
from turnwire.pipelines.prompts.hermes import functions, signature
from turnwire.pipelines.prompts.item_groups import Assistant, Group, Outputs, grouped
from turnwire.pipelines.prompts.template_file import TemplateFile
from turnwire.pipelines.prompts.tokenizer import Tokenizer, pack
from turnwire.pipelines.protocol.items import Call, Item, asks
from turnwire.pipelines.protocol.tools import Tools

# Code points that no text may contain, by Unicode's own rule; typed ones are replaced.
_GUARD, _OPEN, _CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"
_NO_TEXT = dict.fromkeys(map(ord, (_GUARD, _OPEN, _CLOSE)), "\ufffd")

_EFFORT = ("enable_thinking", "reasoning_effort")
"""What templates call it."""
_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Run:
    """Items of one turn, and the answer that followed: None if its items are among them."""

    items: Sequence[Item]
    answer: TokenIds | None


class ChatTemplate:
    """One template over one vocabulary. Equal input gives equal ids, for ever."""

    append_only = False

    def __init__(self, file: TemplateFile, tokenizer: Tokenizer, key: str) -> None:
        """Raises Internal for a template that cannot be read."""
        from turnwire.pipelines.prompts.template_sandbox import Sandbox

        self.key = key
        self._tokenizer = tokenizer
        self._markers = tokenizer.markers(file.begin_marker, file.end_marker)
        self._ends = {pack(id) for id in self._markers.values()}
        self._markers_named = {"bos_token": file.begin_marker, "eos_token": file.end_marker}
        names = "|".join(re.escape(name) for name in sorted(self._markers, key=len, reverse=True))
        self._typed = re.compile(names or r"(?!)")
        self._cut = re.compile(f"({names + '|' if names else ''}{_OPEN}[0-9]+{_CLOSE})")
        self._sandbox = Sandbox(file.source)
        thoughts = (self._marked(f"<think>{rest}") for rest in ("", "\n", "\n\n"))
        self._thoughts = tuple(thoughts)
        self.heeds_effort = any(name in file.source for name in _EFFORT)

    def ends_in_thought(self, prompt: TokenIds) -> bool:
        """Has the template begun a thought that the model goes on with?"""
        return prompt.endswith(self._thoughts)

    def _marked(self, text: str) -> TokenIds:
        return b"".join(self._ids(piece, ()) for piece in self._cut.split(text))

    def whole(
        self,
        instructions: str | None,
        tools: Tools,
        runs: Sequence[Run],
        *,
        generate: bool,
        effort: str | None = None,
    ) -> TokenIds:
        """A conversation. Raises InvalidRequest when the template refuses it."""
        answers: list[TokenIds] = []
        messages: list[Any] = []
        if instructions is not None:
            messages.append(self._guarded({"role": "system", "content": instructions}))
        for run, settled in zip(runs, _settled(runs), strict=True):
            for group in grouped(run.items, settled=settled):
                messages += self._guarded(_messages(group))
            if run.answer is not None:
                placeholder = f"{_OPEN}{len(answers)}{_CLOSE}"
                messages.append({"role": "assistant", "content": placeholder})
                answers.append(self._unclosed(run.answer))
        shown = self._guarded([signature(tool) for tool in functions(tools)])
        text = self._rendered(messages, shown, generate, effort)
        return b"".join(self._ids(piece, answers) for piece in self._cut.split(text))

    def _rendered(
        self, messages: list[Any], tools: list[Any], generate: bool, effort: str | None
    ) -> str:
        given: dict[str, Any] = {"messages": messages, "tools": tools or None}
        given["add_generation_prompt"] = generate
        if effort is not None:
            given |= {"enable_thinking": thinks(effort), "reasoning_effort": level(effort)}
        return self._sandbox.render(given | self._markers_named)

    def _guarded(self, given: Any) -> Any:  # noqa: ANN401 -- any JSON
        """The same value with every marker in its texts broken up."""
        match given:
            case str():
                return self._typed.sub(_broken, given.translate(_NO_TEXT))
            case dict():
                return {self._guarded(key): self._guarded(value) for key, value in given.items()}
            case list():
                return [self._guarded(value) for value in given]
            case _:
                return given

    def _ids(self, piece: str, answers: Sequence[TokenIds]) -> TokenIds:
        marker = self._markers.get(piece)
        if marker is not None:
            return pack(marker)
        if piece.startswith(_OPEN):
            return answers[int(piece.strip(_OPEN + _CLOSE))]
        return self._tokenizer.encode(piece.replace(_GUARD, "")) if piece else b""

    def _unclosed(self, sampled: TokenIds) -> TokenIds:
        """Without the marker that ended it: the template writes that."""
        return sampled[:-_ID_BYTES] if sampled[-_ID_BYTES:] in self._ends else sampled


def _broken(typed: re.Match[str]) -> str:
    return f"{typed[0][:1]}{_GUARD}{typed[0][1:]}"


def _settled(runs: Sequence[Run]) -> list[bool]:
    """For each run: does a person speak after it?"""
    out: list[bool] = []
    asked = False
    for run in reversed(runs):
        out.append(asked)
        asked = asked or any(map(asks, run.items))
    out.reverse()
    return out


def _messages(group: Group) -> list[dict[str, Any]]:
    match group:
        case Outputs(outputs):
            return [
                {"role": "tool", "content": out.text, "tool_call_id": out.call_id}
                for out in outputs
            ]
        case Assistant(message=None, calls=[]):
            return []
        case Assistant():
            said: dict[str, Any] = {"role": "assistant", "content": group.text}
            if group.reasoning and not group.settled:
                said["reasoning_content"] = group.reasoning
            if group.calls:
                said["tool_calls"] = [_call(call) for call in group.calls]
            return [said]
        case _:
            role = "system" if group.role == "developer" else group.role
            return [{"role": role, "content": group.text}]


def _call(call: Call) -> dict[str, Any]:
    """Templates write the arguments as JSON themselves, so they get them as values.

    A custom tool is shown as a function of one `input`.
    """
    arguments: Any = {"input": call.arguments}
    if call.kind == "function_call":
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            arguments = call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}
