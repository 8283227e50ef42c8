"""Where the processes of one server keep what is not theirs alone."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """The same on every node."""

    folder: str
    """Of the Unix sockets."""
    log_folder: str
    log_level: str
    several_nodes: bool
    """Listen on TCP too."""
