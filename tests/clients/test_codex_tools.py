"""Tools of other kinds than a shell: Codex runs what the model calls, and returns what came out."""

import sys
from pathlib import Path
from typing import Any

from codex_client import Codex
from recording_relay import recorded
from running_server import RunningServer

WORDS = Path(__file__).parent / "mcp_words.py"


def test_codex_runs_a_function_of_a_namespace(
    npm: Path, server: RunningServer, tmp_path: Path
) -> None:
    """One of a tool server, which Codex offers as a namespace. The model is shown nothing else."""

    def offer_words(request: dict[str, Any]) -> dict[str, Any]:
        words = [tool for tool in request.get("tools", ()) if tool.get("name") == "mcp__words"]
        return {"model": "sim-max", "tools": words}

    with recorded(server.url, offer_words) as (url, recorder):
        codex = Codex.of(npm, url, tmp_path)
        codex.add_tool_server("words", sys.executable, str(WORDS))
        run = codex.exec("Turn a word round.")
    assert (run.code, run.complaints) == (0, [])
    calls = [item for turn in recorder.exchanges for item in turn.returned if "namespace" in item]
    (call,) = calls
    assert (call["namespace"], call["name"]) == ("mcp__words", "reverse")
    outputs = [
        item
        for turn in recorder.exchanges
        for item in turn.input
        if item["type"] == "function_call_output"
    ]
    (output,) = outputs
    assert output["call_id"] == call["call_id"]
    assert "backwards: " in str(output["output"])


PATCH = """*** Begin Patch
*** Add File: made.txt
+Made by a patch.
*** Update File: needle.txt
@@
-found
+found and changed
*** End Patch
"""
BRIEF = {"instructions": "", "previous_response_id": None}


def test_codex_applies_a_patch_that_a_custom_tool_is_called_with(
    npm: Path, server: RunningServer, tmp_path: Path
) -> None:
    """A small model writes it, since its grammar allows nothing else."""

    def patch(request: dict[str, Any]) -> dict[str, Any]:
        if request.get("generate") is False:
            return {}
        if any(item["type"] == "custom_tool_call_output" for item in request["input"]):
            return BRIEF | {"model": "sim-max", "tools": [], "input": "Say that it is done."}
        (offered,) = [tool for tool in request["tools"] if tool["type"] == "custom"]
        only = {"type": "grammar", "syntax": "regex", "definition": literally(PATCH)}
        return BRIEF | {
            "model": "smollm2",
            "input": "Make a file.",
            "tools": [offered | {"description": "", "format": only}],
            "tool_choice": {"type": "custom", "name": "apply_patch"},
        }

    with recorded(server.url, patch) as (url, recorder):
        codex = Codex.of(npm, url, tmp_path)
        codex.catalogue["models"][0]["apply_patch_tool_type"] = "freeform"
        codex.offer()
        run = codex.exec("--sandbox", "workspace-write", "Make a file.")
    assert (run.code, run.complaints) == (0, [])
    assert (codex.scratch / "made.txt").read_text() == "Made by a patch.\n"
    assert (codex.scratch / "needle.txt").read_text() == "found and changed\n"
    (call,) = [item for turn in recorder.exchanges for item in turn.returned][:1]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", PATCH)
    assert len(run.items("file_change")) == 1


def literally(text: str) -> str:
    """An expression that matches this and nothing else."""
    return "".join(f"[{one}]" if one in "*+.@" else one for one in text)
