"""Jinja, fenced in: a template reads what it is given and changes nothing.

A module of its own, since few models need it and importing Jinja takes its time.
"""

import datetime
import json
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from turnwire.pipelines.protocol.errors import Internal, InvalidRequest

_TODAY = datetime.date(2024, 7, 26)
"""What templates that ask for the date are told: equal input must give equal ids."""


class Sandbox:
    """One compiled template. Raises Internal for one that cannot be read."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _TODAY.strftime
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise Internal(f"the model's chat template has an error: {error.message}") from error

    def render(self, values: dict[str, Any]) -> str:
        """Raises InvalidRequest when the template refuses what it is given."""
        try:
            return self._template.render(values)
        except jinja2.TemplateError as error:
            reason = (error.message or "")[:200]
            raise InvalidRequest(
                f"The model's chat template refuses this conversation: {reason}", "input"
            ) from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise InvalidRequest(
                "The model's chat template cannot render this conversation.", "input"
            ) from error


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
