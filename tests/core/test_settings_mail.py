"""The rules for what every mail gets, for templates and for signatures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from daemon.core import values
from daemon.core.problems import problems_between
from daemon.core.settings import Dkim, Mail, Settings


def paths(**sections: Any) -> list[str]:  # noqa: ANN401  sections by name
    """Return the keys that are wrong."""
    return [problem.path for problem in problems_between(Settings(**sections))]


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"mail": Mail(verp=True)}, ["mail.verp"]),
        ({"mail": Mail(verp=True, envelope_from=f"{'b' * 31}@example.org")}, []),
        ({"mail": Mail(verp=True, envelope_from=f"{'b' * 32}@example.org")}, ["mail.envelope_from"]),
        ({"mail": Mail(verp=True, envelope_from=f"{'é' * 16}@example.org")}, ["mail.envelope_from"]),
        ({"mail": Mail(envelope_from=f"{'b' * 32}@example.org")}, []),
        ({"mail": Mail(allow_headers=["Jabber-ID", "X-A"], deny_headers=["Bcc", "X-A"])}, []),
        ({"mail": Mail(allow_headers=["Jabber-ID", "BCC", "content-type"])}, ["mail.allow_headers"] * 2),
        ({"dkim": Dkim(domain="example.org")}, ["dkim.selector"]),
        ({"dkim": Dkim(selector="mail")}, ["dkim.domain"]),
        ({"dkim": Dkim(domain="example.org", selector="mail")}, []),
    ],
)
def test_rules_between_the_keys_of_mail(sections: dict[str, Any], expected: list[str]) -> None:
    """Each names the key that has to be changed; what stands at a limit is no problem."""
    assert paths(**sections) == expected


@pytest.mark.parametrize(
    ("kind", "value", "is_good"),
    [
        (values.HeaderName, "X-Priority", True),
        (values.HeaderName, "a" * 76, True),
        (values.HeaderName, "a" * 77, False),
        (values.HeaderName, "", False),
        (values.HeaderName, "X:", False),
        (values.HeaderName, "X\n", False),
        (values.HeaderName, "Ü", False),
        (values.VerpSeparator, "+", True),
        (values.VerpSeparator, "-", True),
        (values.VerpSeparator, "=", True),
        (values.VerpSeparator, "_", True),
        (values.VerpSeparator, "", False),
        (values.VerpSeparator, "@", False),
        (values.VerpSeparator, "++", False),
        (values.SelectorOrEmpty, "", True),
        (values.SelectorOrEmpty, "mail2026", True),
        (values.SelectorOrEmpty, "a.b_c-d", True),
        (values.SelectorOrEmpty, "a..b", False),
        (values.SelectorOrEmpty, "-a", False),
        (values.SelectorOrEmpty, "a; d=x", False),
    ],
)
def test_single_value_of_mail(kind: Any, value: str, is_good: bool) -> None:  # noqa: ANN401, FBT001  a type of the typing module
    """Right and wrong ones."""
    if is_good:
        assert msgspec.convert(value, kind) == value
    else:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, kind)
