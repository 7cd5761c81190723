"""inlining: CSS goes into the elements, and every piece of Jinja stays where it is, or the file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.templates.inlining import inlined


def test_styles_are_written_into_elements() -> None:
    """Media queries stay, and what was there already wins."""
    source = (
        "<html><head><style>p{color:red;margin:0}@media (max-width:9px){p{color:blue}}</style></head>"
        '<body><p class="x" style="color:green">a&nbsp;b &lt; c</p></body></html>'
    )
    assert inlined(source) == (
        "<html><head><style>@media (max-width:9px){p{color:blue}} </style></head>"
        '<body><p class="x" style="margin: 0;color: green">a&nbsp;b &lt; c</p></body></html>'
    )


@pytest.mark.parametrize("source", ["<p>{{ a > b }}", "<table>{% for x in y %}<tr></table>", "", "{{ '<style' }}</p>x"])
def test_without_a_style_nothing_is_changed(source: str) -> None:
    """Not even what a parser would have repaired."""
    assert inlined(source) == source


@pytest.mark.parametrize(
    "body",
    [
        "<p>{{ a > b and '<td>' }}</p>",
        "<table>{% for x in y %}<tr><td>{{ x }}</td></tr>{% endfor %}</table>",
        "<table>{% for x in y %}<tbody><tr><td>{{ x }}</td></tr></tbody>{% endfor %}</table>",
        "{% if a %}<b>x</b>{% elif b < c %}<i>x</i>{% else %}{{ d }}{% endif %}",
        '<a href="{{ url }}?a={{ b|default("x") }}&amp;c=1">x</a>',
        '<a href="{% if a %}x{% endif %}">x</a>',
        '<b style="width: {{ w }}px;{% if red %}color:red{% endif %}">x</b>',
        "{# don't #}{{ '}}' }}{{ \"%}\" }}{%- if '%}' -%}x{%- endif -%}",
        "{% raw %}{{ x }}{% endraw %}",
        "<!--[if mso]><p>{{ a }}</p>{% if b %}<![endif]-->{% endif %}",
        "<ul>{% for x in y %}<li>{{ x }}</li>{% endfor %}</ul>",
        "<select>{% for x in y %}<option>{{ x }}</option>{% endfor %}</select>",
        "<textarea>{{ a }}</textarea>",
        '<br>{{ a }}<img src="cid:{{ b }}">',
        "grüße {{ a }} 🎉",
        "<pre>{{ a }}  b\n</pre>",
    ],
)
def test_jinja_stays_where_it_is(body: str) -> None:
    """To the letter, in text, in tables, in attributes, in comments; a document keeps its head and a part gets none."""
    style = "<style>hr{top:0}</style>"
    assert inlined(style + body) == body
    page = (
        '{% set x = 1 %}<!DOCTYPE html><html lang="{{ l }}"><head>STYLE<title>{{ t }}</title></head><body>BODY</body></html>{# #}'
    )
    page = page.replace("BODY", body)
    assert inlined(page.replace("STYLE", style)) == page.replace("STYLE", "")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("<style>p{color:{{ c }}}</style><p>x</p>", "has Jinja within its <style>"),
        ("<style>p{}</style><p {{ a }}>x</p>", "has Jinja between the attributes of <p>"),
        ("<style>p{}</style><a href={{ a }}>x</a>", "has Jinja between the attributes of <a>"),
        ("<style>p{}</style><h{{ n }}>x</h{{ n }}>", "has Jinja between the attributes of <h..>"),
        ("<style>p{}</style>{% if a %}<p>{% else %}<div>{% endif %}x</p>", "from <div> on"),
        ("<style>p{}</style>{% if a %}<p>x{% endif %}", "from {% endif %} on"),
        ("<style>p{}</style><table><b>{{ a }}</b></table>", "from <table> on"),
        ("<style>p{}</style><p><div>{{ a }}</div></p>", "from <div> on"),
        ("<style>p{}</style><p>x</p></div>", "from </div> on"),
        ("<style>p{}</style><p>\ue0001\ue001</p>", "private use"),
    ],
)
def test_what_would_lose_its_place_is_refused(source: str, sentence: str) -> None:
    """A loop that lost its table isn't noticed until the mail is out; it is noticed at the start."""
    with pytest.raises(ValueError, match=r"^(has|its|holds)") as caught:
        inlined(source)
    assert sentence in str(caught.value)


def test_nothing_is_fetched_for_a_style(tmp_path: Path) -> None:
    """Neither a file nor an address; the link stays for readers who want it."""
    (tmp_path / "a.css").write_text("p{color:red}")
    for place in (str(tmp_path / "a.css"), f"file://{tmp_path}/a.css", "http://127.0.0.1:1/a.css"):
        source = f'<link rel="stylesheet" href="{place}"><style>i{{top:0}}</style><p>x</p>'
        assert inlined(source) == f'<link rel="stylesheet" href="{place}"><p>x</p>'
