"""From sources to templates: Jinja2, and the only importer of it.

- A variable that isn't there is an error and never an empty place; so is null where it would be shown (an invitation to "None"),
  a blank text of the data that is shown as it is, and a method (`order.items`, where the order has no items). `default`, `if` and
  `is defined` work as ever, and a blank that a filter or the template itself makes is meant.
- HTML escapes every value. Text and subject take them as they are; the rules of headers come after.
- An attribute of an object is the key of that name first, and the method of a dictionary only after.
- The same data make the same text, on every attempt: what draws lots is taken out.
- The names of other templates are written out, and of the same kind: a text that is included into HTML wouldn't be escaped.
- The sandbox bounds `range` and hides what lies below a value; it is a second line, for templates are the operator's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from traceback import walk_tb
from typing import Any, Self

from jinja2 import (
    DictLoader,
    StrictUndefined,
    TemplateError,
    TemplateRuntimeError,
    TemplateSyntaxError,
    Undefined,
    UndefinedError,
)
from jinja2 import Template as Compiled
from jinja2.meta import find_referenced_templates
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from daemon.core.message import Rendered, Unbuildable
from daemon.core.message.message import shown
from daemon.core.settings import Problem
from daemon.templates.inlining import inlined
from daemon.templates.reading import KEY

UNCOMPILABLE = (SyntaxError, RecursionError, ValueError, OverflowError, MemoryError)
"""What Jinja2 and Python's own compiler raise beside TemplateSyntaxError, for nesting that is too deep and the like."""
_NULLS_NAMED = 5


class MissingVariable(UndefinedError):  # noqa: N818  says what happened
    """A template needs what the data don't have: `name`, as part of `owner` (`missing` for a variable of its own)."""

    def __init__(self, owner: object, name: object, message: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner
        self.name = name


class NullShown(UndefinedError):  # noqa: N818  the same
    """A template shows a value that is null."""


class Blank(str):
    """A text of the data with nothing in it, and its path: fine to ask about, an error to show."""

    __slots__ = ("path",)
    path: str

    def __new__(cls, text: str, path: str) -> Self:
        """Make a text like any other, but for its path."""
        made = super().__new__(cls, text)
        made.path = path
        return made


class BlankShown(UndefinedError):  # noqa: N818  the same
    """A template shows a text of the data that is blank."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Missing(StrictUndefined):
    """Stands for a variable that isn't there: every use of it but `is defined` and `default` raises MissingVariable."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,  # noqa: ANN401  as Jinja has it
        name: str | None = None,
        exc: type[TemplateRuntimeError] = UndefinedError,
    ) -> None:
        raised: Any = partial(MissingVariable, obj, name) if exc is UndefinedError else exc
        super().__init__(hint, obj, name, raised)


class _Environment(ImmutableSandboxedEnvironment):
    def __init__(self, files: Mapping[str, str]) -> None:
        super().__init__(
            loader=DictLoader(files),
            autoescape=lambda name: name is not None and name.endswith(".html"),
            undefined=Missing,
            finalize=_finished,
            trim_blocks=True,
            lstrip_blocks=True,
            cache_size=-1,
            auto_reload=False,
        )
        del self.filters["random"], self.globals["lipsum"]

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401  any value of JSON
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


def _finished(value: object) -> object:
    """Return what is shown for a value; nobody wants to read "None", an empty place, or what a method looks like."""
    if value is None:
        raise NullShown
    if isinstance(value, Blank):
        raise BlankShown(value.path)
    if callable(value) and not isinstance(value, Undefined):
        raise MissingVariable(getattr(value, "__self__", missing), getattr(value, "__name__", ""))
    return value


class FileTemplate:
    """One template of the operator's, compiled."""

    def __init__(self, subject: Compiled, text: Compiled | None, html: Compiled | None) -> None:
        self._parts = {"subject": subject, "text": text, "html": html}

    def render(self, data: Mapping[str, object], limit: int) -> Rendered | Unbuildable:
        """Fill the template in; no part may have more than `limit` characters. Never raises for anything that data hold."""
        texts: dict[str, str] = {}
        told = {key: _blanks_told(value, f".{key}") for key, value in data.items()}
        for part, compiled in self._parts.items():
            if compiled is not None:
                made = _filled_in(compiled, told, limit)
                if isinstance(made, Unbuildable):
                    return made
                texts[part] = made
        return Rendered(**texts)


def _filled_in(compiled: Compiled, data: Mapping[str, object], limit: int) -> str | Unbuildable:
    pieces, room = [], limit
    try:
        for piece in compiled.generate(data):
            room -= len(piece)
            if room < 0:
                return Unbuildable("message_too_large", "template", f"{compiled.name} makes more than {limit} characters")
            pieces.append(piece)
    except MissingVariable as error:
        return Unbuildable(
            "template_variable_missing", shown(f"data{_path(data, error)}"), f"{compiled.name} needs it; the data don't have it"
        )
    except NullShown:
        return _of_null(compiled, data)
    except BlankShown as error:
        return Unbuildable("template_variable_missing", shown(f"data{error.path}"), f"{compiled.name} shows it, and it is blank")
    except (TemplateError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return Unbuildable("template_failed", "template", f"{compiled.name}{_line(error)}: {type(error).__name__}")
    return "".join(pieces)


def _blanks_told(value: object, path: str) -> object:
    """Return the data with each blank text told from others, so that it is known where it is shown."""
    if isinstance(value, str):
        return value if value.strip() else Blank(value, path)
    if isinstance(value, dict):
        return {key: _blanks_told(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, list):
        return [_blanks_told(inner, f"{path}[{index}]") for index, inner in enumerate(value)]
    return value


def _path(data: Mapping[str, object], error: MissingVariable) -> str:
    """Return where in the data the variable should be: the owner is an object of theirs, and no other."""
    owners = (path for path, value in _walk(data) if value is error.owner)
    return f"{next(owners, '')}.{error.name}"


def _of_null(compiled: Compiled, data: Mapping[str, object]) -> Unbuildable:
    nulls = [path for path, value in _walk(data) if value is None]
    field = f"data{nulls[0]}" if len(nulls) == 1 else "data"
    names = shown(", ".join(path.removeprefix(".") for path in nulls[:_NULLS_NAMED])) or "a value of the template's own"
    return Unbuildable("template_variable_missing", shown(field), f"{compiled.name} shows what is null: {names}")


def _walk(data: object) -> Iterator[tuple[str, object]]:
    """Yield every value of the data with its path, in order."""
    rest: list[tuple[str, object]] = [("", data)]
    while rest:
        path, value = rest.pop()
        yield path, value
        if isinstance(value, dict):
            rest += [(f"{path}.{key}", inner) for key, inner in reversed(value.items())]
        elif isinstance(value, list):
            rest += [(f"{path}[{index}]", value[index]) for index in reversed(range(len(value)))]


def _line(error: BaseException) -> str:
    """Return the line of the template in which an error was raised; its text may hold a row's data and stays out."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    return f", line {lines[-1]}" if lines else ""


def compiled(files: Mapping[str, str], names: Mapping[str, set[str]], problems: list[Problem]) -> dict[str, FileTemplate]:
    """Return name -> template; what is wrong with a file becomes a problem."""
    prepared = {}
    for file, source in files.items():
        try:
            prepared[file] = inlined(source) if file.endswith(".html") else source
        except ValueError as error:
            problems.append(Problem(KEY, f"{file}: {error}"))
            prepared[file] = source
    environment = _Environment(prepared)
    for file, source in prepared.items():
        try:
            problems += _problems_of_references(environment, file, source, files)
            environment.get_template(file)
        except TemplateSyntaxError as error:
            problems.append(Problem(KEY, f"{file}, line {error.lineno}: {error.message}"))
        except UNCOMPILABLE as error:
            problems.append(Problem(KEY, f"{file}: can't be compiled: {error}"))
    if problems:
        return {}

    def part(name: str, ending: str) -> Compiled | None:
        return environment.get_template(f"{name}.{ending}") if ending in names[name] else None

    return {
        name: FileTemplate(environment.get_template(f"{name}.subject.txt"), part(name, "txt"), part(name, "html"))
        for name in names
    }


def _problems_of_references(environment: _Environment, file: str, source: str, files: Mapping[str, str]) -> Iterator[Problem]:
    for other in find_referenced_templates(environment.parse(source)):
        if other is None:
            yield Problem(KEY, f"{file}: the name of another template must be written out")
        elif other not in files:
            yield Problem(KEY, f"{file}: there is no {other} in the folder")
        elif other.endswith(".html") != file.endswith(".html"):
            yield Problem(KEY, f"{file}: {other} is of another kind, so that its values would be escaped wrongly")
