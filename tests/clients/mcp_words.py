"""A tool server as Codex starts them, by the Model Context Protocol over standard input and output:
one tool, which says words backwards.
"""

import json
import sys
from typing import Any

TOOL = {
    "name": "reverse",
    "description": "Say a word backwards.",
    "inputSchema": {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
    },
    # Or somebody would have to allow each call.
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
}


def answer(method: str, given: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": given["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "words", "version": "1"},
            }
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            text = "backwards: " + given["arguments"]["word"][::-1]
            return {"content": [{"type": "text", "text": text}]}
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answer(asked["method"], asked.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
