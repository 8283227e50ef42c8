"""What stands around the list of tools in a prompt, taken out: each says that in its own words."""

import re

_HERMES = r"# Tools\n.*?<tools>\n(?P<kept>.*?)\n</tools>.*</tool_call>(?=<\|im_end\|>\n)"
_WORDS = {
    "hermes": _HERMES,
    "qwen3": _HERMES,
    "llama3": r'(?<=2024\n\n)[^<{]*?\{[^<]*?(?P<kept>\{\n    "type")',
}


def without_words(form: str, prompt: str) -> str:
    """The same prompt, with `{tools}` for the words."""
    words = _WORDS.get(form)
    if words is None:
        return prompt
    head, end, rest = prompt.partition("<|im_end|>\n" if form != "llama3" else "<|eot_id|>")
    shortened = re.sub(words, r"{tools}\g<kept>", head + end, count=1, flags=re.DOTALL)
    return shortened + rest
