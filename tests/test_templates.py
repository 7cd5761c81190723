"""Templates: what a folder must be, what is made of a job's data, and what no row and no file can do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from daemon.core.errors import ConfigError
from daemon.core.message import Rendered, Templates, Unbuildable
from daemon.templates import load
from tests.core.message.test_message_hostile import HOSTILE, TEXTS

LIMIT = 100_000
SUBJECT = {"a.subject.txt": "Hi\n"}

Made = Callable[[Mapping[str, str]], Templates]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return a function that writes files into one folder and loads it."""

    def make(files: Mapping[str, str]) -> Templates:
        write(tmp_path, files)
        return load(str(tmp_path))

    return make


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by name."""
    for name, text in files.items():
        (folder / name).write_text(text)


def problems_of(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return what is wrong with a folder of these files."""
    write(folder, files)
    with pytest.raises(ConfigError) as caught:
        load(str(folder))
    assert {problem.path for problem in caught.value.problems} == {"templates.dir"}
    return [problem.message for problem in caught.value.problems]


def filled_in(templates: Templates, data: Mapping[str, object], name: str = "a") -> Rendered:
    """Fill in a template that must come out."""
    rendered = templates[name].render(data, LIMIT)
    assert isinstance(rendered, Rendered), str(rendered)
    return rendered


def refused(templates: Templates, data: Mapping[str, object], name: str = "a") -> str:
    """Fill in a template that must not come out, and return why."""
    rendered = templates[name].render(data, LIMIT)
    assert isinstance(rendered, Unbuildable), rendered
    return str(rendered)


# What is made of data


def test_a_template_is_its_files(made: Made) -> None:
    """One line feed at the end of the subject belongs to the file; lines of nothing but a tag leave no line."""
    templates = made(
        {
            "a.subject.txt": "Hello {{ name }}\n",
            "a.txt": "Dear {{ name }},\n{% for guest in guests %}\n  - {{ guest.name }}\n{% endfor %}\nbye\n",
            "a.html": "<p>Dear {{ name }}</p>\n",
            "b.subject.txt": "B",
            "b.txt": "B\n",
            "c.subject.txt": "C",
            "c.html": "<p>C",
        }
    )
    assert sorted(templates) == ["a", "b", "c"]
    assert filled_in(templates, {"name": "Ann & Bo", "guests": [{"name": "Cy"}, {"name": "Di"}]}) == Rendered(
        subject="Hello Ann & Bo", text="Dear Ann & Bo,\n  - Cy\n  - Di\nbye", html="<p>Dear Ann &amp; Bo</p>"
    )
    assert filled_in(templates, {}, "b") == Rendered(subject="B", text="B", html=None)
    assert filled_in(templates, {}, "c") == Rendered(subject="C", text=None, html="<p>C")


def test_only_html_is_escaped(made: Made) -> None:
    """In text and subject an ampersand is an ampersand."""
    rendered = filled_in(
        made({"a.subject.txt": "{{ x }}", "a.txt": "{{ x }}", "a.html": '<p title="{{ x }}">{{ x }}</p>'}),
        {"x": "<script>\"'&"},
    )
    assert (rendered.subject, rendered.text) == ("<script>\"'&",) * 2
    assert rendered.html == '<p title="&lt;script&gt;&#34;&#39;&amp;">&lt;script&gt;&#34;&#39;&amp;</p>'


TRAPS = some.sampled_from(
    [
        "{{7*7}}",
        "{% for",
        "%}",
        "{#",
        "{{x.__class__}}",
        "{{ self }}",
        "{% include 'a.txt' %}",
        "\ue0000\ue001",
        "<",
        "&",
        '"',
        "\n",
    ]
)


@HOSTILE
@given(some.one_of(TEXTS, some.lists(TRAPS).map("".join)).filter(str.strip))
def test_a_rows_data_are_values_and_nothing_else(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    """Whatever they hold arrives as it was; the parts of a template arrive as text."""
    folder = tmp_path_factory.mktemp("templates")
    write(folder, {"a.subject.txt": "[{{ x }}]", "a.txt": "[{{ x }}]", "a.html": "<style>p{top:0}</style><p>[{{ x }}]</p>"})
    rendered = filled_in(load(str(folder)), {"x": value})
    assert rendered.subject == rendered.text == f"[{value}]"
    escaped = value
    for raw, entity in {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"}.items():
        escaped = escaped.replace(raw, entity)
    assert rendered.html == f'<p style="top: 0;">[{escaped}]</p>'


@pytest.mark.parametrize(
    ("source", "data", "field"),
    [
        ("{{ link }}", {}, "data.link"),
        ("{{ user.link }}", {"user": {}}, "data.user.link"),
        ("{{ user.link.href }}", {"user": {"name": "x"}}, "data.user.link"),
        ("{{ user['link'] }}", {"user": {}}, "data.user.link"),
        ("{% for user in users %}{{ user.link }}{% endfor %}", {"users": [{"link": "x"}, {}]}, "data.users[1].link"),
        ("{{ users[3] }}", {"users": []}, "data.users.3"),
        ("{% if link %}x{% endif %}", {}, "data.link"),
        ("{% for x in links %}{% endfor %}", {}, "data.links"),
        ("{{ link|upper }}", {}, "data.link"),
        ("{{ link ~ 'x' }}", {}, "data.link"),
        ("{{ 1 + link }}", {}, "data.link"),
        ("{{ link() }}", {}, "data.link"),
        ("{% set x = link %}{{ x }}", {}, "data.link"),
        ("{{ order.items }}", {"order": {"total": 1}}, "data.order.items"),
        ("{{ name.upper }}", {"name": "x"}, "data.name.upper"),
        ("{{ link }}", {"link": None}, "data.link"),
        ("{{ user.link }}", {"user": {"link": None}}, "data.user.link"),
        ("{{ link }}", {"link": ""}, "data.link"),
        ("{{ users[1].link }}", {"users": [{"link": "x"}, {"link": " \n"}]}, "data.users[1].link"),
        ("{% set x = link %}{{ x }}", {"link": ""}, "data.link"),
    ],
)
def test_a_missing_variable_is_named_with_its_path(made: Made, source: str, data: dict[str, Any], field: str) -> None:
    """An invitation without its link is worse than none; null, a blank and a method would be as bad as nothing."""
    templates = made({**SUBJECT, "a.txt": source})
    assert refused(templates, data).startswith(f"template_variable_missing: {field}: a.txt ")


def test_a_null_among_several_is_narrowed_down(made: Made) -> None:
    """What was shown is one of these."""
    found = refused(made({**SUBJECT, "a.txt": "{{ x }}"}), {"x": None, "y": {"z": None}})
    assert found == "template_variable_missing: data: a.txt shows what is null: x, y.z"


def test_a_variable_may_be_blank_on_purpose(made: Made) -> None:
    """Where the template asks before it shows it, gives a default, or makes the blank itself."""
    source = "{% if x %}{{ x }}{% endif %}{{ x|default('-', true) }}{{ '' }}{{ x|trim }}{{ 'a' if y else '' }}"
    assert filled_in(made({**SUBJECT, "a.txt": source}), {"x": "", "y": False}).text == "-"


def test_a_variable_may_be_missing_on_purpose(made: Made) -> None:
    """The template's author says so."""
    source = "{{ x|default('-') }}{{ y is defined }}{% if z is none %}0{% endif %}{% if z %}1{% endif %}{{ o.k|default('+') }}"
    assert filled_in(made({**SUBJECT, "a.txt": source}), {"z": None, "o": {}}).text == "-False0+"


def test_a_key_comes_before_a_method_of_the_same_name(made: Made) -> None:
    """And the methods of an object stay usable where it has no such key."""
    templates = made({**SUBJECT, "a.txt": "{{ o.items }}{% for k, v in p.items() %}{{ k }}{{ v }}{% endfor %}"})
    assert filled_in(templates, {"o": {"items": 3}, "p": {"x": 1}}).text == "3x1"


def test_a_hostile_name_of_a_variable_is_fit_to_be_shown(made: Made) -> None:
    """A key may come out of the data; what is recorded stays short and printable."""
    found = refused(made({**SUBJECT, "a.txt": "{{ o[k] }}"}), {"o": {}, "k": "\x1b[31m\n" + "x" * 500})
    assert found.isprintable()
    assert len(found) <= 200


@pytest.mark.parametrize(
    ("source", "data", "error"),
    [
        ("\n{{ x + 1 }}", {"x": "a"}, "line 2: TypeError"),
        ("{{ 1 / x }}", {"x": 0}, "line 1: ZeroDivisionError"),
        ("{{ x['a'].b }}{{ x|int|round(x) }}", {"x": {"a": {"b": 1}}}, "line 1: TypeError"),
        ("{{ x.__class__ }}", {"x": "a"}, "line 1: SecurityError"),
        ("{{ ''.__class__.__mro__ }}", {}, "line 1: SecurityError"),
        ("{% for i in range(x) %}{% endfor %}", {"x": 10**9}, "line 1: OverflowError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", {}, "line 1: RecursionError"),
        ("{{ x.update({}) }}", {"x": {}}, "line 1: SecurityError"),
    ],
)
def test_a_template_that_fails_says_where(made: Made, source: str, data: dict[str, Any], error: str) -> None:
    """By the line and the kind of error; its text may hold a row's data."""
    assert refused(made({**SUBJECT, "a.txt": source}), data) == f"template_failed: template: a.txt, {error}"


def test_a_part_longer_than_a_message_is_given_up_on_the_way(made: Made) -> None:
    """A loop over what a row holds ends at the limit, not when memory does."""
    templates = made(
        {**SUBJECT, "a.txt": "{% for i in range(100000) %}{% for j in range(100000) %}{{ x }}{% endfor %}{% endfor %}"}
    )
    assert refused(templates, {"x": "y" * 1000}) == f"message_too_large: template: a.txt makes more than {LIMIT} characters"


def test_what_draws_lots_is_taken_out(tmp_path: Path) -> None:
    """A job that is tried again must be the same mail."""
    assert "random" in problems_of(tmp_path, {**SUBJECT, "a.txt": "{{ [1, 2]|random }}"})[0]
    assert "lipsum" in refused(load_again(tmp_path, {"a.txt": "{{ lipsum() }}"}), {})


def load_again(folder: Path, files: Mapping[str, str]) -> Templates:
    """Load a folder in which some files were changed."""
    write(folder, files)
    return load(str(folder))


# What a folder must be


def test_no_folder_means_no_templates() -> None:
    """And Jinja2 isn't looked for."""
    assert load("") == {}


def test_parts_can_be_shared_and_not_be_named(made: Made) -> None:
    """A layout and a macro, each of the kind of what uses it; escaping goes along."""
    templates = made(
        {
            **SUBJECT,
            "a.html": '{% extends "_l.html" %}{% from "_m.html" import b %}'
            '{% block x %}{{ b(v) }}{% include "_i.html" %}{% endblock %}',
            "_l.html": "<p>{% block x %}{% endblock %}</p>",
            "_m.html": "{% macro b(t) %}<b>{{ t }}</b>{% endmacro %}",
            "_i.html": "<i>{{ v }}</i>",
            "_unused.txt": "x",
        }
    )
    assert list(templates) == ["a"]
    assert filled_in(templates, {"v": "<"}).html == "<p><b>&lt;</b><i>&lt;</i></p>"


@pytest.mark.parametrize(
    ("files", "sentences"),
    [
        ({"a.txt": "x"}, ["a.subject.txt is missing"]),
        (SUBJECT, ["a.txt and a.html are both missing"]),
        ({**SUBJECT, "a.txt": "{% for %}"}, ["a.txt, line 1: "]),
        ({**SUBJECT, "a.txt": "\n\n{{ x|shout }}"}, ["a.txt, line 3: No filter named 'shout'"]),
        ({**SUBJECT, "a.txt": "{% include 'b.txt' %}"}, ["a.txt: there is no b.txt in the folder"]),
        ({**SUBJECT, "a.txt": "{% include x %}"}, ["a.txt: the name of another template must be written out"]),
        ({**SUBJECT, "a.txt": "x", "a.html": "{% include 'a.txt' %}"}, ["a.html: a.txt is of another kind"]),
        ({**SUBJECT, "a.html": "x", "a.txt": "{% include 'a.html' %}"}, ["a.txt: a.html is of another kind"]),
        ({**SUBJECT, "a.txt": "{% include '../a.subject.txt' %}"}, ["a.txt: there is no ../a.subject.txt in the folder"]),
        ({**SUBJECT, "a.txt": "{% include '/etc/passwd' %}"}, ["a.txt: there is no /etc/passwd in the folder"]),
        ({"A.txt": "x"}, ["A.txt: the name of a template is"]),
        ({"a b.html": "x"}, ["a b.html: the name of a template is"]),
        ({"a.b.txt": "x"}, ["a.b.txt: the name of a template is"]),
        (
            {"a.txt": "{{", "b.html": "{%"},
            ["a.subject.txt is missing", "b.subject.txt is missing", "a.txt, line 1", "b.html, line 1"],
        ),
        ({**SUBJECT, "a.html": "<style>p{}</style><p {% if x %}class{% endif %}>"}, ["a.html: has Jinja between the attributes"]),
        ({**SUBJECT, "a.txt": "x" * 1_000_001}, ["a.txt: is larger than 1000000 bytes", "a.txt and a.html are both missing"]),
    ],
)
def test_a_folder_with_faults_stops_the_start_with_all_of_them(
    tmp_path: Path, files: Mapping[str, str], sentences: list[str]
) -> None:
    """Each with its file, and its line where there is one."""
    found = problems_of(tmp_path, files)
    assert [sentence for sentence, message in zip(sentences, found, strict=True) if sentence not in message] == []


def test_a_folder_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    """A file in its place does so too."""
    (tmp_path / "file").touch()
    for name in ("nowhere", "file"):
        with pytest.raises(ConfigError, match="can't be read from"):
            load(str(tmp_path / name))


def test_files_of_others_are_left_alone(made: Made) -> None:
    """Notes, pictures, what an editor leaves."""
    templates = made({**SUBJECT, "a.txt": "x", "README.md": "{%", "a.txt~": "{%", ".a.txt": "{%", "#a.txt#": "{%"})
    assert list(templates) == ["a"]


def test_text_that_is_no_text_stops_the_start(tmp_path: Path) -> None:
    """Nobody wants to guess an encoding; a byte order mark is no part of a text."""
    (tmp_path / "a.txt").write_bytes("Grüße".encode("latin-1"))
    assert "a.txt: isn't written in UTF-8" in problems_of(tmp_path, SUBJECT)
    (tmp_path / "a.txt").write_bytes("\ufeffGrüße".encode())
    assert filled_in(load(str(tmp_path)), {}).text == "Grüße"


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    """Not to a file, not through a folder, not to nowhere, and not to what is no file."""
    folder = tmp_path / "templates"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "a.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "b.txt").symlink_to("../secret.txt")
    (folder / "c.txt").symlink_to("nowhere")
    (folder / "d.txt").symlink_to(folder)
    os.mkfifo(folder / "e.txt")
    (folder / "f.txt").mkdir()
    found = problems_of(folder, {})
    assert [message.partition(":")[0] for message in found] == [f"{letter}.txt" for letter in "abcdef"]
    assert sum("isn't a file in this folder" in message for message in found) == 5


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    """Where the content is exchanged as a whole, the files are links to it, and the folder itself may be one."""
    folder = tmp_path / "templates"
    (folder / "..data").mkdir(parents=True)
    write(folder / "..data", {**SUBJECT, "a.txt": "x"})
    for name in ("a.subject.txt", "a.txt"):
        (folder / name).symlink_to(f"..data/{name}")
    (tmp_path / "current").symlink_to(folder)
    assert filled_in(load(str(tmp_path / "current")), {}) == Rendered(subject="Hi", text="x")


@pytest.mark.parametrize("package", ["jinja2", "css_inline"])
def test_configured_without_their_packages_templates_stop_the_start(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do about it; without templates nobody misses them."""
    for module in [name for name in sys.modules if name.startswith(("daemon.templates.r", "daemon.templates.i"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs {package}, which isn't installed: run `pip install 'mailslot\[templates\]'`"):
        load(str(tmp_path))
    assert load("") == {}


def test_a_style_of_a_part_is_written_into_the_part(made: Made) -> None:
    """It stays a part: no second document in the middle of the first."""
    templates = made(
        {
            **SUBJECT,
            "a.html": "<html><body>{% include '_b.html' %}</body></html>",
            "_b.html": "<style>p{top:0}</style><p>{{ x }}</p>",
        }
    )
    assert filled_in(templates, {"x": "1"}).html == '<html><body><p style="top: 0;">1</p></body></html>'
