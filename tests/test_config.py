"""The file, the environment, the flags, the secrets; and that all mistakes are told at once, with their place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import fields

from daemon import config, resources
from daemon.core.errors import ConfigError
from daemon.core.settings import LogLevel, Problem, Relay, Rule, Secret, Settings, Tls

ROOT = Path(__file__).parent.parent
LOCAL = {"MAILSLOT_RELAY__0__NAME": "local", "MAILSLOT_RELAY__0__HOST": "127.0.0.1"}


@pytest.fixture(autouse=True)
def _no_installed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "not-installed.toml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a configuration that isn't written yet."""
    return tmp_path / "config.toml"


def loaded(
    text: str, file: Path, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> Settings:
    """Write a configuration, readable by its owner alone, and load it as the daemon does."""
    file.write_text(text, "utf-8")
    file.chmod(0o600)
    return config.load(file, environ or {}, flags or {})


def refused(text: str, file: Path, environ: Mapping[str, str] | None = None, *, sends: bool = False) -> list[Problem]:
    """Write a configuration that can't be used, and return all that is wrong with it."""
    file.write_text(text, "utf-8")
    file.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        config.load(file, environ or {}, {}, sends=sends)
    return list(caught.value.problems)


def paths(problems: list[Problem]) -> list[str]:
    """Return the keys that problems name."""
    return [problem.path for problem in problems]


def test_without_anything_the_defaults_hold() -> None:
    """No file, no variable, no flag: a command that needs no relay can work."""
    assert config.load(None, {}, {}) == Settings()


def test_file_environment_and_flag_win_over_one_another_in_this_order(file: Path) -> None:
    """Key by key: what a later source doesn't name stays as it was."""
    text = "[worker]\nconcurrency = 2\nname = 'from-file'\npoll_interval_s = 3\n"
    environ = {"MAILSLOT_WORKER__CONCURRENCY": "3", "MAILSLOT_WORKER__NAME": "from-environment"}
    assert loaded(text, file).worker.concurrency == 2
    assert loaded(text, file, environ).worker.concurrency == 3
    worker = loaded(text, file, environ, {"concurrency": 4, "queues": None}).worker
    assert (worker.concurrency, worker.name, worker.poll_interval_s, worker.queues) == (4, "from-environment", 3.0, ["default"])


def test_every_flag_sets_its_key() -> None:
    """Each flag of `mailslot run` reaches the key that it is named after."""
    flags = {"concurrency": 7, "queues": ["a", "b"], "name": "w", "log_level": "error", "log_format": "json"}
    assert set(flags) == set(config.FLAGS)
    settings = config.load(None, {}, flags)
    assert (settings.worker.concurrency, settings.worker.queues, settings.worker.name) == (7, ["a", "b"], "w")
    assert (settings.log.level, settings.log.format) == ("error", "json")


def test_the_file_is_the_argument_else_the_variable_else_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is read, never two."""
    for name in ("argument", "variable", "installed"):
        (tmp_path / name).write_text(f"[worker]\nname = '{name}'\n")
    environ = {"MAILSLOT_CONFIG": str(tmp_path / "variable")}
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "installed")
    assert config.load(tmp_path / "argument", environ, {}).worker.name == "argument"
    assert config.load(None, environ, {}).worker.name == "variable"
    assert config.load(None, {}, {}).worker.name == "installed"


def test_a_file_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    """Falling back to the defaults would start a worker on the wrong database."""
    missing = tmp_path / "missing.toml"
    for path, environ in ((missing, {}), (None, {"MAILSLOT_CONFIG": str(missing)})):
        with pytest.raises(ConfigError, match=r"missing\.toml: can't be read: No such file"):
            config.load(path, environ, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[worker]\nconcurrency = \n", "isn't TOML: Invalid value (at line 2, column 15)"),
        (b"[worker]\nname = 'a'\nname = 'b'\n", "isn't TOML: Cannot overwrite a value (at line 3"),
        (b"[worker]\nname = '\xff'\n", "isn't written in UTF-8"),
    ],
)
def test_a_file_that_isnt_toml_is_one_problem_with_its_line(text: bytes, expected: str, file: Path) -> None:
    """And nothing else is said, for whatever else seems to be missing stands in that file."""
    file.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        config.load(file, {}, {}, sends=True)
    (problem,) = caught.value.problems
    assert problem.path == str(file)
    assert problem.message.startswith(expected)


def test_all_mistakes_are_told_at_once_with_their_line(file: Path) -> None:
    """Unknown sections and keys, wrong types, values out of range, broken rules: one round of corrections is enough."""
    text = """
        concurrency = 5
        log = "loud"
        [databse]
        dsn = "postgresql:///x"
        [database]
        pool_size = "4"
        [worker]
        concurency = 3
        heartbeat_s = 3
        colour = "red"
        queues = ["a", "b c"]
        [lease]
        in_doubt_delay_s = 5
        [mail]
        from = "nobody"
        [handlers]
        "report.build" = "reports"
        "two words" = "a:b"
        [[relay]]
        name = "a"
        host = "smtp.example.org"
        tls = "sometimes"
        [[relay]]
        name = "b"
        port = 0
    """
    found = {problem.path: problem.message for problem in refused(text, file)}
    expected = {
        "concurrency": ("did you mean [worker]?", 2),
        "log": ("is a section", 3),
        "databse.dsn": ("isn't a section; did you mean [database]?", 5),
        "database.pool_size": ("must be a whole number from 1 to 100", 7),
        "worker.concurency": ("isn't a setting; did you mean concurrency?", 9),
        "worker.heartbeat_s": ("it belongs to [lease]", 10),
        "worker.colour": ("isn't a setting of [worker]", 11),
        "worker.queues": ("must be a list, and each of its entries a name of letters", 12),
        "lease.in_doubt_delay_s": ("must be at least the largest dot_timeout_s", 14),
        "mail.from": ("must be empty, or an address", 16),
        "handlers.report.build": ("must be a function written as package.module:function", 18),
        "handlers.two words": ("isn't the name of a kind", 19),
        "relay[0].tls": ('must be one of "implicit", "starttls", "none"', 23),
        "relay[1].host": ("is missing", None),
        "relay[1].port": ("must be a port, from 1 to 65535", 26),
    }
    assert set(found) == set(expected)
    for path, (message, line) in expected.items():
        assert message in found[path]
        assert line is None or f"(config.toml, line {line})".replace("config.toml", str(file)) in found[path]


def test_a_mistake_in_a_variable_or_flag_names_it(file: Path) -> None:
    """Whoever reads it knows where to look."""
    file.write_text("[worker]\nconcurrency = 5\n")
    environ = {"MAILSLOT_WORKER__POLL_INTERVAL_S": "soon", "MAILSLOT_LEASE__DURATOIN_S": "3"}
    with pytest.raises(ConfigError) as caught:
        config.load(file, environ, {"concurrency": 0})
    assert set(str(caught.value).splitlines()) == {
        "lease.duratoin_s: isn't a setting; did you mean duration_s? (MAILSLOT_LEASE__DURATOIN_S)",
        "worker.poll_interval_s: must be a number of seconds, from 0.001 to 2592000 (30 days) (MAILSLOT_WORKER__POLL_INTERVAL_S)",
        "worker.concurrency: must be a whole number from 1 to 1000 (--concurrency)",
    }


def test_a_rule_is_silent_while_a_key_that_it_looks_at_is_wrong(file: Path) -> None:
    """A default in place of a mistake would make the rule speak nonsense; other rules still speak."""
    text = "[lease]\nduration_s = '60'\nheartbeat_s = 15\nheartbeat_timeout_s = 9\ntakeover_grace_s = 1\n"
    assert paths(refused(text, file)) == ["lease.duration_s", "lease.takeover_grace_s"]


def test_the_relay_section_must_be_a_list(file: Path) -> None:
    """One bracket too few is the likeliest mistake of all, and gets one answer."""
    assert refused("[relay]\nname = 'a'\nhost = 'b'\n", file, sends=True) == [
        Problem("relay", "begins with [[relay]], in two brackets: there may be several")
    ]


def test_a_daemon_without_a_relay_is_refused_and_an_operator_isnt(file: Path) -> None:
    """The rule itself is core's; here it is asked for."""
    assert paths(refused("", file, sends=True)) == ["relay"]
    assert loaded("", file) == Settings()


def test_variables_carry_every_type() -> None:
    """Numbers, lists by comma or as JSON, truth values, words, handlers and relays."""
    environ = LOCAL | {
        "MAILSLOT_DATABASE__DSN": "postgresql:///other",
        "MAILSLOT_WORKER__QUEUES": "a, b,c",
        "MAILSLOT_WORKER__LISTEN": "false",
        "MAILSLOT_WORKER__CONCURRENCY": "20",
        "MAILSLOT_LEASE__MARGIN_S": "4.5",
        "MAILSLOT_MAIL__FROM": "Events <events@example.org>",
        "MAILSLOT_LOG__LEVEL": "warning",
        "MAILSLOT_RELAY__0__TLS": "none",
        "MAILSLOT_RELAY__1__NAME": "second",
        "MAILSLOT_RELAY__1__HOST": "smtp.example.org",
        "MAILSLOT_HANDLERS__REPORT": "reports:build",
    }
    settings = config.load(None, environ, {})
    assert settings.database.dsn == "postgresql:///other"
    assert settings.worker.queues == ["a", "b", "c"]
    assert (settings.worker.listen, settings.worker.concurrency, settings.lease.margin_s) == (False, 20, 4.5)
    assert (settings.mail.from_, settings.log.level) == ("Events <events@example.org>", LogLevel.WARNING)
    assert [(relay.name, relay.host, relay.tls) for relay in settings.relay] == [
        ("local", "127.0.0.1", Tls.NONE),
        ("second", "smtp.example.org", Tls.STARTTLS),
    ]
    assert settings.handlers == {"report": "reports:build"}
    assert config.load(None, {"MAILSLOT_WORKER__QUEUES": '["a","b"]'}, {}).worker.queues == ["a", "b"]


def test_a_variable_changes_one_key_of_a_relay_of_the_file(file: Path) -> None:
    """The rest of that relay stays as the file says."""
    (relay,) = loaded("[[relay]]\nname = 'a'\nhost = 'b'\nport = 26\n", file, {"MAILSLOT_RELAY__0__HOST": "c"}).relay
    assert (relay.name, relay.host, relay.port) == ("a", "c", 26)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MAILSLOT_DATABASE_DSN", "is written with two underscores: MAILSLOT_DATABASE__DSN"),
        ("MAILSLOT_RELAY__HOST", "names no setting"),
        ("MAILSLOT_RELAY__A__HOST", "names no setting"),
        ("MAILSLOT_WORKER__A__B", "names no setting"),
        ("MAILSLOT___X", "names no setting"),
        ("MAILSLOT_WORKER__", "names no setting"),
    ],
)
def test_a_misspelt_variable_is_a_mistake(name: str, expected: str) -> None:
    """Silence would mean that the default holds and nobody knows."""
    with pytest.raises(ConfigError) as caught:
        config.load(None, {name: "1"}, {})
    assert caught.value.problems[0].path == name
    assert caught.value.problems[0].message.startswith(expected)


def test_variables_of_others_are_left_alone() -> None:
    """Kubernetes and the like set variables named after a service; they aren't ours."""
    environ = {"MAILSLOT_PORT": "tcp://10.0.0.1:25", "MAILSLOT_SERVICE_HOST": "10.0.0.1", "PATH": "/bin", "A__B": "1"}
    assert config.load(None, environ, {}) == Settings()


def test_relays_are_numbered_without_a_gap() -> None:
    """MAILSLOT_RELAY__1 without MAILSLOT_RELAY__0 is a mistake and not the first relay."""
    environ = {"MAILSLOT_RELAY__1__NAME": "a", "MAILSLOT_RELAY__1__HOST": "b"}
    with pytest.raises(ConfigError, match="numbered from 0 without a gap"):
        config.load(None, environ, {})


def test_a_ca_file_must_be_readable_by_who_sends(file: Path) -> None:
    """Found at start, and not at the first mail."""
    text = f"[[relay]]\nname = 'a'\nhost = 'b'\nca_file = '{file.parent}/no-such.pem'\n"
    assert paths(refused(text, file, sends=True)) == ["relay[0].ca_file"]
    assert loaded(text, file).relay[0].ca_file


# Secrets

RELAY_WITH_LOGIN = "[[relay]]\nname = 'main'\nhost = 'smtp.example.org'\nusername = 'u'\n"


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    """Return a folder like the one that systemd names in CREDENTIALS_DIRECTORY."""
    folder = tmp_path / "credentials"
    folder.mkdir(0o700)
    return folder


def secret(path: Path, text: str) -> Path:
    """Write a secret that only its owner may read."""
    path.write_text(text)
    path.chmod(0o600)
    return path


def passwords(file: Path, environ: Mapping[str, str]) -> tuple[Secret | None, Secret | None]:
    """Return the passwords of the database and of the first relay."""
    settings = config.load(file, environ, {}, sends=True)
    return settings.database.password, settings.relay[0].password


def test_each_source_of_a_password_gives_way_to_the_one_above(file: Path, tmp_path: Path, credentials: Path) -> None:
    """Environment, password_file, credential, file: one source is added at a time, from the last to the first."""
    inline = f"[database]\npassword = 'inline'\n{RELAY_WITH_LOGIN}password = 'inline'\n"
    secret(file, inline)
    environ: dict[str, str] = {}
    assert passwords(file, environ) == (Secret("inline"), Secret("inline"))

    environ["CREDENTIALS_DIRECTORY"] = str(credentials)
    assert passwords(file, environ) == (Secret("inline"), Secret("inline"))
    secret(credentials / "db_password", "credential\n")
    secret(credentials / "smtp_password", "credential\n")
    assert passwords(file, environ) == (Secret("credential"), Secret("credential"))
    secret(credentials / "relay_main_password", "own credential\n")
    assert passwords(file, environ) == (Secret("credential"), Secret("own credential"))

    secret(tmp_path / "p", "file\n")
    file.write_text(inline.replace("password = 'inline'", "password_file = 'p'"))
    assert passwords(file, environ) == (Secret("file"), Secret("file"))

    environ |= {
        "MAILSLOT_DATABASE__PASSWORD": "variable",
        "MAILSLOT_RELAY__0__PASSWORD_FILE": str(secret(tmp_path / "q", "other")),
    }
    assert passwords(file, environ) == (Secret("variable"), Secret("other"))


def test_a_credential_that_nobody_filled_is_none(file: Path, credentials: Path) -> None:
    """The unit gives an empty line where no password was provided."""
    secret(credentials / "db_password", "\n")
    secret(credentials / "smtp_password", "\n")
    settings = loaded("", file, {"CREDENTIALS_DIRECTORY": str(credentials)})
    assert settings.database.password is None


def test_smtp_password_is_the_first_relays_alone(file: Path, credentials: Path) -> None:
    """Handing it to a second relay would tell a stranger the password."""
    secret(credentials / "smtp_password", "geheim")
    secret(file, RELAY_WITH_LOGIN + RELAY_WITH_LOGIN.replace("main", "spare"))
    with pytest.raises(ConfigError) as caught:
        config.load(file, {"CREDENTIALS_DIRECTORY": str(credentials)}, {}, sends=True)
    assert paths(list(caught.value.problems)) == ["relay[1].password"]


def test_a_relays_secret_isnt_touched_by_who_doesnt_send(file: Path) -> None:
    """An operator who lists jobs may not be allowed to read it."""
    text = RELAY_WITH_LOGIN + "password_file = '/no/such/file'\n"
    assert loaded(text, file).relay[0].password is None
    assert paths(refused(text, file, sends=True)) == ["relay[0].password_file"]


def test_password_and_password_file_side_by_side_are_a_mistake(file: Path) -> None:
    """Nobody could say which one was meant."""
    assert paths(refused("[database]\npassword = 'a'\npassword_file = 'b'\n", file))[0] == "database.password"


@pytest.mark.parametrize("content", ["", "\n", "one\ntwo\n", "nul\0\n"])
def test_a_password_file_holds_one_line(content: str, file: Path, tmp_path: Path) -> None:
    """An empty password, or half of a file, would only be noticed by the server."""
    secret(tmp_path / "p", content)
    (problem,) = refused("[database]\npassword_file = 'p'\n", file)
    assert problem.path == "database.password_file"
    assert "must hold one line" in problem.message


def cautions_of(file: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the keys that loading a file warns of."""
    cautions: list[Problem] = []
    config.load(file, environ or {}, {}, warn=cautions.append)
    return [caution.path for caution in cautions]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[database]\npassword = 'geheim'\n", ["database.password"]),
        ("[database]\ndsn = 'postgresql://u:geheim@h/d'\n", ["database.dsn"]),
        ("[database]\ndsn = 'postgresql://u@h/d?password=geheim'\n", ["database.dsn"]),
        ("[database]\npassword_file = 'p'\n", ["database.password_file"]),
        ("[database]\ndsn = 'postgresql://u@h:5432/d'\n", []),
    ],
)
def test_a_password_that_everybody_may_read_is_warned_of(text: str, expected: list[str], file: Path, tmp_path: Path) -> None:
    """Wherever it stands; and not where only owner and group may read."""
    secret(tmp_path / "p", "geheim")
    file.write_text(text)
    for mode, cautions in ((0o644, expected), (0o640, [])):
        file.chmod(mode)
        (tmp_path / "p").chmod(mode)
        assert cautions_of(file) == cautions


def test_a_warning_goes_to_standard_error_and_holds_no_password(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log isn't there yet when the configuration is read."""
    file.write_text("[database]\npassword = 'geheim'\n")
    file.chmod(0o644)
    config.load(file, {}, {})
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("mailslot: warning: database.password: everybody on this machine may read")
    assert "geheim" not in written.err


CANARY = "k4narienv0gel"


def canaries() -> Iterator[tuple[str, str]]:
    """Yield configurations that hold a password and a mistake next to it."""
    for section in ("[database]\n", "[[relay]]\nname = 'a'\nhost = 'b'\nusername = 'u'\n"):
        for line in (
            f"password = '{CANARY}'\nbad = 1",
            f"password = ['{CANARY}']",
            f"pasword = '{CANARY}'",
            f"password = '{CANARY}",
        ):
            yield section + line, section
    yield f"[database]\ndsn = 'http://u:{CANARY}@h/d'\n", "dsn"
    yield f"[database]\ndsn = 'postgresql://u:{CANARY}@h/d'\npool_size = 0\n", "dsn"


@pytest.mark.parametrize("text", [text for text, _ in canaries()])
def test_no_problem_shows_a_password(text: str, file: Path) -> None:
    """Whatever is wrong with it or beside it."""
    problems = refused(text, file, {"MAILSLOT_DATABASE__POOL_SIZE": CANARY}, sends=True)
    assert problems
    assert CANARY not in str(problems)


@hypothesis_settings(deadline=None)
@given(user=st.from_regex(r"\A[a-z]{1,8}\Z"), password=st.from_regex(r"\A[A-Za-z0-9%!@/?#:=&+]{4,40}\Z"))
def test_shown_settings_hold_no_password(user: str, password: str) -> None:
    """Also not the one inside the connection string, whatever characters it has."""
    settings = Settings(
        database=msgspec.structs.replace(Settings().database, dsn=f"postgresql://{user}:!{password}!@db.example.org/mail"),
        relay=[Relay(name="a", host="b", username="u", password=Secret(f"!{password}!"))],
    )
    shown = str(config.redacted(settings))
    assert f"!{password}!" not in shown
    assert "db.example.org/mail" in shown


def test_a_password_in_the_query_of_a_connection_string_isnt_shown() -> None:
    """PostgreSQL takes it there as well."""
    dsn = "postgresql:///mail?host=/run&password=geheim&application_name=x"
    settings = Settings(database=msgspec.structs.replace(Settings().database, dsn=dsn, password=Secret("geheim")))
    shown = config.redacted(settings)
    assert "geheim" not in str(shown)
    assert msgspec.convert(shown["database"], dict)["dsn"] == "postgresql:///mail?host=/run&password=***&application_name=x"


# config.toml

NOT_DEFAULTS = {"name": "local", "host": "127.0.0.1", "port": 25, "tls": "none"}
"""A relay has no default name and host, and the example is a mail server on the same machine."""


def test_config_toml_can_be_started_with() -> None:
    """As it is, with nothing changed."""
    settings = config.load(ROOT / "config.toml", {}, {}, sends=True)
    assert [relay.name for relay in settings.relay] == ["local"]


def test_config_toml_has_every_key_with_its_default() -> None:
    """What people read and what holds are the same; passwords alone have no place in it."""
    document = tomllib.loads(resources.text("config.toml"))
    expected = msgspec.to_builtins(Settings(relay=[Relay(name="local", host="127.0.0.1")]))
    expected["relay"][0] |= NOT_DEFAULTS
    del expected["relay"][0]["password"], expected["database"]["password"]
    assert expected.pop("rule") == []  # there is none until somebody needs one
    assert document == expected


def test_the_rule_that_config_toml_shows_can_be_used(file: Path) -> None:
    """Every key of a rule is in it, and it has no problems once its comment signs are gone."""
    text = resources.text("config.toml")
    example = text[text.index("#[[rule]]") :].split("\n\n", maxsplit=1)[0]
    (rule,) = loaded("\n".join(line.removeprefix("#") for line in example.splitlines() if line[:2] != "# "), file).rule
    assert (rule.name, rule.verdict, rule.stages) == ("slow_down", "free", ["mail", "dot"])
    assert set(re.findall(r"^#(\w+) = ", example, re.MULTILINE)) == {field.name for field in fields(Rule)}


def test_a_rule_is_read_from_file_and_variables_and_its_mistakes_have_a_place(file: Path) -> None:
    """A list of tables like the relays: numbered in a variable, and with its line in a problem."""
    rule = "[[rule]]\nname = 'a'\nverdict = 'free'\ntext = 'x'\n"
    assert loaded(rule, file, {"MAILSLOT_RULE__0__CODES": "451,452"}).rule[0].codes == ["451", "452"]
    (problem,) = refused(rule + "[[rule]]\nname = 'b'\nverdict = 'sent'\ntext = 'x'\n", file)
    assert (problem.path, "line 7" in problem.message) == ("rule[1].verdict", True)
    assert paths(refused("[[rule]]\nname = 'a'\ntext = '('\n", file)) == ["rule[0].verdict", "rule[0].text"]
    assert paths(refused("[rule]\nname = 'a'\n", file)) == ["rule"]


def test_config_toml_explains_every_key() -> None:
    """Each key has a comment right above it, and a unit of time is named in words."""
    lines = resources.text("config.toml").splitlines()
    assigned = [index for index, line in enumerate(lines) if re.match(r"#?[\"a-z_.]+ = ", line)]
    assert len(assigned) > 50
    for index in assigned:
        comment: list[str] = []
        while lines[index - 1 - len(comment)].startswith("# "):
            comment.append(lines[index - 1 - len(comment)])
        assert comment or lines[index - 1].startswith("["), lines[index]
        if "_s = " in lines[index]:
            assert "second" in " ".join(comment).lower(), lines[index]


def test_every_key_can_be_set_by_a_variable() -> None:
    """Each default, written as text, comes back as itself."""
    sections = [("database", Settings().database), ("worker", Settings().worker), ("lease", Settings().lease)]
    sections += [("retry", Settings().retry), ("mail", Settings().mail), ("log", Settings().log)]
    environ = {
        f"MAILSLOT_{section}__{field.encode_name}".upper(): str(getattr(values, field.name)).lower()
        for section, values in sections
        for field in fields(values)
        if field.encode_name not in {"password", "queues"}
    }
    assert config.load(None, environ, {}) == Settings()
