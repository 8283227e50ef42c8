"""Qwen3: Hermes' ChatML, and what the model thinks between `<think>` and `</think>`.

The format rewrites history: once the user speaks again, earlier answers lose what was thought. As
long as only tool outputs follow, it stays.
"""

from array import array

from turnwire.pipelines.messages import Finish, TokenIds
from turnwire.pipelines.prompts.effort import thinks
from turnwire.pipelines.prompts.hermes import Hermes
from turnwire.pipelines.prompts.item_groups import Assistant
from turnwire.pipelines.prompts.markup import Marker
from turnwire.pipelines.prompts.tokenizer import Tokenizer

THINK, THINK_END = Marker("<think>"), Marker("</think>")

_LINE_ENDS = 4


class Qwen3(Hermes):
    """Implements `prompts.format.Format`."""

    append_only = False
    default_system = None

    def __init__(self, tokenizer: Tokenizer, key: str) -> None:
        super().__init__(tokenizer, key)
        self._think = tokenizer.special(THINK)
        self._think_end = tokenizer.special(THINK_END)
        found = (tokenizer.encode("\n" * count) for count in range(1, _LINE_ENDS + 1))
        self._silence = self.markup.ids(THINK, "\n\n", THINK_END, "\n\n")
        self._line_ends = {int.from_bytes(ids, "little") for ids in found if len(ids) == 4}

    def opening(self, effort: str | None) -> TokenIds:
        """An empty thought, so that the model does not think."""
        return b"" if thinks(effort) else self._silence

    def answer(self, sampled: TokenIds, finish: Finish, *, settled: bool = False) -> TokenIds:
        """Closed as in ChatML. Settled, it begins behind the thought and its empty lines."""
        return super().answer(self._spoken(sampled) if settled else sampled, finish)

    def thought(self, said: Assistant) -> tuple[str, ...]:
        if said.settled or not said.reasoning:
            return ()
        return (THINK, "\n" + said.reasoning.strip("\n") + "\n", THINK_END, "\n\n")

    def _spoken(self, sampled: TokenIds) -> TokenIds:
        ids = array("I", sampled)
        if self._think_end in ids:
            start = ids.index(self._think_end) + 1
            while start < len(ids) and ids[start] in self._line_ends:
                start += 1
            return ids[start:].tobytes()
        # Cut while it thought: it said nothing.
        return b"" if ids[:1] == array("I", [self._think]) else sampled
