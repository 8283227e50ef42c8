"""What a prompt format is: how a conversation becomes the token ids its model was trained on.

A prompt is a head, then for each turn its input items, `header`, and the answer. Every part begins
and ends with a control marker, so no run of text spans two parts and ids made apart are the ids of
the whole. The ids of an answer are the SAMPLED ones: the model saw those, and encoding its text
again may give others.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from turnwire.pipelines.messages import Finish, Model, TokenIds
from turnwire.pipelines.prompts.chatml import ChatML
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
    def header(self) -> TokenIds:
        """What invites the model to answer."""

    def head(self, instructions: str | None, tools: Tools, leading: str) -> TokenIds:
        """What comes before all items. `leading`: role of the first item, empty if none yet."""

    def item(self, item: Item) -> TokenIds:
        """One item of the input, or of an answer whose sampled ids are not known."""

    def answer(self, sampled: TokenIds, finish: Finish) -> TokenIds:
        """What stands behind `header` once the answer is over: the sampled ids, closed."""


FORMATS: dict[str, Callable[[Tokenizer, str], Format]] = {"chatml": ChatML}


@lru_cache(maxsize=16)
def _build(name: str, tokenizer: str) -> Format:
    if name not in FORMATS:
        raise Internal(f"no prompt format is called {name!r}")
    return FORMATS[name](load_tokenizer(tokenizer), f"{name}:{tokenizer}")


def format_of(model: Model) -> Format:
    """The format of a model of the form `tokens`, made once in this process. Raises Internal."""
    return _build(model.prompt_format, model.tokenizer)
