"""ChatML as SmolLM2 was trained on it: `<|im_start|>role`, text, `<|im_end|>`, line by line.

The format has no place for tools. Calls that clients put into a history are written the way later
models of that family were trained to write them.
"""

import msgspec

from turnwire.pipelines.messages import Finish, TokenIds
from turnwire.pipelines.prompts.tokenizer import Tokenizer, pack
from turnwire.pipelines.protocol.items import Call, CallOutput, Foreign, Item, Message, Reasoning
from turnwire.pipelines.protocol.tools import Tools

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

_ID_BYTES = 4


class ChatML:
    """Implements `prompts.format.Format`."""

    def __init__(self, tokenizer: Tokenizer, key: str) -> None:
        self.key = key
        self._tokenizer = tokenizer
        self._start = pack(tokenizer.special("<|im_start|>"))
        self._terminal = pack(tokenizer.special("<|im_end|>"))
        self._end_of_text = pack(tokenizer.special("<|endoftext|>"))
        self._line_end = tokenizer.encode("\n")
        self._end = self._terminal + self._line_end
        self.header = self._start + tokenizer.encode("assistant\n")

    def head(self, instructions: str | None, tools: Tools, leading: str) -> TokenIds:
        """A system message of the client's takes the place of the default one."""
        if instructions is not None:
            return self._message("system", instructions)
        if leading in ("system", "developer"):
            return b""
        return self._message("system", DEFAULT_SYSTEM)

    def item(self, item: Item) -> TokenIds:
        match item:
            case Message(role=role, text=text):
                return self._message("system" if role == "developer" else role, text)
            case Call():
                return self._message("assistant", f"<tool_call>\n{_call(item)}\n</tool_call>")
            case CallOutput(text=text):
                return self._message("user", f"<tool_response>\n{text}\n</tool_response>")
            case Reasoning() | Foreign():
                return b""

    def answer(self, sampled: TokenIds, finish: Finish) -> TokenIds:
        """However it ended, an answer is closed by one `<|im_end|>` and its line end.

        A stop by `<|im_end|>` has sampled it already; `<|endoftext|>`, with which grammars stop, is
        replaced by it; a cut or cancelled answer gets it added.
        """
        last = sampled[-_ID_BYTES:]
        if last == self._terminal:
            return sampled + self._line_end
        if last == self._end_of_text:
            sampled = sampled[:-_ID_BYTES]
        return sampled + self._end

    def _message(self, role: str, text: str) -> TokenIds:
        return self._start + self._tokenizer.encode(f"{role}\n{text}") + self._end


def _call(call: Call) -> str:
    name = msgspec.json.encode(call.name).decode()
    arguments = call.arguments
    if call.kind != "function_call":
        arguments = msgspec.json.encode(arguments).decode()
    return f'{{"name": {name}, "arguments": {arguments}}}'
