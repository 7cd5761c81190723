"""A plain text for a mail whose job has only HTML.

One pass over tags and what stands between them, in time linear in its length whatever the input: the parser of the standard
library takes quadratic time on hostile markup, and the markup may hold what a stranger typed. Keeps words, paragraphs and the
targets of links (an invitation without its link is worthless); drops everything else. Promises no beauty.
"""

from __future__ import annotations

import re
from html import unescape

_LIMIT = 1_000_000
_TAG = re.compile("(<[A-Za-z/!?][^<>]*>)")
_NAME = re.compile("</?([A-Za-z][A-Za-z0-9]*)")
_TARGET = re.compile("""\\shref\\s*=\\s*(?:"([^"]*)"|'([^']*)'|([^\\s>"']+))""", re.IGNORECASE)
_BLANKS = re.compile("[ \t\r\n\f]+")
_BREAKS = re.compile("[ ]*\n[ \n]*")
_UNSEEN = frozenset({"head", "script", "style", "template", "title"})
_PARAGRAPHS = frozenset({"blockquote", "div", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre", "section", "table", "ul"})
_LINES = frozenset({"br", "hr", "li", "tr"})


def from_html(html: str) -> str:
    """Return the words of an HTML text; empty when it has none, or when it is longer than anybody reads."""
    if len(html) > _LIMIT:
        return ""
    pieces: list[str] = []
    unseen = target = ""
    for index, piece in enumerate(_TAG.split(html)):
        is_tag = index % 2 == 1
        if not is_tag:
            if not unseen:
                pieces.append(_BLANKS.sub(" ", piece))
            continue
        found = _NAME.match(piece)
        name = found[1].lower() if found else ""
        is_end = piece.startswith("</")
        if unseen:
            unseen = "" if is_end and name == unseen else unseen
        elif name in _UNSEEN and not is_end:
            unseen = name
        elif name == "a":
            pieces.append(f" ({target})" if is_end and target else "")
            target = "" if is_end else _target(piece)
        else:
            pieces.append(_break(name))
    return _tidy("".join(pieces))


def _target(tag: str) -> str:
    found = _TARGET.search(tag)
    target = next(filter(None, found.groups()), "").strip() if found else ""
    return target if target.lower().startswith(("http://", "https://", "mailto:")) else ""


def _break(name: str) -> str:
    if name in _PARAGRAPHS:
        return "\n\n"
    return "\n" if name in _LINES else ""


def _tidy(text: str) -> str:
    lines = _BREAKS.sub(lambda found: "\n\n" if found[0].count("\n") > 1 else "\n", text).split("\n")
    return unescape("\n".join(" ".join(line.split(" ")).strip(" ") for line in lines)).strip()
