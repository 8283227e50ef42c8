"""How `sim-agent` plays a coding agent: harmless shell commands, then a report. Pure.

Every command only reads, stays in the folder it starts in and ends by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from turnwire.actors.engines.simulated_merge import names
from turnwire.actors.engines.simulated_schema import Unsatisfiable, instance
from turnwire.actors.engines.simulated_text import prose
from turnwire.pipelines.protocol.errors import InvalidRequest

COMMANDS: Final = (
    "pwd",
    "ls",
    "ls -a | head -n 20",
    "ls | wc -l",
    "date -u",
    "ls -d . | head -n 1",
)

_SHELLS: Final = ("exec_command", "shell_command", "shell", "local_shell", "container.exec", "bash")
_COMMAND_NAMES: Final = ("cmd", "command", "script")
_FOLDER_NAMES: Final = ("workdir", "cwd", "working_directory")


def shell_function(functions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The offered function that runs a shell command, if there is one."""
    by_name = {function["name"]: function for function in functions}
    for name in _SHELLS:
        if name in by_name and _command_name(by_name[name]):
            return by_name[name]
    return None


def command_arguments(
    function: Mapping[str, Any], step: int, seed: int, filler_characters: int = 0
) -> dict[str, Any]:
    """Arguments that run the command of `step`, a comment of `filler_characters` behind it."""
    command = COMMANDS[step % len(COMMANDS)]
    if filler_characters > 3:
        command += " # " + prose(seed, filler_characters - 3)
    parameters = function["parameters"]
    properties = parameters["properties"]
    command_name = _command_name(function)
    arguments: dict[str, Any] = {}
    for name in parameters.get("required", ()):
        if name in _FOLDER_NAMES and "string" in names(properties[name].get("type")):
            arguments[name] = "."
        elif name != command_name:
            arguments[name] = _other(function, properties.get(name, True), seed)
    array = "array" in names(properties[command_name].get("type"))
    arguments[command_name] = ["bash", "-c", command] if array else command
    return arguments


def report(outputs: int) -> str:
    """The answer after so many tool outputs."""
    commands = "a command" if outputs == 1 else f"{outputs} commands"
    return (
        f"I ran {commands} in the working folder and read what came back. The folder can be listed "
        "and read, nothing was changed, and nothing in it needs another step."
    )


def _other(function: Mapping[str, Any], schema: object, seed: int) -> Any:  # noqa: ANN401 -- JSON
    try:
        return instance(schema, seed)
    except Unsatisfiable as error:
        raise InvalidRequest(f"{error} in {function['name']!r}", "tools") from error


def _command_name(function: Mapping[str, Any]) -> str:
    properties = (function.get("parameters") or {}).get("properties") or {}
    return next((name for name in _COMMAND_NAMES if name in properties), "")
