import pytest

from turnwire.pipelines.messages import Counts, Model, TextProduced
from turnwire.pipelines.prompts.output import output_parser
from turnwire.pipelines.protocol.errors import Internal


def test_without_tools_all_that_chatml_samples_is_text() -> None:
    parser = output_parser(Model("small", "tokens", "chatml"), calls=False)
    event = TextProduced("<tool_call>", Counts(), b"ids.")
    assert parser.feed(event) == [event]
    assert parser.finish() == []


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(Internal, match="no prompt format"):
        output_parser(Model("x", "tokens", "smoke"))
