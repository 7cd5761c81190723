"""address: which mailboxes are taken, and what they become."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from daemon.core import settings
from daemon.core.message import address
from daemon.core.message.address import Mailbox, mailbox
from daemon.core.message.message import Refusal
from tests.core.message.composing import composed, lines_of, parsed, refused
from tests.core.message.test_message_hostile import ADDRESSES, HOSTILE, TEXTS

WIDE_DOMAIN = ".".join(["ü" * 57] * 4)
"""231 characters, and 255 octets as A-labels."""
LONGEST_DOMAIN = ".".join(["a" * 63] * 2 + ["b" * 61])


@pytest.mark.parametrize(
    ("given", "name", "address"),
    [
        ("ann@example.org", "", "ann@example.org"),
        (" ann@example.org ", "", "ann@example.org"),
        ("<ann@example.org>", "", "ann@example.org"),
        ("Ann Example <ann@example.org>", "Ann Example", "ann@example.org"),
        ("Ann<ann@example.org>", "Ann", "ann@example.org"),
        ('"Example, Ann" <ann@example.org>', "Example, Ann", "ann@example.org"),
        ('"a \\"b\\" \\\\c"<ann@example.org>', 'a "b" \\c', "ann@example.org"),
        ("Jörg Müller, Dr. <j@example.org>", "Jörg Müller, Dr.", "j@example.org"),
        ({"name": " Ann ", "email": "ann@example.org"}, "Ann", "ann@example.org"),
        ({"name": "Dr. A. (Ann) <x>; y:", "email": "ann@example.org"}, "Dr. A. (Ann) <x>; y:", "ann@example.org"),
        ({"name": "a@evil.example", "email": "ann@example.org"}, "a@evil.example", "ann@example.org"),
        ({"name": "evil@bank.example,", "email": "ann@example.org"}, "evil@bank.example,", "ann@example.org"),
        ({"name": "刘瑞", "email": "ann@example.org"}, "刘瑞", "ann@example.org"),
        ({"name": "👩‍👩‍👧 🎉", "email": "ann@example.org"}, "👩‍👩‍👧 🎉", "ann@example.org"),
        (
            {"name": "=?utf-8?q?evil=40bank.example?=", "email": "ann@example.org"},
            "=?utf-8?q?evil=40bank.example?=",
            "ann@example.org",
        ),
        ({"name": "=?utf-8?q?x=0D=0ABcc:_y?=", "email": "ann@example.org"}, "=?utf-8?q?x=0D=0ABcc:_y?=", "ann@example.org"),
        ("Ann.O'Neil+tag=x/y@Example.ORG", "", "Ann.O'Neil+tag=x/y@example.org"),
        ("user@bücher.example", "", "user@xn--bcher-kva.example"),
        ("user@BÜCHER.example", "", "user@xn--bcher-kva.example"),
        ("user@bu\u0308cher.example", "", "user@xn--bcher-kva.example"),
        ("user@faß.example", "", "user@xn--fa-hia.example"),
        ("user@xn--bcher-kva.example", "", "user@xn--bcher-kva.example"),
        ("root@localhost", "", "root@localhost"),
        ("x@r3---sn.example", "", "x@r3---sn.example"),
        ("a@b.1.example", "", "a@b.1.example"),
        ("\u212aate@example.org", "", "Kate@example.org"),
        ("a" * 64 + "@example.org", "", "a" * 64 + "@example.org"),
        ("a@" + LONGEST_DOMAIN, "", "a@" + LONGEST_DOMAIN),
    ],
)
def test_mailbox_is_read_as_one_name_and_one_address(given: object, name: str, address: str) -> None:
    """A modern parser at the other end sees the same, once."""
    message = composed(to=[given])
    assert message.recipients == (address,)
    assert not message.needs_smtputf8
    [box] = parsed(message)["To"].addresses
    assert (box.display_name, box.addr_spec) == (name, address)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ann",
        "@example.org",
        "ann@",
        "a@@example.org",
        "a@b@example.org",
        "a@evil.example,b@example.org",
        "a@example.org; b@example.org",
        "a b@example.org",
        ".a@example.org",
        "a.@example.org",
        "a..b@example.org",
        '"a@evil.example x"@example.org',
        '"ann"@example.org',
        "ann(comment)@example.org",
        "ann@example.org (Ann)",
        "@relay.example:ann@example.org",
        "<@relay.example:ann@example.org>",
        "Team: ann@example.org;",
        "Team:<ann@example.org>;",
        "undisclosed-recipients:;",
        "Ann (Sales) <ann@example.org>",
        "a@evil.example <ann@example.org>",
        '"unfinished <ann@example.org>',
        '"a"b <ann@example.org>',
        "Ann <ann@example.org> x",
        "Ann <ann@example.org>, Bob <bob@example.org>",
        "Ann <<ann@example.org>>",
        "=?utf-8?q?evil=40bank.example?=@example.org",
        "ann@=?utf-8?q?b=C3=BCcher?=.example",
        "ann@[192.0.2.1]",
        "ann@192.0.2.1",
        "ann@example.org.",
        "ann@.example.org",
        "ann@exa mple.org",
        "ann@exa_mple.org",
        "ann@-example.org",
        "ann@example-.org",
        "ann@example。org",
        "ann\uff20example.org",
        "ann@xn--zz.example",
        "ann@xn--bücher.example",
        "ann@☃.example",
        "ann@" + "a" * 64 + ".example",
        "a" * 65 + "@example.org",
        "ü" * 33 + "@example.org",
        "a@" + LONGEST_DOMAIN + "b" * 64,
        "aaa@" + ".".join(["a" * 63] * 4),
        "a\u037eb@example.org",
        "a\u200bb@example.org",
        "a\u00a0b@example.org",
        "a\u202eb@example.org",
        "x" * 5000 + " <ann@example.org>",
        {"name": "x" * 321, "email": "ann@example.org"},
    ],
)
def test_what_is_not_exactly_one_plain_mailbox_is_refused(given: object) -> None:
    """Readers disagree about these, or can't deliver to them; guessing would send mail elsewhere."""
    assert refused(to=[given]).reason == "address_invalid"


def test_refusal_does_not_repeat_the_address() -> None:
    """Addresses are masked in logs, so that a sentence for the log can't hold one."""
    assert "secret" not in str(refused(to=["secret person@example.org"]))


@pytest.mark.parametrize(
    "payload", [{"to": "用户@例え.jp"}, {"bcc": "üser@example.org"}, {"from": "ü@example.org"}, {"reply_to": "ü@b.example"}]
)
def test_local_part_outside_ascii_needs_smtputf8(payload: dict[str, object]) -> None:
    """Wherever it stands; only a relay with RFC 6531 can take it."""
    assert composed(**payload).needs_smtputf8


def test_address_outside_ascii_stands_in_the_header_as_it_is() -> None:
    """RFC 6532: UTF-8, never an encoded word; the name beside it is encoded as always."""
    message = composed(to={"name": "Käthe", "email": "ka\u0308the@例え.jp"})
    assert lines_of(message, "To") == "To: =?utf-8?b?S8OkdGhl?= <käthe@xn--r8jz45g.jp>"
    assert message.recipients == ("käthe@xn--r8jz45g.jp",)


def test_blind_copy_outside_ascii_leaves_the_content_in_ascii() -> None:
    """Only the envelope needs the extension then."""
    message = composed(bcc="üser@example.org")
    assert message.needs_smtputf8
    assert message.content.isascii()


@pytest.mark.parametrize(
    ("given", "detail"),
    [
        ("a" * 65 + "@example.org", "what stands before its @ is longer than 64 octets"),
        ("a@" + "ü" * 253, "is longer than 254 octets"),
        ("ab@" + WIDE_DOMAIN, "is longer than 254 octets"),
        ("x" * 903 + "<a@example.org>", "is too long for one mailbox"),
        ({"name": "x" * 321, "email": "a@example.org"}, "its name is longer than 320 characters"),
    ],
)
def test_each_limit_is_named(given: object, detail: str) -> None:
    """The limits also bound the work: nothing long is normalised, matched or turned into A-labels."""
    assert refused(to=given).detail == detail


def test_domain_has_a_limit_of_its_own() -> None:
    """Also where no local part stands before it."""
    found = refused(settings.Mail(from_="a@example.org", message_id_domain=WIDE_DOMAIN + ".aaa"))
    assert found.detail == "its domain is longer than 255 octets"


def test_domains_that_are_remembered_are_few() -> None:
    """Jobs may name any domain; the memory of a worker must not grow with them."""
    for number in range(300):
        mailbox(f"a@bücher{number}.example", "to")
    assert address._by_idna.cache_info().currsize <= 256  # noqa: SLF001  the claim is about this


NEVER = re.compile("(?!)")
BEGINNINGS = some.sampled_from(["", "Ann <", "Ann Example <", "Ann  E <", "A.B <", "1 <", "<", " "])
LOCALS = some.sampled_from(["ann", "a.b", "a..b", ".a", "A+b_c-d", "a" * 40, "a" * 65, "=?", "a b", ""])
LABELS = some.sampled_from(["example", "org", "Example", "x-y", "x--y", "xn--zz", "-x", "x-", "1", "a" * 40, "a_b", "ü", ""])
DOMAINS = some.lists(LABELS, max_size=4).map(".".join)
COMMON = some.builds("{}{}@{}{}".format, BEGINNINGS, LOCALS, DOMAINS, some.sampled_from(["", ">", ".", "> ", " ", ">>"]))


@HOSTILE
@given(some.one_of(COMMON, ADDRESSES, some.builds("{} <{}>".format, TEXTS, ADDRESSES)))
def test_common_mailbox_is_read_as_the_long_way_reads_it(value: str) -> None:
    """The single look changes how long it takes, and nothing else."""

    def read(given: object) -> Mailbox | tuple[str, str]:
        try:
            return mailbox(given, "to")
        except Refusal as refusal:
            return refusal.unbuildable.reason, refusal.unbuildable.detail

    found = [read(value), read({"name": "Ann", "email": value})]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(address, "_COMMON", NEVER)
        patch.setattr(address, "_COMMON_MAILBOX", NEVER)
        assert found == [read(value), read({"name": "Ann", "email": value})]


@pytest.mark.parametrize("given", ["ann@example.org", "Ann Example <ann+tag@mail.example.org>", {"email": "ann@example.org"}])
def test_common_mailbox_needs_a_single_look(given: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """What most payloads hold isn't taken apart."""
    monkeypatch.setattr(address, "domain_name", None)
    assert mailbox(given, "to").domain.endswith("example.org")
