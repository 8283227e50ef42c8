"""Models, and the live processes that serve them: what routing and its callers say."""

from typing import Literal

from turnwire.pipelines.messages.base import Form, Message


class Model(Message, frozen=True):
    """What the rest of the system must know of a model to prepare a turn for it."""

    name: str
    form: Form
    prompt_format: str = ""
    tokenizer: str = ""
    """Path of its tokenizer.json on every node; empty for the form `items`."""
    context_window: int = 1_000_000
    default_output_tokens: int = 4096
    aliases: tuple[str, ...] = ()
    constrains: bool = False
    """Does its engine hold answers to the tools and the text format of their turns?"""
    sees: bool = False
    """Does it see the images and files among the items it is given?"""


class Endpoint(Message, frozen=True):
    """Where a process listens. Empty means: not reachable that way. Carries no secret."""

    id: str
    node: str
    unix: str = ""
    tcp: str = ""
    fingerprint: str = ""
    """SHA-256 of the TLS certificate behind `tcp`, hex."""


class Worker(Message, frozen=True):
    """One live process of a pool."""

    endpoint: Endpoint
    pool: Literal["inference", "safety", "billing", "storage", "gateway"]
    models: tuple[Model, ...] = ()
    max_ongoing: int = 16
    draining: bool = False


class Attach(Message, frozen=True):
    """A registered worker says on its channel that it lives; the channel's end says it died."""

    worker: Worker


class Report(Message, frozen=True):
    """A worker's load, sent when it changes, at most every 100 ms."""

    worker_id: str
    ongoing: int
    queued: int


class Watch(Message, frozen=True):
    """Stream command: the registry now, then again whenever it changes."""


class Registry(Message, frozen=True):
    """All live workers. `version` only grows within one life of the routing pool."""

    version: int
    workers: tuple[Worker, ...]


class Resolve(Message, frozen=True):
    """Which worker should serve `model`, a name or an alias? `keep`: the worker in use, if any."""

    model: str
    keep: str = ""


class Route(Message, frozen=True):
    """The answer: valid until the worker leaves the registry or drains."""

    model: Model
    worker: Endpoint
