"""What every process of a server does first: logs to a file, and an end with its raylet."""

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

import ray

from turnwire.cluster import descendants
from turnwire.cluster.place import Place
from turnwire.pipelines.config import MIB

LOG_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s %(message)s"


def tcp_host(place: Place) -> str | None:
    """Where to listen for other nodes, if there may be any."""
    if not place.several_nodes:
        return None
    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return host


def prepare(place: Place, log_name: str) -> str:
    """Once a process, before anything else. Returns the id of its node."""
    if not place.several_nodes:
        descendants.die_with_parent()
    folder = Path(place.log_folder)
    folder.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(
        folder / f"{log_name}.log", maxBytes=8 * MIB, backupCount=1, delay=True
    )
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    ours = logging.getLogger("turnwire")
    ours.addHandler(handler)
    ours.setLevel(place.log_level.upper())
    node: str = ray.get_runtime_context().get_node_id()
    return node
