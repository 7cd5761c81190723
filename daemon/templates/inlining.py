"""CSS into the elements that it is for, since many readers of mail know no <style>.

Done once, when a template is read; the only importer of css-inline. That parses the file as HTML and writes it anew, and knows
nothing of Jinja: it would escape `{{ a > b }}`, and move a `{% for %}` out of the table in which it stands. So each piece of it
stands aside meanwhile, with a comment in its place (which HTML allows everywhere in text) or, within an attribute, two characters
of Unicode's private use around a number. Afterwards every tag and every piece must stand in the order in which they stood;
otherwise the file is refused, for a loop that has lost its table isn't noticed until the mail is out.

Media queries stay behind in the <style>. Nothing is fetched, from the network or from files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from css_inline import CSSInliner, InlineError

_JINJA = re.compile(
    r"""\{\{(?:"[^"]*"|'[^']*'|[^"'}]|\}(?!\}))*\}\}|\{%(?:"[^"]*"|'[^']*'|[^"'%]|%(?!\}))*%\}|\{\#.*?\#\}""", re.DOTALL
)
_PLACE = re.compile("\ue000([0-9]+)\ue001")
_STYLE = re.compile(r"<style\b", re.IGNORECASE)
_COMMENTED = re.compile("<!--\ue000([0-9]+)\ue001-->")
_MARKUP = re.compile(
    r"<!--(?P<comment>.*?)-->"
    r"|<(?P<raw>style|script|title|textarea)\b[^>]*>(?P<text>.*?)</(?P=raw)\s*>"
    r"""|<(?P<tag>[/!]?[A-Za-z][^\s/>]*)(?P<inside>(?:"[^"]*"|'[^']*'|[^"'>])*)>""",
    re.DOTALL | re.IGNORECASE,
)
_QUOTED = re.compile(r""""[^"]*"|'[^']*'""")
_ADDED = ("html", "head", "body", "tbody")
"""What a parser of HTML adds where it isn't written."""

_INLINER = CSSInliner(load_remote_stylesheets=False, keep_link_tags=True, keep_at_rules=True)


def inlined(source: str) -> str:
    """Return a template of HTML with its <style> written into its elements; one without comes back as it is.

    Raises:
        ValueError: with a sentence about what can't be done.
    """
    if not _STYLE.search(_JINJA.sub("", source)):
        return source
    if _PLACE.search(source):
        raise ValueError("holds characters of private use, U+E000, that are needed here")
    pieces: list[str] = []

    def stand_aside(found: re.Match[str]) -> str:
        pieces.append(found[0])
        return f"\ue000{len(pieces) - 1}\ue001"

    page = _commented(_JINJA.sub(stand_aside, source))
    try:
        written = _INLINER.inline(page)
    except InlineError as error:
        raise ValueError(f"its <style> can't be read: {error}") from error
    missing = [name for name in _ADDED if not re.search(rf"<{name}\b", page, re.IGNORECASE)]
    if missing:
        written = re.sub(rf"</?(?:{'|'.join(missing)})\b[^>]*>", "", written, flags=re.IGNORECASE)
    _require_same(list(_skeleton(page)), list(_skeleton(written)), pieces)
    return _PLACE.sub(lambda found: pieces[int(found[1])], _COMMENTED.sub("\ue000\\1\ue001", written))


def _commented(page: str) -> str:
    """Return the page with every place of Jinja that stands in text as a comment."""
    done, at = [], 0
    for found in _MARKUP.finditer(page):
        if found["raw"] and found["raw"].lower() == "style" and _PLACE.search(found["text"]):
            raise ValueError("has Jinja within its <style>, which can't be inlined; write it into a style attribute")
        if found["tag"] and _PLACE.search(_QUOTED.sub("", found["inside"]) + found["tag"]):
            tag = _PLACE.sub("..", found["tag"])
            raise ValueError(f"has Jinja between the attributes of <{tag}>; write it within the quotes of one")
        done += [_PLACE.sub("<!--\ue000\\1\ue001-->", page[at : found.start()]), found[0]]
        at = found.end()
    return "".join([*done, _PLACE.sub("<!--\ue000\\1\ue001-->", page[at:])])


def _skeleton(page: str) -> Iterator[tuple[str, ...]]:
    """Yield each tag with the places within it, and each place between tags, in order; <style> left out."""
    for found in _MARKUP.finditer(page):
        name = (found["raw"] or found["tag"] or "").lower()
        places = sorted(_PLACE.findall(found["comment"] or found["text"] or found["inside"] or ""))
        if name != "style" and (name or places):
            yield name, *places


def _require_same(before: list[tuple[str, ...]], after: list[tuple[str, ...]], pieces: list[str]) -> None:
    if before == after:
        return
    differing = (one for one, other in zip(before, after, strict=False) if one != other)
    name, *places = next(differing, before[-1])
    near = pieces[int(places[0])] if places else f"<{name}>"
    raise ValueError(
        f"its <style> can't be inlined: a parser of HTML reads it otherwise, from {near} on. Write out every closing tag, "
        "no closing slash but that of an empty element, and no loop or condition around half an element"
    )
