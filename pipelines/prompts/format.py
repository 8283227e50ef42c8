"""What a prompt format is: how a conversation becomes the token ids its model was trained on.

A prompt is a beginning (system message, tools and the first items), then `header` and the answer,
then for each turn its input items, `header`, and the answer. Every part begins and ends with a
control marker, so no run of text spans two parts and ids made apart are the ids of the whole. The
ids of an answer are the SAMPLED ones: the model saw those, and encoding its text again may give
others.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from turnwire.pipelines.messages import Finish, Model, TokenIds
from turnwire.pipelines.prompts.chatml import ChatML
from turnwire.pipelines.prompts.gemma import Gemma
from turnwire.pipelines.prompts.harmony import Harmony
from turnwire.pipelines.prompts.hermes import Hermes
from turnwire.pipelines.prompts.llama3 import Llama3
from turnwire.pipelines.prompts.qwen3 import Qwen3
from turnwire.pipelines.prompts.template import ChatTemplate
from turnwire.pipelines.prompts.template_file import load_template
from turnwire.pipelines.prompts.tokenizer import Tokenizer, load_tokenizer
from turnwire.pipelines.protocol.errors import Internal
from turnwire.pipelines.protocol.items import Item
from turnwire.pipelines.protocol.tools import Tools


class Format(Protocol):
    """One format over one vocabulary. Equal input gives equal ids, for ever."""

    @property
    def key(self) -> str:
        """Names format and vocabulary: ids made under equal keys may be mixed."""

    @property
    def append_only(self) -> bool:
        """Does what was sent stand for ever? Else it may change when it is `settled`."""

    @property
    def names_outputs(self) -> bool:
        """Does a tool output say which function it is of?"""

    @property
    def header(self) -> TokenIds:
        """What invites the model to answer."""

    def begin(
        self,
        instructions: str | None,
        tools: Tools,
        items: Sequence[Item],
        *,
        settled: bool = False,
        effort: str | None = None,
    ) -> TokenIds:
        """The beginning of a conversation, with its first items, which may be none.

        `effort`: `reasoning.effort`, for formats that say it to the model.
        """

    def opening(self, effort: str | None) -> TokenIds:
        """What is written behind `header` in the model's name, so that it thinks no more than that.

        It is part of the answer: settled, it is left out where thoughts are.
        """

    def items(self, items: Sequence[Item], *, settled: bool = False) -> TokenIds:
        """More input, or an answer whose sampled ids are not known.

        `settled`: a person speaks later, so the model need not see any more what it thought.
        """

    def answer(self, sampled: TokenIds, finish: Finish, *, settled: bool = False) -> TokenIds:
        """What stands behind `header` once the answer is over: the sampled ids, closed."""


AnyFormat = Format | ChatTemplate
"""A chat template renders a conversation as a whole only."""

FORMATS: dict[str, Callable[[Tokenizer, str], Format]] = {
    "chatml": ChatML,
    "gemma": Gemma,
    "harmony": Harmony,
    "hermes": Hermes,
    "llama3": Llama3,
    "qwen3": Qwen3,
}
TEMPLATE = "jinja"


@lru_cache(maxsize=16)
def _build(name: str, tokenizer: str) -> AnyFormat:
    key = f"{name}:{tokenizer}"
    if name == TEMPLATE:
        return ChatTemplate(load_template(tokenizer), load_tokenizer(tokenizer), key)
    if name not in FORMATS:
        raise Internal(f"no prompt format is called {name!r}")
    return FORMATS[name](load_tokenizer(tokenizer), key)


def format_of(model: Model) -> AnyFormat:
    """The format of a model of the form `tokens`, made once in this process. Raises Internal."""
    return _build(model.prompt_format, model.tokenizer)
