"""An agent's loop: the model calls a tool, its output goes back, until there is an answer."""

import argparse
import json
from typing import Any

from openai import OpenAI
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response

TOOL = {
    "type": "function",
    "name": "read_file",
    "description": "Read a file of the project.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
    "strict": True,
}


def turn(
    connection: ResponsesConnection,
    request: dict[str, Any],
    **new: Any,  # noqa: ANN401 -- as sent
) -> Response:
    """One response, when it is complete."""
    connection.response.create(**request, **new)
    for event in connection:
        if event.type in ("response.failed", "error"):
            raise SystemExit(f"the turn failed: {event}")
        if event.type in ("response.completed", "response.incomplete"):
            return event.response
    raise SystemExit("the server closed the connection")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--model", default="sim-1000")
    parser.add_argument("--key", default="none")
    parser.add_argument("--turns", type=int, default=5, help="how often the model calls the tool")
    args = parser.parse_args()
    every = {
        "model": args.model,
        "tools": [TOOL],
        "store": False,
        "metadata": {"sim.tool_turns": str(args.turns)},
    }
    with OpenAI(base_url=args.url, api_key=args.key).responses.connect() as connection:
        response = turn(connection, every, input="Fix the bug.")
        while calls := [item for item in response.output if item.type == "function_call"]:
            print(f"{calls[0].name}({calls[0].arguments})")
            outputs = [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": json.dumps({"text": "nothing to see"}),
                }
                for call in calls
            ]
            response = turn(connection, every, input=outputs, previous_response_id=response.id)
        print(response.output_text)


if __name__ == "__main__":
    main()
