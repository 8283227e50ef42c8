"""`reasoning.effort` in the words of the formats. Pure."""

_SILENT = frozenset({"none", "minimal"})
_LEVELS = {"low": "low", "high": "high", "xhigh": "high", "max": "high"}


def thinks(effort: str | None) -> bool:
    """For models that think or do not."""
    return effort not in _SILENT


def level(effort: str | None) -> str:
    """For models that know `low`, `medium` and `high`; nothing asked for is `medium`."""
    return "low" if effort in _SILENT else _LEVELS.get(effort or "", "medium")
