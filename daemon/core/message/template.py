"""Subject, text and html of a mail: the payload's own, or a template's that the payload names.

    {"to": [..], "template": "invite", "data": {"name": "Ann", "link": "https://.."}}

A payload names a template or has texts of its own, never both: which of the two would win, nobody could see later. What a
template is made of, and how it is read and filled in, is its implementer's business (`daemon.templates`): here it is a value that
was made at start, found by its name in a table and nowhere else. A row's data are values; nothing in them is ever read as a
template, as a name of a file, or as code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

from daemon.core.message.message import Refusal, Unbuildable, refuse

_OWN = ("subject", "text", "html")


class Rendered(msgspec.Struct, frozen=True):
    """What a template makes of a job's data; None where it has no such part."""

    subject: str
    text: str | None = None
    html: str | None = None


class Template(Protocol):
    """One template, compiled; the same data make the same texts."""

    def render(self, data: Mapping[str, object], limit: int) -> Rendered | Unbuildable:
        """Fill the template in; no part may have more than `limit` characters. Never raises for anything that data hold."""


Templates = Mapping[str, Template]
"""Name -> template: all that jobs may name."""

NO_TEMPLATES: Templates = MappingProxyType({})


def is_named(raw: Mapping[str, object]) -> bool:
    """Tell whether a payload wants a template."""
    return raw.get("template") is not None or raw.get("data") is not None


def filled_in(raw: Mapping[str, object], templates: Templates, limit: int) -> Rendered:
    """Return what the template that a payload names makes of the payload's data.

    Raises:
        Refusal: `wrong_type`, `template_conflict`, `template_unknown`, `template_blank`, or what the template answered:
            `template_variable_missing`, `template_failed`, `message_too_large`.
    """
    name, data = _asked_for(raw)
    template = templates.get(name)
    if template is None:
        refuse("template_unknown", "template", f"there is none of this name; there are {len(templates)}")
    rendered = template.render(data, limit)
    if isinstance(rendered, Unbuildable):
        raise Refusal(rendered)
    for part, text in (("subject", rendered.subject), ("text", rendered.text), ("html", rendered.html)):
        if text is not None and not text.strip():
            refuse("template_blank", "template", f"its {part} came out blank")
    return rendered


def _asked_for(raw: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    name, data = raw.get("template"), raw.get("data")
    if name is None:
        refuse("template_conflict", "data", "is for a template, and none is named")
    if not isinstance(name, str):
        refuse("wrong_type", "template", "must be a string")
    if data is None:
        data = {}
    if not isinstance(data, dict):
        refuse("wrong_type", "data", "must be an object")
    for key in _OWN:
        if raw.get(key) is not None:
            refuse("template_conflict", key, "stands beside a template, which makes it; one of them must go")
    return name, data
