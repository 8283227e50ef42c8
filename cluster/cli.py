"""The command `turnwire`. Heavy modules are imported by the command that needs them."""

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from turnwire.cluster.progress import Progress

DEFAULT_URL = "http://127.0.0.1:8080/v1"
FAILED = 1
BAD_SETTINGS = 2

# Bound to the streams of now: a server sends the others' words elsewhere.
out = Console(file=sys.stdout, highlight=False)
err = Console(file=sys.stderr, highlight=False)

app = typer.Typer(
    name="turnwire",
    help="The Responses API in WebSocket mode, for your own models, on Ray.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Url = Annotated[str, typer.Option("--url", help="Base URL of the server, with /v1.")]
Key = Annotated[
    str | None,
    typer.Option("--key", envvar="TURNWIRE_GATEWAY__API_KEY", help="API key, if it wants one."),
]
LogLevel = Literal["debug", "info", "warning", "error"]


@app.command()
def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Settings file. Default: turnwire.toml where there is one."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on: 8080; 0: any.")] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Ray cluster to join, or `auto`. Default: a private one, ended with us."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Folder of database and logs.")] = None,
    log_level: Annotated[LogLevel, typer.Option(help="What goes into DATA/log.")] = "info",
) -> None:
    """Start a server and stay until Ctrl-C.

    Settings: these options, then environment variables (TURNWIRE_GATEWAY__PORT=9000 sets
    gateway.port), then the settings file, then the defaults.
    """
    from turnwire.cluster import server
    from turnwire.cluster.settings import SettingsError, load

    with Progress(err, out) as progress:
        try:
            settings = load(os.environ, config, _flags(host, port, ray_address, data))
            if chosen := settings.ablation.model_dump(exclude_defaults=True):
                names = ", ".join(f"ablation.{name}" for name in chosen)
                err.print(f"turnwire: {names}: for measuring only, turns cost more", markup=False)
            code = server.run(settings, progress.reporter(), log_level)
        except SettingsError as error:
            _fail(progress, str(error), BAD_SETTINGS)
        except server.ServerFailed as error:
            _fail(progress, str(error), FAILED)
    raise typer.Exit(code)


def _flags(
    host: str | None, port: int | None, ray_address: str | None, data: str | None
) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "gateway": _given(host=host, port=port),
        "ray": _given(address=ray_address),
    }
    return _given(data=data) | {name: section for name, section in tree.items() if section}


def _given(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@app.command()
def chat(
    url: Url = DEFAULT_URL,
    model: Annotated[str, typer.Option(help="Model to talk to.")] = "smollm2",
    key: Key = None,
) -> None:
    """Talk to a model over one WebSocket. Ctrl-C or an empty line ends."""
    from turnwire.cluster.chat import ChatFailed, converse

    try:
        converse(url, model, key, out)
    except ChatFailed as error:
        _fail(err, str(error), FAILED)


@app.command()
def models(url: Url = DEFAULT_URL, key: Key = None) -> None:
    """List the models of a running server."""
    from turnwire.cluster.chat import ChatFailed, list_models

    try:
        for name in list_models(url, key):
            out.print(name, markup=False)
    except ChatFailed as error:
        _fail(err, str(error), FAILED)


@app.command()
def settings(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Settings file. Default: turnwire.toml where there is one."),
    ] = None,
) -> None:
    """Show every setting with its value and its reason, as a settings file."""
    from turnwire.cluster.settings import SettingsError, load
    from turnwire.cluster.settings_text import settings_text

    try:
        text = settings_text(load(os.environ, config))
    except SettingsError as error:
        _fail(err, str(error), BAD_SETTINGS)
    else:
        # As it is: what is written to a file is wrapped for no screen.
        sys.stdout.write(text)


@app.command()
def version() -> None:
    """Show the versions of turnwire, Python and Ray."""
    python = ".".join(map(str, sys.version_info[:3]))
    out.print(
        f"turnwire {installed_version('turnwire')}, Python {python}, Ray {installed_version('ray')}"
    )


def _fail(console: Console | Progress, message: str, code: int) -> None:
    console.print(f"turnwire: {message}", markup=False, soft_wrap=True)
    raise typer.Exit(code)


def main() -> None:
    app()
