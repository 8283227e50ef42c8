"""Codex as a program: its home made of `examples/codex`, its answers read as JSON lines."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

EXAMPLE = Path(__file__).parents[2] / "examples" / "codex"
DEFAULT_URL = "http://127.0.0.1:8080/v1"
LIMIT_S = 180
GREETING = "Reading additional input from stdin...\n"


@dataclass
class Run:
    """What one `codex exec` said."""

    events: list[dict[str, Any]] = field(default_factory=list)
    stderr: str = ""
    code: int | None = None

    def items(self, kind: str) -> list[dict[str, Any]]:
        """Completed ones."""
        done = (event["item"] for event in self.events if event["type"] == "item.completed")
        return [item for item in done if item["type"] == kind]

    @property
    def commands(self) -> list[dict[str, Any]]:
        return self.items("command_execution")

    @property
    def answers(self) -> list[str]:
        return [item["text"] for item in self.items("agent_message")]

    @property
    def complaints(self) -> list[str]:
        """Warnings and errors of every kind that a user is shown."""
        shown = [item["message"] for item in self.items("error")]
        shown += [event["message"] for event in self.events if event["type"] == "error"]
        return shown + self.stderr.removeprefix(GREETING).splitlines()


@dataclass
class Codex:
    """`folder` holds its home and the folder it works in."""

    program: Path
    url: str
    folder: Path
    environment: dict[str, str]

    @classmethod
    def of(cls, npm: Path, url: str, folder: Path) -> Self:
        """The one among the packages in `npm`."""
        program = npm / "node_modules" / ".bin" / "codex"
        return cls(program, url, folder, dict(os.environ))

    def __post_init__(self) -> None:
        self.scratch = self.folder / "scratch"
        self.home = self.folder / "home"
        for path in (self.scratch, self.home, self.folder / "tmp"):
            path.mkdir()
        (self.scratch / "needle.txt").write_text("found\n")
        config = (EXAMPLE / "config.toml").read_text()
        assert DEFAULT_URL in config
        (self.home / "config.toml").write_text(config.replace(DEFAULT_URL, self.url))
        self.catalogue = json.loads((EXAMPLE / "models.json").read_text())
        self._write_catalogue()

    def configure(self, before: str, after: str) -> None:
        """Replace a line of its configuration."""
        path = self.home / "config.toml"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    def add_tool_server(self, name: str, *command: str) -> None:
        """One that it starts and speaks the Model Context Protocol with."""
        program, *arguments = command
        with (self.home / "config.toml").open("a") as config:
            config.write(f"\n[mcp_servers.{name}]\ncommand = {json.dumps(program)}\n")
            config.write(f"args = {json.dumps(arguments)}\n")

    def offer(self, **entry: object) -> None:
        """Another model in the catalogue, otherwise like the first."""
        self.catalogue["models"].append(self.catalogue["models"][0] | entry)
        self._write_catalogue()

    def _write_catalogue(self) -> None:
        (self.home / "models.json").write_text(json.dumps(self.catalogue))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, "exec", "--json", "--skip-git-repo-check", *arguments],
            cwd=self.scratch,
            env=self.environment
            | {
                "CODEX_HOME": str(self.home),
                # Codex warns about a home below the temporary folder.
                "TMPDIR": str(self.folder / "tmp"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def follow(self, *arguments: str, run: Run) -> Iterator[dict[str, Any]]:
        """Each event as it comes; `run` is complete afterwards."""
        with self.start(*arguments) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                for line in process.stdout:
                    run.events.append(json.loads(line))
                    yield run.events[-1]
                run.stderr = process.stderr.read()
                run.code = process.wait(timeout=LIMIT_S)
            finally:
                process.kill()

    def exec(self, *arguments: str) -> Run:
        """The whole run."""
        run = Run()
        for _ in self.follow(*arguments, run=run):
            pass
        return run
