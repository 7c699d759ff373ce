"""The settings: what is refused, what is warned of, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest

from flask_taskengine.domain.errors import ConfigError
from flask_taskengine.settings import OTHER_TABLES, Settings
from flask_taskengine.store.tables import Names, Tables


def read(**settings: Any) -> Settings:
    """Read settings that are given without their prefix."""
    return Settings.from_config({f"TASKENGINE_{key}": value for key, value in settings.items()})


def faults(**settings: Any) -> tuple[str, ...]:
    """Read settings that are wrong, and return what is said."""
    with pytest.raises(ConfigError) as caught:
        read(**settings)
    return caught.value.faults


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        *[("ENABLED", value, "is neither true nor false: give True or False") for value in (None, 2, "", "maybe", [1], 1.0)],
        *[("CONCURRENCY", value, "give a whole number from 1") for value in (None, 0, -1, True, 2.0, "", "many", "1.5", 2**31, "9" * 30)],
        *[("BATCH_SIZE", value, "give a whole number from 1") for value in (None, 0, "-1")],
        *[("POLL_INTERVAL", value, "give a ") for value in (None, -1, "-5s", "soon", True, float("nan"))],
        *[("LEASE", value, "give a ") for value in (None, 0, "0s", -1, "101y")],
        ("LEASE", 0, "0 is too short: give a duration above 0"),
        ("HEARTBEAT_INTERVAL", 0, "0 is too short: give a duration above 0"),
        ("SHUTDOWN_TIMEOUT", None, "give a timedelta"),
        ("UNKNOWN_TYPE_GRACE", None, "give a timedelta"),
        ("DEFAULT_TIMEOUT", -1, "-1 is out of range: give a duration from 0 to 100 years, or None for no timeout"),
        *[("MAX_PAYLOAD", value, "is no size: give bytes from 1") for value in (None, 0, -1, "0", "1 TiB", "big", 1.5, "4GiB", True)],
        *[("WAKEUP", value, "give auto, notify or poll") for value in (None, "", "listen", 1)],
        *[("API_URL_PREFIX", value, 'give a path that starts with "/"') for value in (None, "", "tasks", "/a b", "//", "/<x>", "/a?b", 1)],
        *[("REDACT", value, "is no list of names") for value in (None, 5, [1], ["a", ""], {"a": 1})],
        ("TABLE_PREFIX", "", "TASKENGINE_TASK_TABLE names the task table alone"),
        *[
            ("TABLE_PREFIX", value, "give at most 30 lower-case letters")
            for value in (None, "a" * 31, "1a", "A_", "a-", 'a"', "a\n", "ä_", 5)
        ],
        *[
            (key, value, "give at most 40 lower-case letters")
            for key in ("TASK_TABLE", "SCHEMA")
            for value in ("", "a" * 41, "1a", "task; DROP TABLE x", 'x"', "a.b", "x\x00", "x\n", " x", "'", "Task", 5)
        ],
        *[("TASK_TABLE", f"taskengine_{name}", "is another table of the engine") for name in OTHER_TABLES],
        *[("TIMEOUT", value, "is no dict: give a dict") for value in (None, 5, "5m", "[1]", ["a"])],
        *[("API_TOKENS", value, "give a dict") for value in (None, "abc", ["abc"])],
        ("DEFAULT_RETRY", None, "None is no dict"),
        ("RETENTION", None, "None is no dict"),
        ("PROCESSOR_LIMITS", {"a": 5}, "5 is no dict"),
        ("PROCESSOR_LIMITS", {5: {}}, "this is no task type"),
    ],
)
def test_a_wrong_value_is_refused_with_its_remedy(key: str, value: Any, said: str) -> None:
    """A wrong value is one fault that names the key and says what to give; None, 0 and negative are told apart."""
    (fault,) = faults(**{key: value})
    assert fault.startswith(f"TASKENGINE_{key}")
    assert said in fault


@pytest.mark.parametrize(
    ("key", "value", "path", "said"),
    [
        ("PROCESSOR_LIMITS", {"a": {"per_node": 0}}, "['a']['per_node']", "or None for no limit"),
        ("PROCESSOR_LIMITS", {"a": {"cluster_wide": -1}}, "['a']['cluster_wide']", "give a whole number from 1"),
        ("PROCESSOR_LIMITS", {"a": {"clusterwide": 1}}, "['a']['clusterwide']", "did you mean cluster_wide?"),
        ("RETRY", {"a": {"max_attempts": 0}}, "['a']['max_attempts']", "or None to retry for ever"),
        ("RETRY", {"a": {"base_backoff": -1}}, "['a']['base_backoff']", "is out of range"),
        ("RETRY", {"a": {"multiplier": "0.5"}}, "['a']['multiplier']", "give a number from 1"),
        ("RETRY", {"a": {"jitter": None}}, "['a']['jitter']", "give a number from 0 to 1"),
        ("DEFAULT_RETRY", {"attempts": 3}, "['attempts']", "did you mean max_attempts?"),
        ("DEFAULT_RETRY", {"q": 3}, "['q']", "give max_attempts, base_backoff, multiplier, max_backoff or jitter"),
        ("TIMEOUT", {"a": 1, "b": "x"}, "['b']", "is no duration"),
        ("RETENTION", {"succeeded": -1}, "['succeeded']", "or None to keep them"),
        ("RETENTION", {"suceeded": 1}, "['suceeded']", "did you mean succeeded?"),
        ("RETENTION", {"strategy": "burn"}, "['strategy']", "give delete or archive"),
        ("RETENTION", {"interval": 0}, "['interval']", "give a duration above 0"),
    ],
)
def test_a_fault_inside_a_dict_is_named_by_its_path(key: str, value: Any, path: str, said: str) -> None:
    """The fault names the entry, not only the setting."""
    (fault,) = faults(**{key: value})
    assert fault.startswith(f"TASKENGINE_{key}{path}: ")
    assert said in fault


def test_no_fault_tells_a_secret() -> None:
    """Messages about tokens and addresses, also swapped or misplaced ones, do not repeat them."""
    said = faults(API_TOKENS={"s3cret with space": "read", "read": "s3cret", "s3cret": None}, LISTEN_URL="mysql://u:s3cret@h/db")
    assert [fault.split(":")[0] for fault in said] == [
        *(f"TASKENGINE_API_TOKENS[token {place}]" for place in (1, 2, 3)),
        "TASKENGINE_LISTEN_URL",
    ]
    assert "s3cret" not in str(said) + str(faults(API_TOKENS="s3cret"))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("CONCURENCY", "did you mean TASKENGINE_CONCURRENCY?"),
        ("POLLINTERVAL", "did you mean TASKENGINE_POLL_INTERVAL?"),
        ("RETRIES", "did you mean TASKENGINE_RETRY?"),
        ("LIMITS", "did you mean TASKENGINE_PROCESSOR_LIMITS?"),
        ("concurrency", "did you mean TASKENGINE_CONCURRENCY?"),
        ("FLUX", "remove it, or look its name up in the settings reference"),
        ("", "remove it"),
    ],
)
def test_an_unknown_key_is_a_fault(key: str, said: str) -> None:
    """A key that starts like ours and is none is refused, with the key that was probably meant."""
    (fault,) = faults(**{key: 1})
    assert fault.startswith(f"TASKENGINE_{key}: unknown: ")
    assert said in fault


def test_one_error_lists_every_fault() -> None:
    """All that is wrong is told at once, in the message too."""
    wrong = {
        "CONCURENCY": 1,
        "CONCURRENCY": 0,
        "LEASE": "10s",
        "RETRY": {"a": {"jitter": 2, "jiter": 0}, "b": 5},
        "TABLE_PREFIX": "",
        "TASK_TABLE": "a b",
    }
    with pytest.raises(ConfigError) as caught:
        read(**wrong)
    paths = [fault.split(": ")[0].removeprefix("TASKENGINE_") for fault in caught.value.faults]
    assert paths == [
        "CONCURENCY",
        "CONCURRENCY",
        "RETRY['a']['jitter']",
        "RETRY['a']['jiter']",
        "RETRY['b']",
        "TABLE_PREFIX",
        "TASK_TABLE",
        "HEARTBEAT_INTERVAL",
    ]
    assert str(caught.value).splitlines() == list(caught.value.faults)


def test_the_heartbeat_fits_the_lease_twice() -> None:
    """Two heartbeats fit a lease, or the fault says both ways out; a value that is wrong by itself brings no second fault."""
    assert read(LEASE=30, HEARTBEAT_INTERVAL=15).lease == 30
    (fault,) = faults(LEASE=29)
    assert fault.startswith("TASKENGINE_HEARTBEAT_INTERVAL: 15 s is more than half of TASKENGINE_LEASE, which is 29 s: ")
    assert fault.endswith("give at most 14.5 s, or a TASKENGINE_LEASE of at least 30 s")
    assert len(faults(LEASE="x", HEARTBEAT_INTERVAL="1h")) == 1


def test_every_table_but_the_tasks_own_is_reserved() -> None:
    """The task table can not be given the name of another table of ours."""
    tables = {table.name for table in Tables(Names()).metadata.tables.values()}
    assert tables <= {"taskengine_task", *(f"taskengine_{name}" for name in OTHER_TABLES)}
    assert read(TASK_TABLE="taskengine_node", TABLE_PREFIX="other_").task_table == "taskengine_node"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"DEFAULT_TIMEOUT": 0}, "TASKENGINE_DEFAULT_TIMEOUT is 0: every attempt times out at once"),
        ({"TIMEOUT": {"a": 0, "b": 1}}, "TASKENGINE_TIMEOUT['a'] is 0"),
        ({"SHUTDOWN_TIMEOUT": 0}, "TASKENGINE_SHUTDOWN_TIMEOUT is 0"),
        ({"LEASE": 4, "HEARTBEAT_INTERVAL": 1}, "TASKENGINE_LEASE is 4 s"),
        ({"POLL_INTERVAL": 0}, "TASKENGINE_POLL_INTERVAL is 0"),
        ({"UNKNOWN_TYPE_GRACE": 0}, "TASKENGINE_UNKNOWN_TYPE_GRACE is 0"),
        ({"API_ENABLED": True, "API_UNPROTECTED": True}, "TASKENGINE_API_UNPROTECTED is on"),
        ({"EMBEDDED_WORKER": True, "ENABLED": False}, "TASKENGINE_EMBEDDED_WORKER has no effect"),
        ({"LISTEN_URL": "postgresql://h/d", "WAKEUP": "poll"}, "TASKENGINE_LISTEN_URL has no effect"),
        ({"RETENTION": {"succeeded": 0, "strategy": "archive"}}, "never archived"),
    ],
)
def test_what_is_allowed_but_seldom_meant_is_a_warning(settings: dict[str, Any], said: str) -> None:
    """A warning is no fault: the settings are read, and one sentence says what will happen."""
    (warning,) = read(**settings).warnings()
    assert said in warning


@pytest.mark.parametrize(
    "settings", [{"API_UNPROTECTED": True}, {"API_ENABLED": True}, {"RETENTION": {"succeeded": 0}}, {"DEFAULT_TIMEOUT": None}]
)
def test_what_is_meant_is_no_warning(settings: dict[str, Any]) -> None:
    """Half of a doubtful pair, and None where it is documented, are quiet."""
    assert read(**settings).warnings() == ()
