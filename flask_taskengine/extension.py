"""The Flask extension: wiring, and the verbs an app calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from http import HTTPStatus
from types import EllipsisType
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from flask import Flask, Response, appcontext_pushed, current_app, has_app_context
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import Session, scoped_session
from werkzeug.exceptions import HTTPException

from . import admin, health
from .access import Guarded
from .domain.durations import seconds
from .domain.errors import InvalidArgument
from .domain.limits import Limits
from .domain.retry import RetryPolicy
from .domain.schedule import Timing
from .domain.task import Enqueued, NewTask, TaskFunction
from .engine import enqueue as enqueueing
from .engine import outbox
from .engine.payload import plain_codec
from .engine.processor import TaskProcessor, processor_from_function, processor_from_object
from .engine.registry import Registry
from .managing import ManagingVerbs, Where
from .runtime.host import Host, Write
from .runtime.reactions import ReactionDecorators, Reactions
from .schedules import DeclareOptions, Function, Schedules
from .settings import Settings
from .signals import task_deduplicated, task_enqueued
from .store import migrations
from .store.dialects.base import Dialect
from .telemetry import switch_on

P = ParamSpec("P")
R = TypeVar("R")


class TaskEngine(ManagingVerbs, ReactionDecorators, Guarded):
    """Durable tasks in the app's own database.

    Every verb works on ``db.session``, or on the Session or Connection given as ``session=``, inside the caller's
    transaction. None of them commits, retries or opens a connection of its own.

    Args:
        app: the app, or None and ``init_app`` later.
        db: the Flask-SQLAlchemy extension; by default the one that is set up for the app.
        executor_factory: makes the pool in which a worker runs handlers, given the number of slots; anything with the
            ``submit`` and ``shutdown`` of ``concurrent.futures.Executor``.

    Example:
        >>> engine = TaskEngine(app)
        >>> @engine.task("email.send")
        ... def send_email(payload): ...
        >>> engine.enqueue("email.send", {"to": "a@example.org"}).created
        True
    """

    def __init__(
        self, app: Flask | None = None, db: SQLAlchemy | None = None, *, executor_factory: Callable[[int], Any] | None = None
    ) -> None:
        self.registry = Registry()
        self.reactions = Reactions()
        self.guard = None
        self.schedules = Schedules(self.registry, self._host, self._reach, self._note_run)
        """What can be done to schedules."""
        self.executor_factory = executor_factory
        self._hosts: WeakKeyDictionary[Flask, Host] = WeakKeyDictionary()
        if app is not None:
            self.init_app(app, db)

    def init_app(self, app: Flask, db: SQLAlchemy | None = None) -> None:
        """Bind to an app and check its settings. Never connects to a database.

        Raises:
            ConfigError: the settings are wrong; every fault is listed.
        """
        settings = Settings.from_config(app.config)
        host = Host(
            app=app,
            db=db,
            settings=settings,
            registry=self.registry,
            sender=self,
            reactions=self.reactions,
            schedules=self.schedules.declared,
        )
        self._hosts[app] = host
        app.extensions["taskengine"] = self
        migrations.hide_from_autogenerate(host.names)
        switch_on(host)
        if settings.health_enabled:
            health.serve(host)
        if settings.api_enabled:
            admin.serve(host)
        app.after_request(self._forgive_response)
        app.teardown_request(self._forgive_error)
        if "sqlalchemy" in app.extensions:
            host.sql_engine()
        else:
            appcontext_pushed.connect(self._prepare_late, app)
        if settings.embedded_worker and settings.enabled:
            from .runtime.embedded import Embedded

            host.embedded = Embedded(host)
            host.embedded.arm()

    # --- processors ---------------------------------------------------------------------------------------------------

    def task(
        self,
        task_type: str,
        *,
        schema: Any = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | float | str | None | EllipsisType = ...,
        limits: Limits | None = None,
        isolation: Literal["thread", "process"] = "thread",
        store_result: bool = False,
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]:
        """Make a function the processor of a task type; it stays callable and gets an ``enqueue``.

        Args:
            task_type: the key under which tasks are enqueued.
            schema: a marshmallow Schema for the payload; by default the annotation of the payload decides.
            retry: what differs from ``TASKENGINE_DEFAULT_RETRY``.
            timeout: a duration; None for no timeout, by default ``TASKENGINE_DEFAULT_TIMEOUT``.
            limits: how many run at once.
            isolation: ``"process"`` runs the handler in a process of its own, which can be killed.
            store_result: keep what the handler returns in the column ``result``.

        Raises:
            ConfigError: an option or the handler's signature is wrong.
            DuplicateTypeError: the type has a processor already.
        """

        def register(function: Callable[P, R]) -> TaskFunction[P, R]:
            processor = processor_from_function(
                function,
                task_type,
                schema=schema,
                retry=retry,
                timeout=timeout,
                limits=limits,
                isolation=isolation,
                store_result=store_result,
            )
            self.registry.add(processor)

            def enqueue(payload: Any = None, **options: Any) -> Enqueued:
                return self.enqueue(task_type, payload, **options)

            with suppress(AttributeError):  # a method of an object, say, can have no attributes
                function.enqueue = enqueue  # type: ignore[attr-defined]
            return cast(TaskFunction[P, R], function)

        return register

    def register(self, processor: TaskProcessor[Any]) -> None:
        """Register an instance of a ``TaskProcessor``.

        Raises:
            ConfigError: one of its options is wrong.
            DuplicateTypeError: the type has a processor already.
        """
        self.registry.add(processor_from_object(processor))

    def schedule(self, name: str, schedule: Timing, **options: Unpack[DeclareOptions]) -> Callable[[Function], Function]:
        """Run a function whenever a schedule says; see ``Schedules.declare``."""
        return self.schedules.declare(name, schedule, **options)

    # --- enqueue ------------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        task_type: str,
        payload: Any = None,
        *,
        priority: int = 0,
        idempotency_key: str | None = None,
        max_attempts: int | None = None,
        session: Where | None = None,
    ) -> Enqueued:
        """Write a task in the caller's transaction: it exists exactly when that commits. Never commits.

        Args:
            task_type: may be one that this app does not process.
            payload: plain JSON, or what the processor's payload type takes.
            priority: higher runs first.
            idempotency_key: while a task with this key exists, no second one is written.
            max_attempts: instead of the policy's.
            session: a Session or Connection to use instead of ``db.session``.

        Raises:
            PayloadError: the payload can not be written; ``faults`` names each place.
            KeyBusyError: another open transaction holds the key; yours is still usable.
            InvalidArgument: another argument is wrong.
        """
        return self._write(
            session, NewTask(type=task_type, payload=payload, priority=priority, idempotency_key=idempotency_key, max_attempts=max_attempts)
        )

    def enqueue_at(self, task_type: str, payload: Any, when: datetime, **options: Any) -> Enqueued:
        """Write a task that is not due before ``when``, an aware datetime; otherwise like ``enqueue``."""
        if when is None:
            raise InvalidArgument("the time to run at is None: give an aware datetime, or call enqueue")
        return self._write(options.pop("session", None), NewTask(type=task_type, payload=payload, available_at=when, **_options(options)))

    def enqueue_after(self, task_type: str, payload: Any, delay: timedelta | float | str, **options: Any) -> Enqueued:
        """Write a task that is due ``delay`` after the database's now; otherwise like ``enqueue``."""
        try:
            wait = seconds(delay)
        except ValueError as error:
            raise InvalidArgument(f"delay: {error}") from None
        return self._write(options.pop("session", None), NewTask(type=task_type, payload=payload, delay=wait, **_options(options)))

    def enqueue_many(self, tasks: Iterable[Mapping[str, Any]], *, session: Where | None = None) -> list[Enqueued]:
        """Write many tasks in few statements, in the caller's transaction; return a result for each, in order. Never commits.

        Args:
            tasks: mappings with the key ``type`` and, where needed, ``payload``, ``priority``, ``idempotency_key``,
                ``max_attempts`` and ``available_at``. Those without a key get their ids in the order of the call, and start in
                it where their priority is the same.

        Raises:
            PayloadError, KeyBusyError, InvalidArgument: as ``enqueue``; none of the tasks is written.
        """
        host = self._host()
        news = [self._prepared(host, enqueueing.from_mapping(place, task)) for place, task in enumerate(tasks)]
        if not news:
            return []
        target, connection, dialect = self._target(host, session)
        return self._written(host, target, news, lambda traced: enqueueing.enqueue_many(connection, dialect, traced))

    def _write(self, session: Where | None, new: NewTask) -> Enqueued:
        host = self._host()
        prepared = self._prepared(host, new)
        target, connection, dialect = self._target(host, session)
        return self._written(host, target, [prepared], lambda traced: [enqueueing.enqueue(connection, dialect, traced[0])])[0]

    def _prepared(self, host: Host, new: NewTask) -> NewTask:
        processor = self.registry.get(new.type)
        codec = plain_codec(new.type) if processor is None else processor.codec
        return enqueueing.prepared(new, codec, host.settings.max_payload)

    def _written(self, host: Host, target: Where, news: list[NewTask], write: Write) -> list[Enqueued]:
        made = write(news) if host.tracing is None else host.tracing.enqueue(news, write)
        self._note(host, target, made, [new.type for new in news])
        return made

    def _note(self, host: Host, target: Where, made: list[Enqueued], types: list[str]) -> None:
        if not isinstance(target, Session):
            return
        created = [(result.id, task_type) for result, task_type in zip(made, types, strict=True) if result.created]

        def announce() -> None:
            for result, task_type in zip(made, types, strict=True):
                host.announce(task_enqueued if result.created else task_deduplicated, task_id=result.id, task_type=task_type)
            if created:
                host.wake()

        outbox.note(target, announce, created)

    def _note_run(self, session: Where | None, made: Enqueued, task_type: str) -> None:
        self._note(self._host(), self._reach(session)[0], [made], [task_type])

    # --- schema -------------------------------------------------------------------------------------------------------

    def create_all(self) -> None:
        """Create the tables, indexes and triggers, for apps that call ``db.create_all()``. Commits a transaction of its own."""
        host = self._host()
        with host.sql_engine().begin() as connection:
            migrations.create_all(connection, host.names)

    # --- wiring -------------------------------------------------------------------------------------------------------

    def host(self, app: Flask) -> Host:
        """Return what the engine knows of an app it is bound to."""
        return self._hosts[app]

    def _prepare_late(self, app: Flask, **_: Any) -> None:
        """Set up the database of an app that has got its Flask-SQLAlchemy after the engine."""
        if "sqlalchemy" in app.extensions:
            appcontext_pushed.disconnect(self._prepare_late, app)
            self._hosts[app].sql_engine()

    def _host(self) -> Host:
        if has_app_context():
            host = self._hosts.get(current_app._get_current_object())  # type: ignore[attr-defined]
            if host is not None:
                return host
        if len(self._hosts) == 1:
            return next(iter(self._hosts.values()))
        raise RuntimeError("no app is bound to this TaskEngine here: call engine.init_app(app) and work inside app.app_context()")

    def _target(self, host: Host, session: Where | None) -> tuple[Session | sa.Connection, sa.Connection, Dialect]:
        target = host.database().session if session is None else session
        if isinstance(target, scoped_session):
            target = target()
        connection = target if isinstance(target, sa.Connection) else target.connection()
        return target, connection, host.dialect(connection.dialect.name)

    def _reach(self, session: Where | None) -> tuple[Session | sa.Connection, sa.Connection, Dialect]:
        return self._target(self._host(), session)

    def _forgive_error(self, error: BaseException | None) -> None:
        """A request that fails rolls back on purpose: what it has enqueued is no forgotten commit."""
        if error is not None and "sqlalchemy" in current_app.extensions:
            registry = self._host().database().session.registry
            if registry.has():
                outbox.discard(registry())

    def _forgive_response(self, response: Response) -> Response:
        """A request that answers with an error fails too."""
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            self._forgive_error(HTTPException(response=response))
        return response


def _options(options: dict[str, Any]) -> dict[str, Any]:
    unknown = set(options) - {"priority", "idempotency_key", "max_attempts"}
    if unknown:
        raise TypeError(f"unknown argument {', '.join(sorted(unknown))}: give priority, idempotency_key, max_attempts or session")
    return options
