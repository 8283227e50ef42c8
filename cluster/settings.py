"""All settings of a server: flags over environment over `turnwire.toml` over the defaults."""

import difflib
import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from turnwire.pipelines.config import (
    BUNDLED,
    DEFAULT_MODELS,
    MIB,
    AblationSettings,
    BillingSettings,
    ChannelSettings,
    ConnectionSettings,
    GatewaySettings,
    ModelSettings,
    SafetySettings,
    Section,
    StorageSettings,
)

PREFIX = "TURNWIRE_"
DEFAULT_FILE = "turnwire.toml"

Tree = dict[str, Any]


class SettingsError(Exception):
    """Something a person must change in the settings; the message is one line and says what."""


class RaySettings(Section):
    """The Ray everything runs on."""

    address: str | None = None
    """A running cluster to join, as `ray.init` takes it; None: a private Ray on this machine."""
    num_cpus: PositiveInt | None = None
    """Logical CPUs of the private Ray; None: as many as there are."""
    object_store_bytes: Annotated[int, Field(ge=75 * MIB)] = 100 * MIB
    """Hardly used: turns travel on channels."""
    folder: str = ""
    """Where the private Ray's short-lived folder is made; empty: the system's temporary folder."""
    start_s: PositiveInt = 300
    """A server that is not ready by then gives up."""


class Settings(Section):
    gateway: GatewaySettings = GatewaySettings()
    connections: ConnectionSettings = ConnectionSettings()
    safety: SafetySettings = SafetySettings()
    storage: StorageSettings = StorageSettings()
    billing: BillingSettings = BillingSettings()
    channel: ChannelSettings = ChannelSettings()
    ablation: AblationSettings = AblationSettings()
    models: tuple[ModelSettings, ...] = DEFAULT_MODELS
    ray: RaySettings = RaySettings()
    data: str = "turnwire-data"
    """Folder of the database and of `log/`, made when missing."""
    sealing_key_file: str = ""
    """Keys for what clients carry sealed (`encrypted_content`), one a line: 64 hexadecimal digits.
    The first seals, all open. Empty: `sealing.keys` in the data folder, made when missing."""
    min_free_bytes: NonNegativeInt = 256 * MIB
    """Memory that must stay free beside what the server is estimated to take; it refuses to start
    otherwise."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if not self.models:
            raise ValueError("no models: leave `models` out for the default ones")
        names = Counter(
            name for model in self.models for name in {model.name, *model.aliases} if name
        )
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"two models are called {twice[0]!r}")
        return self


def load(
    environ: Mapping[str, str], file: Path | None = None, flags: Tree | None = None
) -> Settings:
    """The settings in force. Paths in them are made absolute, so that they hold in every process.

    `file` must exist when it is named; without it `turnwire.toml` is read where there is one.
    """
    layers = [
        ("the command line", flags or {}),
        ("the environment", _from_environment(environ)),
        (str(file or DEFAULT_FILE), _from_file(file)),
    ]
    tree: Tree = {}
    for _, layer in reversed(layers):
        tree = _merged(tree, layer)
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(_one_line(error, layers)) from None
    return _absolute(settings)


def _from_environment(environ: Mapping[str, str]) -> Tree:
    """`TURNWIRE_SAFETY__REPLICAS=4` sets `safety.replicas`; lists and tables are JSON."""
    tree: Tree = {}
    for key, value in environ.items():
        if not key.startswith(PREFIX):
            continue
        *parents, leaf = key.removeprefix(PREFIX).lower().split("__")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise SettingsError(f"{key}: {name} is set as a whole and in parts")
        node[leaf] = _json(key, value) if value[:1] in ("[", "{") else value
    return tree


def _json(key: str, value: str) -> object:
    try:
        return json.loads(value)
    except ValueError as error:
        raise SettingsError(f"{key}: not valid JSON: {error}") from None


def _from_file(file: Path | None) -> Tree:
    path = file or Path(DEFAULT_FILE)
    if file is None and not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None


def _merged(below: Tree, above: Tree) -> Tree:
    out = dict(below)
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = _merged(out[key], value)
        else:
            out[key] = value
    return out


def _one_line(error: ValidationError, layers: list[tuple[str, Tree]]) -> str:
    first = error.errors(include_url=False)[0]
    path = first["loc"]
    name = ".".join(str(part) for part in path) or "settings"
    source = next((source for source, tree in layers if _holds(tree, path)), "the settings")
    if first["type"] != "extra_forbidden":
        return f"{name} in {source}: {first['msg'].removeprefix('Value error, ')}"
    known = _names(path[:-1])
    close = difflib.get_close_matches(str(path[-1]), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(sorted(known))}"
    return f"{name} in {source}: no such setting; {hint}"


def _holds(tree: Any, path: tuple[int | str, ...]) -> bool:  # noqa: ANN401 -- any TOML value
    try:
        for part in path:
            tree = tree[part]
    except (LookupError, TypeError):
        return False
    return True


def _names(path: tuple[int | str, ...]) -> set[str]:
    """The settings of the section that `path` leads to."""
    section: type[Section] = Settings
    for part in path:
        if part == "models":
            section = ModelSettings
        elif isinstance(part, str):
            annotation = section.model_fields[part].annotation
            assert isinstance(annotation, type)
            assert issubclass(annotation, Section)
            section = annotation
    return set(section.model_fields)


def _absolute(settings: Settings) -> Settings:
    data = Path(settings.data).expanduser().resolve()
    default = f"sqlite:///{Settings.model_fields['data'].default}/"

    def url(given: str) -> str:
        if given.startswith(default):
            return f"sqlite:///{data}/{given.removeprefix(default)}"
        if given.startswith("sqlite:///") and not given.startswith("sqlite:////"):
            return f"sqlite:///{Path(given.removeprefix('sqlite:///')).resolve()}"
        return given

    def file(given: str | None) -> str | None:
        return str(Path(given).expanduser().resolve()) if given else given

    def model(given: ModelSettings) -> ModelSettings:
        llama = given.llama.model_copy(update={"path": file(given.llama.path)})
        bundled = given.tokenizer.startswith(BUNDLED)
        tokenizer = given.tokenizer if bundled else file(given.tokenizer)
        return given.model_copy(update={"llama": llama, "tokenizer": tokenizer})

    gateway = settings.gateway

    return settings.model_copy(
        update={
            "data": str(data),
            "sealing_key_file": file(settings.sealing_key_file),
            "gateway": gateway.model_copy(update={"key_file": file(gateway.key_file)}),
            "storage": settings.storage.model_copy(update={"url": url(settings.storage.url)}),
            "billing": settings.billing.model_copy(update={"url": url(settings.billing.url)}),
            "models": tuple(model(row) for row in settings.models),
        }
    )
