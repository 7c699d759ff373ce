"""The settings: their names, defaults and meanings in one place, read and checked once."""

# _setting returns a field:
# ruff: noqa: RUF009

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from types import EllipsisType
from typing import Any, Literal

from .domain.durations import seconds, spoken
from .domain.errors import ConfigError
from .domain.limits import Limits
from .domain.retention import Retention
from .domain.retry import RetryPolicy
from .settings_parsing import Faults, as_limits, as_retention, as_retry_policy, per_type, tokens, unknown
from .settings_values import Parse, choice, dsn, flag, identifier, names, off_or, optional, positive, size, url_prefix, whole

__all__ = ["PREFIX", "Retention", "Settings", "reference"]

PREFIX = "TASKENGINE_"

OTHER_TABLES = ("task_archive", "attempt", "node", "type", "lease", "schedule", "version")
"""What follows the prefix in the names of the tables beside the task's."""

_RETENTION = {"succeeded": "7d", "cancelled": "7d", "failed": None, "dead": None, "strategy": "delete", "interval": "1h"}
_RETRY = {"max_attempts": 5, "base_backoff": "5s", "multiplier": 2, "max_backoff": "10m", "jitter": 0.2}


def _setting(default: Any, parse: Parse[Any], meaning: str, *, secret: bool = False) -> Any:
    """Declare a setting. The default is written and read as a host would write it, so the reference shows what can be copied."""
    return field(
        default_factory=lambda: parse(default),
        repr=not secret,
        hash=False if isinstance(parse(default), dict) else None,
        metadata={"parse": parse, "default": repr(default).replace("'", '"'), "meaning": meaning, "secret": secret},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one app, checked; durations are in seconds, sizes in bytes. ``from_config`` reads them from ``app.config``."""

    enabled: bool = _setting(True, flag, "False: this app enqueues only, its worker command refuses to start.")
    concurrency: int = _setting(8, whole(1), "Tasks in flight per worker process.")
    batch_size: int = _setting(100, whole(1), "Most rows per claim; never more than the free slots.")
    poll_interval: float = _setting("5s", seconds, "How often a worker looks for due tasks when no wake-up comes.")
    default_retry: RetryPolicy = _setting(
        _RETRY,
        as_retry_policy,
        "The retry policy, a dict or a `RetryPolicy`; `max_attempts` None retries for ever; left out keys keep the default.",
    )
    retry: Mapping[str, RetryPolicy] = _setting(
        {}, per_type(as_retry_policy), "Retry policies per task type; wins over the processor's, which wins over the default, key by key."
    )
    default_timeout: float | None = _setting(
        "5m", optional(seconds, "for no timeout"), "How long an attempt may take; None sets no timeout."
    )
    timeout: Mapping[str, float | None] = _setting(
        {}, per_type(optional(seconds, "for no timeout")), "Timeouts per task type; wins over the processor's, which wins over the default."
    )
    processor_limits: Mapping[str, Limits] = _setting(
        {},
        per_type(as_limits),
        'Limits per task type, such as `{"email": {"per_node": 2, "cluster_wide": 10}}`; wins over the processor\'s, key by key; '
        "of per-node and cluster-wide limits, and of nodes that differ, the stricter holds.",
    )
    lease: float = _setting("60s", positive, "A node that is silent for longer than this has lost its tasks.")
    heartbeat_interval: float = _setting("15s", positive, "How often a node says that it is alive; at most half of `LEASE`.")
    shutdown_timeout: float = _setting("30s", seconds, "How long running tasks may go on when the worker is told to stop.")
    unknown_type_grace: float = _setting(
        "5m", seconds, "A due task whose type no live node knows starts to count failed attempts after this."
    )
    isolation_memory: int | None = _setting(
        None,
        optional(size, "for no cap"),
        'Memory that an attempt with isolation="process" may take beyond the app\'s own, such as "512MiB"; None sets no cap.',
    )
    max_payload: int = _setting("1MiB", size, "Larger payloads are refused at enqueue.")
    embedded_worker: bool = _setting(
        False, flag, 'Run the worker inside the serving web process, once per host; leaves types with isolation="process" to others.'
    )
    retention: Retention = _setting(
        _RETENTION,
        as_retention,
        "How long ended tasks are kept, per status; None keeps them, `succeeded` 0 deletes at completion; "
        "`strategy` is delete or archive; left out keys keep the default.",
    )
    wakeup: Literal["auto", "notify", "poll"] = _setting(
        "auto", choice("auto", "notify", "poll"), "How workers learn of due tasks: notify, poll, or auto, which falls back by itself."
    )
    listen_url: str | None = _setting(
        None,
        optional(dsn, "to use the app's own"),
        "Direct address of the database for the listener, where a pooler stands in between.",
        secret=True,
    )
    api_enabled: bool = _setting(False, flag, "Serve the admin blueprint.")
    api_url_prefix: str = _setting("/taskengine", url_prefix, "Path below which the admin blueprint and the health route stand.")
    api_tokens: Mapping[str, Literal["read", "read-write"]] = _setting(
        {}, tokens, "Tokens that open the API without a guard function, each with read or read-write.", secret=True
    )
    api_unprotected: bool = _setting(False, flag, "True: everybody may use the API, without a guard function or a token.")
    redact: tuple[str, ...] = _setting((), names, "Payload fields that are shown as `***`.")
    health_enabled: bool = _setting(True, flag, "Serve the health route, also while the API is off.")
    health_min_workers: int = _setting(0, whole(0), "The health route answers 503 while fewer live workers than this are known.")
    health_max_due_age: float | None = _setting(
        None,
        optional(seconds, "to warn only"),
        "The health route answers 503 while a task is due for longer; None warns only.",
    )
    tracing: Literal[False, "child", "link"] = _setting(
        False,
        off_or("child", "link"),
        "Make OpenTelemetry spans: child continues the trace of the enqueue in the run, link starts a new one that is linked to it.",
    )
    metrics: bool = _setting(False, flag, "Count for Prometheus, in the default registry of `prometheus_client`.")
    table_prefix: str = _setting(
        "taskengine_",
        identifier(30, "give a prefix; TASKENGINE_TASK_TABLE names the task table alone"),
        "What the names of the engine's tables, indexes and triggers start with.",
    )
    task_table: str | None = _setting(None, optional(identifier(40), "for the prefix and 'task'"), "Another name for the task table alone.")
    schema: str | None = _setting(None, optional(identifier(40), "for the connection's own"), "Schema in which the engine's tables stand.")
    sqlite_pragmas: bool = _setting(True, flag, "Set WAL and a busy time-out on the host's SQLite engine.")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Read the keys that start with ``TASKENGINE_``, as code or ``from_prefixed_env`` has set them.

        Raises:
            ConfigError: keys are unknown or values are wrong; ``faults`` lists all of them.
        """
        known = {_key(declared): declared for declared in fields(cls)}
        faults, values = Faults(), {}
        given = {key: value for key, value in config.items() if str(key).startswith(PREFIX)}
        for key, value in given.items():
            with faults.at(key):
                if key not in known:
                    raise ValueError(unknown(key.removeprefix(PREFIX), (declared.name.upper() for declared in known.values()), PREFIX))
                values[known[key].name] = known[key].metadata["parse"](value)
        settings = cls(**values)
        sound = {declared.name for key, declared in known.items() if key not in given or declared.name in values}
        faults.found += [(key, fault) for key, involved, fault in settings._contradictions() if sound.issuperset(involved)]
        if faults.found:
            raise ConfigError([f"{path}: {fault}" for path, fault in faults.found])
        return settings

    def _contradictions(self) -> Iterator[tuple[str, set[str], str]]:
        """Yield the key, the fields involved and the fault of each relation that does not hold."""
        if self.heartbeat_interval > self.lease / 2:
            fault = (
                f"{spoken(self.heartbeat_interval)} is more than half of TASKENGINE_LEASE, which is {spoken(self.lease)}: "
                f"give at most {spoken(self.lease / 2)}, or a TASKENGINE_LEASE of at least {spoken(self.heartbeat_interval * 2)}"
            )
            yield f"{PREFIX}HEARTBEAT_INTERVAL", {"heartbeat_interval", "lease"}, fault
        if self.task_table in {self.table_prefix + name for name in OTHER_TABLES}:
            fault = f"{self.task_table!r} is another table of the engine: give a name that is free"
            yield f"{PREFIX}TASK_TABLE", {"task_table", "table_prefix"}, fault

    def warnings(self) -> tuple[str, ...]:
        """Return a sentence for each setting that is allowed but is seldom what was meant."""
        timeouts = {"DEFAULT_TIMEOUT": self.default_timeout} | {f"TIMEOUT[{one!r}]": timeout for one, timeout in self.timeout.items()}
        doubtful = [
            *((timeout == 0, f"{key} is 0: every attempt times out at once; None sets no timeout") for key, timeout in timeouts.items()),
            (self.shutdown_timeout == 0, "SHUTDOWN_TIMEOUT is 0: a worker that stops interrupts its tasks at once"),
            (self.lease < 5, f"LEASE is {spoken(self.lease)}: after so short a pause a node's tasks run elsewhere too; give 5 s or more"),
            (self.poll_interval == 0, "POLL_INTERVAL is 0: an idle worker asks the database without a pause"),
            (self.unknown_type_grace == 0, "UNKNOWN_TYPE_GRACE is 0: tasks of a type that is being deployed fail until a node knows it"),
            (self.api_enabled and self.api_unprotected, "API_UNPROTECTED is on: whoever reaches the app may read, cancel and delete tasks"),
            (self.embedded_worker and not self.enabled, f"EMBEDDED_WORKER has no effect while {PREFIX}ENABLED is off"),
            (self.listen_url is not None and self.wakeup == "poll", f'LISTEN_URL has no effect while {PREFIX}WAKEUP is "poll"'),
            (
                self.retention.deletes_at_completion and self.retention.strategy == "archive",
                'RETENTION has "succeeded" 0: tasks that succeed are deleted at completion and never archived',
            ),
        ]
        return tuple(PREFIX + warning for holds, warning in doubtful if holds)

    def retry_policy(self, task_type: str, processor: RetryPolicy | None) -> RetryPolicy:
        """Return the policy in force: ``RETRY`` over the processor's over ``DEFAULT_RETRY``, key by key."""
        policy = self.default_retry if processor is None else processor.over(self.default_retry)
        return self.retry[task_type].over(policy) if task_type in self.retry else policy

    def limits(self, task_type: str, processor: Limits | None) -> Limits:
        """Return the limits in force: ``PROCESSOR_LIMITS`` over the processor's, key by key."""
        return self.processor_limits.get(task_type, Limits()).over(processor or Limits())

    def timeout_for(self, task_type: str, processor_timeout: float | EllipsisType | None) -> float | None:
        """Return the timeout in force, in seconds; ``None`` is none. ``...`` says that the processor sets none of its own."""
        if task_type in self.timeout:
            return self.timeout[task_type]
        return self.default_timeout if isinstance(processor_timeout, EllipsisType) else processor_timeout


def reference() -> str:
    """Return the settings as a Markdown table, as it stands in the README."""
    rows = [f"| `{_key(one)}` | `{one.metadata['default']}` | {one.metadata['meaning']} |" for one in fields(Settings)]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows]) + "\n"


def _key(declared: Field[Any]) -> str:
    return PREFIX + declared.name.upper()
