"""What a whole prompt must be, rendered anew every time: one conversation, six formats.

Written apart from the formats it judges: a list of markers, texts and sampled ids, encoded with
every run of text as one.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import splintr

VOCABULARIES = {
    "chatml": "qwen3",
    "gemma": "gemma3",
    "harmony": "o200k_harmony",
    "hermes": "qwen3",
    "llama3": "llama3",
    "qwen3": "qwen3",
}
DEFAULTS = {
    "chatml": "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "hermes": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "qwen3": None,
}
DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
HARMONY_SYSTEM = (
    "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\n"
    "Reasoning: {level}\n\n# Valid channels: analysis, commentary, final. Channel must be included "
    "for every message."
)
CALL = '{"name": "f", "arguments": {"a": 1}}'
OUTPUT = "done"


class Mark(str):
    """A control marker."""

    __slots__ = ()


Piece = str | tuple[int, ...]


@dataclass(frozen=True)
class Turn:
    parent: int
    """Index of a turn before; -1: none."""
    instructions: str | None
    items: tuple[tuple[str, str], ...]
    """Role and text; the role `call`: a call and its output."""
    generate: bool
    model: str
    thought: str
    """Empty: the model did not think."""
    spoken: tuple[int, ...]
    ending: str
    text: str
    """What the message of the answer says."""
    effort: str | None = None

    @property
    def asked(self) -> bool:
        return any(role == "user" for role, _ in self.items)


@lru_cache
def vocabulary(name: str) -> Any:  # noqa: ANN401 -- the library has no types
    return splintr.Tokenizer.from_pretrained(name)


class Oracle:
    """Renders everything anew, every time."""

    def __init__(self, form: str, turns: list[Turn]) -> None:
        self.form = form
        self._turns = turns
        self._vocabulary = vocabulary(VOCABULARIES[form])
        self._chatml = form in ("chatml", "hermes", "qwen3")

    def ids(self, index: int) -> list[int]:
        """The prompt of a turn."""
        turn = self._turns[index]
        path = [*self.path(turn.parent), turn]
        started = next((at for at, one in enumerate(path) if one.items or one.generate), -1)
        pieces = self._beginning(turn.instructions, path[started].items, turn.effort)
        for at, one in enumerate(path[started:], started):
            if at > started:
                pieces += self._run(one.items)
            if at == len(path) - 1:
                pieces += self._header() + self._silence(one) if one.generate else []
            elif one.generate:
                settled = any(later.asked for later in path[at + 1 :])
                pieces += self._reply(one, turn.model, settled)
        return self.encode(pieces)

    def bare(self, turn: Turn) -> list[int]:
        """What stands before all items."""
        return self.encode(self._beginning(turn.instructions, (), turn.effort))

    def path(self, index: int) -> list[Turn]:
        path: list[Turn] = []
        while index >= 0:
            path.insert(0, self._turns[index])
            index = self._turns[index].parent
        return path

    def sampled(self, turn: Turn) -> tuple[int, ...]:
        """Every id of an answer, the terminal one too."""
        thought, spoken, end = self._answer(turn)
        return (*self.encode([*thought, *spoken]), *self.encode(end))

    def encode(self, pieces: list[Piece]) -> list[int]:
        out: list[int] = []
        run = ""
        for piece in (*pieces, ()):
            if isinstance(piece, str) and not isinstance(piece, Mark):
                run += piece
                continue
            out += self._vocabulary.encode_ordinary(run) if run else []
            run = ""
            out += self._vocabulary.encode(piece) if isinstance(piece, Mark) else piece
        return out

    def _beginning(
        self, told: str | None, items: tuple[tuple[str, str], ...], effort: str | None
    ) -> list[Piece]:
        if told is None and items and items[0][0] in ("system", "developer"):
            told, items = items[0][1], items[1:]
        if self._chatml:
            system = DEFAULTS[self.form] if told is None else told
            pieces = [] if system is None else self._message("system", system)
        elif self.form == "llama3":
            pieces = [Mark("<|begin_of_text|>"), Mark("<|start_header_id|>"), "system"]
            pieces += [Mark("<|end_header_id|>"), f"\n\n{DATES}{(told or '').strip()}"]
            pieces.append(Mark("<|eot_id|>"))
        elif self.form == "gemma":
            pieces = [Mark("<bos>")]
            if told and items and items[0][0] == "user":
                first = f"user\n{told}\n\n{items[0][1].strip()}"
                pieces += [Mark("<start_of_turn>"), first, Mark("<end_of_turn>"), "\n"]
                items = items[1:]
            elif told:
                items = (("user", told), *items)
        else:
            pieces = [Mark("<|start|>"), "system", Mark("<|message|>")]
            level = {"none": "low", "high": "high"}.get(effort or "", "medium")
            pieces.append(HARMONY_SYSTEM.format(level=level))
            pieces.append(Mark("<|end|>"))
            if told is not None:
                pieces += self._message("developer", told)
        return pieces + self._run(items)

    def _run(self, items: tuple[tuple[str, str], ...]) -> list[Piece]:
        pieces: list[Piece] = []
        for at, (role, text) in enumerate(items):
            before = items[at - 1][0] if at else ""
            pieces += self._called(before, pieces) if role == "call" else self._message(role, text)
        return pieces

    def _called(self, before: str, pieces: list[Piece]) -> list[Piece]:
        """A call and its output; a message the model wrote just before holds the call too."""
        if self.form == "harmony":
            call = [
                Mark("<|start|>"),
                "assistant to=functions.f",
                Mark("<|channel|>"),
                "commentary ",
            ]
            call += [
                Mark("<|constrain|>"),
                "json",
                Mark("<|message|>"),
                '{"a": 1}',
                Mark("<|call|>"),
            ]
            output = [Mark("<|start|>"), "functions.f to=assistant", Mark("<|channel|>")]
            return [*call, *output, "commentary", Mark("<|message|>"), OUTPUT, Mark("<|end|>")]
        if self.form == "llama3":
            call = self._message("assistant", CALL.replace("arguments", "parameters"))
            return [*call, *self._message("ipython", f'"{OUTPUT}"')]
        if self.form == "gemma":
            block = f"<tool_call>\n{CALL}\n</tool_call>"
            if before == "assistant":
                said = str(pieces[-3]).removeprefix("model\n")
                del pieces[-4:]
                block = f"{said}\n{block}" if said else block
            output = f"<tool_response>\n{OUTPUT}\n</tool_response>"
            return self._message("assistant", block) + self._message("user", output)
        call = [Mark("<tool_call>"), f"\n{CALL}\n", Mark("</tool_call>"), Mark("<|im_end|>"), "\n"]
        if before == "assistant":
            del pieces[-2:]
            call.insert(0, "\n" if pieces[-1] != "assistant\n" else "")
        else:
            call[:0] = [Mark("<|im_start|>"), "assistant\n"]
        output = [Mark("<|im_start|>"), "user\n", Mark("<tool_response>"), f"\n{OUTPUT}\n"]
        return [*call, *output, Mark("</tool_response>"), Mark("<|im_end|>"), "\n"]

    def _message(self, role: str, text: str) -> list[Piece]:
        if self._chatml:
            role = "system" if role == "developer" else role
            return [Mark("<|im_start|>"), f"{role}\n{text}", Mark("<|im_end|>"), "\n"]
        if self.form == "gemma":
            role = "model" if role == "assistant" else "user"
            return [Mark("<start_of_turn>"), f"{role}\n{text.strip()}", Mark("<end_of_turn>"), "\n"]
        if self.form == "llama3":
            role = "system" if role == "developer" else role
            header = [Mark("<|start_header_id|>"), role, Mark("<|end_header_id|>")]
            return [*header, f"\n\n{text.strip()}", Mark("<|eot_id|>")]
        if role in ("system", "developer"):
            role, text = "developer", f"# Instructions\n\n{text}"
        channel = [Mark("<|channel|>"), "final"] if role == "assistant" else []
        return [Mark("<|start|>"), role, *channel, Mark("<|message|>"), text, Mark("<|end|>")]

    def _header(self) -> list[Piece]:
        return {
            "gemma": [Mark("<start_of_turn>"), "model\n"],
            "harmony": [Mark("<|start|>"), "assistant"],
            "llama3": [Mark("<|start_header_id|>"), "assistant", Mark("<|end_header_id|>"), "\n\n"],
        }.get(self.form, [Mark("<|im_start|>"), "assistant\n"])

    def _silence(self, turn: Turn) -> list[Piece]:
        """The empty thought of an answer that is to come without one."""
        if self.form != "qwen3" or turn.effort != "none":
            return []
        return [Mark("<think>"), "\n\n", Mark("</think>"), "\n\n", ()]

    def _reply(self, turn: Turn, model: str, settled: bool) -> list[Piece]:
        something = self.sampled(turn) != ()
        if turn.model != model and something:
            return self._retold(turn, settled)
        thought, spoken, _ = self._answer(turn) if turn.model == model else ([], [], [])
        if settled and self.form in ("qwen3", "harmony"):
            thought = []
        if self.form == "harmony":
            if not spoken:
                spoken = [Mark("<|channel|>"), "final", Mark("<|message|>")] if not thought else []
            elif not thought and spoken[0] == Mark("<|start|>"):
                spoken = spoken[2:]
            closed = (
                [] if thought and not spoken and thought[-1] == Mark("<|end|>") else ["<|end|>"]
            )
            return [*self._header(), *thought, *spoken, *map(Mark, closed)]
        close = {"gemma": ["<end_of_turn>", "\n"], "llama3": ["<|eot_id|>"]}
        marker, *rest = close.get(self.form, ["<|im_end|>", "\n"])
        silence = [] if settled or turn.model != model else self._silence(turn)
        said = (*self.encode([*thought, *spoken]),)
        return [*self._header(), *silence, said, Mark(marker), *rest]

    def _retold(self, turn: Turn, settled: bool) -> list[Piece]:
        """An answer of another model."""
        told = self._message("assistant", turn.text)
        if settled or not turn.thought:
            return told
        if self.form == "qwen3":
            think = [Mark("<think>"), f"\n{turn.thought}\n", Mark("</think>"), f"\n\n{turn.text}"]
            return [Mark("<|im_start|>"), "assistant\n", *think, Mark("<|im_end|>"), "\n"]
        if self.form == "harmony":
            thought = [Mark("<|start|>"), "assistant", Mark("<|channel|>"), "analysis"]
            return [*thought, Mark("<|message|>"), turn.thought, Mark("<|end|>"), *told]
        return told

    def _answer(self, turn: Turn) -> tuple[list[Piece], list[Piece], list[Piece]]:
        """Thought, text and terminal marker, as sampled."""
        thought: list[Piece] = []
        spoken: list[Piece] = [turn.spoken] if turn.spoken else []
        if turn.thought and self.form == "qwen3":
            thought = [Mark("<think>"), f"\n{turn.thought}\n", Mark("</think>"), "\n\n", ()]
        if self.form == "harmony":
            final = [Mark("<|channel|>"), "final", Mark("<|message|>")]
            if turn.thought:
                thought = [Mark("<|channel|>"), "analysis", Mark("<|message|>"), turn.thought]
                thought.append(Mark("<|end|>"))
                final = [Mark("<|start|>"), "assistant", *final]
            spoken = [*final, *spoken] if spoken else []
        return thought, spoken, self._terminal(turn.ending)

    def _terminal(self, ending: str) -> list[Piece]:
        ends = {
            "gemma": ("<end_of_turn>", "<eos>"),
            "harmony": ("<|return|>", "<|endoftext|>"),
            "llama3": ("<|eot_id|>", "<|end_of_text|>"),
        }.get(self.form, ("<|im_end|>", "<|endoftext|>"))
        chosen = {"stop": ends[:1], "grammar": ends[1:]}.get(ending, ())
        return [Mark(name) for name in chosen]


def possible(turn: Turn, index: int) -> Turn:
    """Parents come before."""
    return replace(turn, parent=min(turn.parent, index - 1))
