"""A plain text for a mail whose job has only HTML.

One pass over tags and what stands between them, in time linear in its length whatever the input: the parser of the standard
library takes quadratic time on hostile markup, and the markup may hold what a stranger typed. Keeps words, paragraphs and the
targets of links (an invitation without its link is worthless); drops everything else. Promises no beauty.
"""

from __future__ import annotations

import re
from html import unescape

_LIMIT = 1_000_000
# Cuts a text into what is seen, and of each tag: whether it ends something, its name, and the rest.
_TAG = re.compile("<(?:(/?)([A-Za-z][A-Za-z0-9]*)|[/!?])([^<>]*)>")
_TARGET = re.compile("""\\shref\\s*=\\s*(?:"([^"]*)"|'([^']*)'|([^\\s>"']+))""", re.IGNORECASE)
_BLANKS = re.compile("[ \t\r\n\f]+")
_EMPTY_LINES = re.compile("\n{3,}")
_UNSEEN = frozenset({"head", "script", "style", "template", "title"})
_PARAGRAPHS = ("blockquote", "div", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre", "section", "table", "ul")
_BREAKS = dict.fromkeys(_PARAGRAPHS, "\n\n") | dict.fromkeys(("br", "hr", "li", "tr"), "\n")


def from_html(html: str) -> str:
    """Return the words of an HTML text; empty when it has none, or when it is longer than anybody reads."""
    if len(html) > _LIMIT:
        return ""
    cut = _TAG.split(html)
    pieces = [_seen(cut[0])]
    unseen = target = ""
    for end, written, rest, text in zip(cut[1::4], cut[2::4], cut[3::4], cut[4::4], strict=True):
        name = written.lower() if written else ""
        if unseen:
            unseen = "" if end and name == unseen else unseen
        elif name in _UNSEEN and not end:
            unseen = name
        elif name == "a":
            pieces.append(f" ({target})" if end and target else "")
            target = "" if end else _target(rest)
        elif name in _BREAKS:
            pieces.append(_BREAKS[name])
        if text and not unseen:
            pieces.append(_seen(text))
    return _tidy("".join(pieces))


def _seen(text: str) -> str:
    return text if text.isprintable() and "  " not in text else _BLANKS.sub(" ", text)


def _target(attributes: str) -> str:
    found = _TARGET.search(attributes)
    target = next(filter(None, found.groups()), "").strip() if found else ""
    return target if target.lower().startswith(("http://", "https://", "mailto:")) else ""


def _tidy(text: str) -> str:
    lines = [line.strip(" ") for line in text.split("\n")]
    return unescape(_EMPTY_LINES.sub("\n\n", "\n".join(lines))).strip()
