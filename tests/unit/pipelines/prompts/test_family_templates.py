"""Our prompts against those of the families' own templates, recorded by make_template_goldens."""

import json
from array import array
from pathlib import Path

import msgspec
import pytest
from prompt_oracle import VOCABULARIES, vocabulary
from template_conversations import CONVERSATIONS, Conversation, api_items
from template_words import without_words

from turnwire.pipelines.messages import Model
from turnwire.pipelines.prompts.format import Format, format_of
from turnwire.pipelines.protocol.items import kept_items
from turnwire.pipelines.protocol.tools import parse_tools

GOLDENS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "templates").glob("*.json"))
}
OWN_WAY = {
    # Templates of Gemma know no tools, and refuse what does not alternate.
    ("gemma", "tools alone"),
    ("gemma", "tools and a system message"),
    # The family's template drops what was said before a call.
    ("llama3", "words before a call"),
    ("llama3", "words after a thought"),
}
CASES = [
    (form, name)
    for form, goldens in GOLDENS.items()
    for name, golden in goldens.items()
    if golden is not None and (form, name) not in OWN_WAY
]


def prompt(form: str, conversation: Conversation) -> list[int]:
    built = format_of(Model("m", "tokens", form, f"splintr:{VOCABULARIES[form]}"))
    assert not hasattr(built, "whole"), "a format, not a template"
    written: Format = built
    tools = [{"type": "function"} | tool for tool in conversation.tools]
    items = kept_items(msgspec.json.encode(api_items(conversation.messages))[1:-1])
    effort = None if conversation.thinks else "none"
    begun = written.begin(None, parse_tools(msgspec.json.encode(tools)), items, effort=effort)
    return array("I", begun + written.header + written.opening(effort)).tolist()


@pytest.mark.parametrize(("form", "name"), CASES)
def test_a_conversation_is_written_as_the_template_of_its_family_writes_it(
    form: str, name: str
) -> None:
    ids = prompt(form, CONVERSATIONS[name])
    text = vocabulary(VOCABULARIES[form]).decode_with_special(ids)
    assert without_words(form, text) == GOLDENS[form][name]
    assert list(vocabulary(VOCABULARIES[form]).encode(text)) == ids


def test_every_family_was_recorded_with_every_conversation() -> None:
    assert set(GOLDENS) == {"gemma", "hermes", "llama3", "qwen3"}
    assert all(set(goldens) == set(CONVERSATIONS) for goldens in GOLDENS.values())
