"""Record what a model family's own chat template makes of our conversations.

    python tests/fakes/make_template_goldens.py qwen3 PATH_OF_ITS_TEMPLATE

The template is not part of this repository: take it from the model's own files (`chat_template` in
`tokenizer_config.json`). It is run as `transformers` runs it. What it says of tools in words of its
own is left out of the record (`template_words.py`), everything else is kept as it is.
"""

import datetime
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from template_conversations import CONVERSATIONS, Conversation
from template_words import without_words

GOLDENS = Path(__file__).parents[1] / "unit/pipelines/prompts/templates"
BEGIN_MARKERS = {"gemma": "<bos>", "llama3": "<|begin_of_text|>"}
OPTIONS: dict[str, dict[str, Any]] = {"llama3": {"tools_in_user_message": False}}
"""What a template is told beside the conversation."""


def main() -> None:
    form, path = sys.argv[1:]
    template = environment().from_string(Path(path).read_text())
    record = {name: rendered(form, template, one) for name, one in CONVERSATIONS.items()}
    text = json.dumps(record, ensure_ascii=False, indent=1)
    (GOLDENS / f"{form}.json").write_text(text + "\n")


def rendered(form: str, template: jinja2.Template, conversation: Conversation) -> str | None:
    """None: the template refuses the conversation."""
    given = OPTIONS.get(form, {}) | {
        "messages": [_message(message) for message in conversation.messages],
        "tools": [{"type": "function", "function": tool} for tool in conversation.tools] or None,
        "add_generation_prompt": True,
        "bos_token": BEGIN_MARKERS.get(form, ""),
    }
    if not conversation.thinks:
        given["enable_thinking"] = False
    try:
        return without_words(form, template.render(given))
    except jinja2.TemplateError:
        return None


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = datetime.datetime(2024, 7, 26).strftime
    return made


def _message(message: dict[str, Any]) -> dict[str, Any]:
    given = dict(message)
    if message["role"] == "developer":
        given["role"] = "system"
    if calls := message.get("tool_calls"):
        given["tool_calls"] = [
            {"type": "function", "id": call["id"], "function": call} for call in calls
        ]
    return given


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    main()
