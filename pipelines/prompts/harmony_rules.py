"""What an answer in Harmony may be, as rules of a grammar. Pure.

Its markers are control tokens, which no text can stand for. The model may think and say what it is
about to do; then it answers on `final`, or calls one function: `<|call|>` ends the answer.
"""

from turnwire.pipelines.prompts.call_grammar import Tool, argument_rules, quoted

_BEFORE = [
    "start: before* last",
    'before: said <|end|> <|start|> "assistant"',
    "said: thought",
    'thought: <|channel|> "analysis" <|message|> WORDS',
    "WORDS: /(?s:.*)/",
]
_PREAMBLE = 'said: thought | <|channel|> "commentary" <|message|> WORDS'


def rules(text: str, tools: list[Tool], *, required: bool) -> list[str]:
    """`text`: what a message on `final` must be; empty: any. Raises ToolRefused."""
    lines = [_PREAMBLE if line.startswith("said:") and tools else line for line in _BEFORE]
    lines.append("last: call" if required else "last: final | call" if tools else "last: final")
    if not required:
        lines.append(f'final: <|channel|> "final" <|message|> {"text" if text else "WORDS"}')
        lines += [f"text: {text}"] if text else []
    if tools:
        lines.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
        # Whom a call is for stands before or behind the channel: models write both.
        lines.append('kind: (" "? <|constrain|> "json")? <|message|>')
    for index, tool in enumerate(tools):
        to = f" to=functions.{tool['name']}"
        before = f'{quoted(to)} <|channel|> "commentary"'
        behind = f"<|channel|> {quoted(f'commentary{to}')}"
        lines.append(f"call_{index}: ({before} | {behind}) kind arguments_{index} <|call|>")
        lines += argument_rules(tool, index)
    return lines
