"""The settings: their defaults, their reference, and the forms in which they are read."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import pickle
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from flask_taskengine.domain.limits import Limits
from flask_taskengine.domain.retention import Retention
from flask_taskengine.domain.retry import RetryPolicy
from flask_taskengine.settings import Settings, reference

DAY = 86400.0
PROPERTIES = {field.name: field for field in dataclasses.fields(Settings)}


def read(**settings: Any) -> Settings:
    """Read settings that are given without their prefix."""
    return Settings.from_config({f"TASKENGINE_{key}": value for key, value in settings.items()})


@pytest.fixture
def from_environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Return a function that reads settings as a Flask app gets them from its environment."""
    for name in [name for name in os.environ if name.startswith("FLASK_")]:
        monkeypatch.delenv(name)

    def read_environment(loads: Callable[[str], Any] = json.loads, **variables: str) -> Settings:
        for name, value in variables.items():
            monkeypatch.setenv(f"FLASK_TASKENGINE_{name}", value)
        app = Flask(__name__)
        app.config.from_prefixed_env(loads=loads)
        return Settings.from_config(app.config)

    return read_environment


def test_an_app_without_settings_has_the_defaults_of_the_design() -> None:
    """Every default is the one that the reference promises; keys of other extensions are left alone."""
    settings = Settings.from_config({"SECRET_KEY": "x", "SQLALCHEMY_DATABASE_URI": "sqlite://", "TASK": 1})
    assert settings == Settings()
    assert dataclasses.asdict(settings) == {
        "enabled": True,
        "concurrency": 8,
        "batch_size": 100,
        "poll_interval": 5,
        "default_retry": dataclasses.asdict(RetryPolicy(5, 5, 2, 600, 0.2)),
        "retry": {},
        "default_timeout": 300,
        "timeout": {},
        "processor_limits": {},
        "lease": 60,
        "heartbeat_interval": 15,
        "shutdown_timeout": 30,
        "unknown_type_grace": 300,
        "isolation_memory": None,
        "max_payload": 1024 * 1024,
        "embedded_worker": False,
        "retention": dataclasses.asdict(Retention(succeeded=7 * DAY, cancelled=7 * DAY, failed=None, dead=None, interval=3600)),
        "wakeup": "auto",
        "listen_url": None,
        "api_enabled": False,
        "api_url_prefix": "/taskengine",
        "api_tokens": {},
        "api_unprotected": False,
        "redact": (),
        "health_enabled": True,
        "health_min_workers": 0,
        "health_max_due_age": None,
        "tracing": False,
        "metrics": False,
        "table_prefix": "taskengine_",
        "task_table": None,
        "schema": None,
        "sqlite_pragmas": True,
    }
    assert settings.default_retry == RetryPolicy()
    assert settings.retention == Retention()
    assert settings.warnings() == ()


def test_the_reference_has_every_setting_with_a_default_that_can_be_copied() -> None:
    """Each row names a key, its default as one would write it, and a sentence; what it shows reads as the default."""
    rows = [re.fullmatch(r"\| `TASKENGINE_(\w+)` \| `([^|]+)` \| ([A-Z][^|]+\.) \|", line) for line in reference().splitlines()[2:]]
    shown = {row[1]: ast.literal_eval(row[2]) for row in rows if row}
    assert [key.lower() for key in shown] == list(PROPERTIES)
    assert read(**shown) == Settings()


def test_settings_are_a_value_that_keeps_secrets() -> None:
    """Settings can be hashed, pickled and not changed; their ``repr`` shows neither tokens nor the address with a password."""
    settings = read(API_TOKENS={"t0ken": "read"}, LISTEN_URL="postgresql://u:passw0rd@h/db", RETRY={"a": {"jitter": 0}})
    assert "t0ken" not in repr(settings)
    assert "passw0rd" not in repr(settings)
    assert {name for name, field in PROPERTIES.items() if field.metadata["secret"]} == {"api_tokens", "listen_url"}
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.concurrency = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *[("API_ENABLED", value, True) for value in (True, 1, "1", "true", "True", " YES ", "on")],
        *[("ENABLED", value, False) for value in (False, 0, "0", "false", "False", "no", "OFF")],
        ("CONCURRENCY", 1, 1),
        ("CONCURRENCY", "5", 5),
        ("BATCH_SIZE", " 20 ", 20),
        ("POLL_INTERVAL", timedelta(milliseconds=250), 0.25),
        ("POLL_INTERVAL", "500ms", 0.5),
        ("POLL_INTERVAL", "5", 5),
        ("POLL_INTERVAL", 0, 0),
        ("LEASE", "2h", 7200),
        ("SHUTDOWN_TIMEOUT", 0, 0),
        ("UNKNOWN_TYPE_GRACE", "7d", 7 * DAY),
        ("DEFAULT_TIMEOUT", None, None),
        ("DEFAULT_TIMEOUT", "None", None),
        ("DEFAULT_TIMEOUT", "null", None),
        ("DEFAULT_TIMEOUT", "30s", 30),
        ("DEFAULT_TIMEOUT", 0, 0),
        ("TIMEOUT", {"email.send": "5m", "report": None}, {"email.send": 300, "report": None}),
        ("TIMEOUT", '{"email": 5}', {"email": 5}),
        ("MAX_PAYLOAD", 10, 10),
        ("MAX_PAYLOAD", "2048", 2048),
        ("MAX_PAYLOAD", "1MiB", 1024**2),
        ("MAX_PAYLOAD", "64 kib", 64 * 1024),
        ("MAX_PAYLOAD", "1MB", 10**6),
        ("ISOLATION_MEMORY", "512MiB", 512 * 1024**2),
        ("ISOLATION_MEMORY", "none", None),
        ("WAKEUP", "POLL", "poll"),
        ("LISTEN_URL", "postgresql+psycopg://u:p@h/db", "postgresql+psycopg://u:p@h/db"),
        ("LISTEN_URL", "host=/tmp dbname=x", "host=/tmp dbname=x"),
        ("API_URL_PREFIX", "/admin/tasks/", "/admin/tasks"),
        ("API_URL_PREFIX", "/", ""),
        ("API_TOKENS", {"abc": "read", "d-e_f": "read-write"}, {"abc": "read", "d-e_f": "read-write"}),
        ("REDACT", ["password", "card"], ("password", "card")),
        ("REDACT", ("password", "password"), ("password",)),
        ("REDACT", {"password"}, ("password",)),
        ("REDACT", "password, card", ("password", "card")),
        ("REDACT", "", ()),
        ("TABLE_PREFIX", "a" * 30, "a" * 30),
        ("TABLE_PREFIX", "_", "_"),
        ("TASK_TABLE", "task", "task"),
        ("TASK_TABLE", "taskengine_task", "taskengine_task"),
        ("SCHEMA", "x" * 40, "x" * 40),
        ("SQLITE_PRAGMAS", False, False),
        ("DEFAULT_RETRY", RetryPolicy(3), RetryPolicy(3)),
        ("DEFAULT_RETRY", {"max_attempts": None, "base_backoff": "1m"}, RetryPolicy(None, 60)),
        (
            "RETRY",
            {"a": {"max_attempts": "3", "jitter": "0.5"}, "b": RetryPolicy(2)},
            {"a": RetryPolicy(3, jitter=0.5), "b": RetryPolicy(2)},
        ),
        ("PROCESSOR_LIMITS", {"a": {"per_node": 2}, "b": Limits(3, 4)}, {"a": Limits(2), "b": Limits(3, 4)}),
        ("RETENTION", {"succeeded": 0}, Retention(succeeded=0)),
        (
            "RETENTION",
            {"succeeded": None, "dead": "30d", "strategy": "archive"},
            Retention(succeeded=None, dead=30 * DAY, strategy="archive"),
        ),
        ("RETENTION", Retention(failed=5), Retention(failed=5)),
    ],
)
def test_values_are_read_in_every_form(key: str, value: Any, expected: Any) -> None:
    """Python values, and the texts that stand for them, become the field's type."""
    settings = read(**{key: value})
    assert getattr(settings, key.lower()) == expected
    assert dataclasses.replace(settings, **{key.lower(): getattr(Settings(), key.lower())}) == Settings()


def test_settings_do_not_change_with_the_config() -> None:
    """A dict of the config that changes later changes nothing."""
    config = {"TASKENGINE_TIMEOUT": {"a": 1}}
    settings = Settings.from_config(config)
    config["TASKENGINE_TIMEOUT"]["a"] = 2
    assert settings.timeout == {"a": 1}


def test_from_prefixed_env(from_environment: Callable[..., Settings]) -> None:
    """What Flask takes from the environment is understood: JSON, nested keys in either case, and texts that are no JSON."""
    settings = from_environment(
        ENABLED="True",
        API_ENABLED="true",
        CONCURRENCY="5",
        POLL_INTERVAL="500ms",
        LEASE='"2m"',
        DEFAULT_TIMEOUT="null",
        TIMEOUT='{"email.send": "30s", "report": null}',
        PROCESSOR_LIMITS__email__cluster_wide="10",
        PROCESSOR_LIMITS__email__PER_NODE="2",
        RETRY__email__max_attempts="null",
        RETRY__email__base_backoff="1m",
        DEFAULT_RETRY__MAX_ATTEMPTS="3",
        RETENTION__SUCCEEDED="0",
        RETENTION__dead="30d",
        API_TOKENS__abc="read",
        REDACT='["password"]',
        WAKEUP="poll",
        MAX_PAYLOAD="64KiB",
        TASK_TABLE="task",
    )
    assert settings == Settings(
        api_enabled=True,
        concurrency=5,
        poll_interval=0.5,
        lease=120,
        default_timeout=None,
        timeout={"email.send": 30, "report": None},
        processor_limits={"email": Limits(2, 10)},
        retry={"email": RetryPolicy(None, 60)},
        default_retry=RetryPolicy(3),
        retention=Retention(succeeded=0, dead=30 * DAY),
        api_tokens={"abc": "read"},
        redact=("password",),
        wakeup="poll",
        max_payload=65536,
        task_table="task",
    )


def test_the_defaults_make_the_way_through_the_environment(from_environment: Callable[..., Settings]) -> None:
    """Each default, written into the environment as JSON, is read as the default."""
    defaults = {name.upper(): ast.literal_eval(field.metadata["default"]) for name, field in PROPERTIES.items()}
    assert from_environment(**{name: json.dumps(value) for name, value in defaults.items()}) == Settings()


def test_texts_alone_are_enough(from_environment: Callable[..., Settings]) -> None:
    """A host that parses no JSON gives texts only; they are read all the same."""
    settings = from_environment(
        str, ENABLED="false", CONCURRENCY="5", DEFAULT_TIMEOUT="null", RETENTION='{"succeeded": 0}', DEFAULT_RETRY__multiplier="1.5"
    )
    assert settings == Settings(
        enabled=False, concurrency=5, default_timeout=None, retention=Retention(succeeded=0), default_retry=RetryPolicy(multiplier=1.5)
    )
