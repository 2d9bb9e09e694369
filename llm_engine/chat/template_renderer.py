"""Chat templates compiled in a sandbox, with the functions that model authors rely on.

Source: the chat template conventions of Hugging Face transformers.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


def compile_template(source: str) -> Callable[..., str]:
    """A function from the template's variables to text.

    A template is a stranger's code: it runs without access to Python's internals.
    Raises: jinja2.TemplateError, when compiled or when rendered.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    variables = cast(dict[str, Any], environment.globals)
    variables |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment.from_string(source).render


class _Generation(Extension):
    """`{% generation %}` marks the assistant's own text for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja's own filter it escapes no HTML characters."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
