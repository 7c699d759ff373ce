"""Hides the engine's tables from the autogenerate of a host's own Alembic, which would otherwise propose to drop them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import sqlalchemy as sa

from .tables import Names, Tables

_logger = logging.getLogger("flask_taskengine.migrations")
_hidden: set[Names] = set()
_PLUGIN = "alembic.autogenerate.taskengine"
"""A host's environment takes every plugin under this prefix, unless it names its own choice."""


def hide_from_autogenerate(names: Names) -> None:
    """Keep these tables out of every autogenerate of this process. Connects to nothing and does not import Alembic.

    Exactly the engine's tables in its schema are hidden; a host's table of the same name in another schema is not.
    """
    _hidden.add(names)
    if "alembic" in sys.modules:
        _register()
    elif not any(isinstance(finder, _AlembicFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AlembicFinder())


def include_object(item: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
    """Say whether an object is the host's, for an ``env.py`` that chooses its autogenerate plugins itself.

    Example::

        context.configure(..., include_object=include_object)
    """
    return kind != "table" or (item.schema, item.name) not in _tables(None)


def _tables(default_schema: str | None) -> set[tuple[str | None, str]]:
    found = set()
    for names in _hidden:
        own = [*(table.name for table in Tables(names).metadata.sorted_tables), names.version_table]
        found |= {(names.schema or default_schema, name) for name in own}
    return found


def _hide(autogenerate: Any, upgrade_ops: Any, schemas: Any) -> Any:
    """Alembic's comparator for whole schemas, run before its own."""
    from alembic.util import PriorityDispatchResult

    default: str | None = autogenerate.dialect.default_schema_name
    tables = _tables(default)

    def is_hosts(item: sa.Table, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        return kind != "table" or (item.schema or default, item.name) not in tables

    try:
        autogenerate._object_filters.append(is_hosts)  # noqa: SLF001 - Alembic has no public way; guarded
    except AttributeError:
        _warn()
    return PriorityDispatchResult.CONTINUE


@cache
def _register() -> None:
    try:
        from alembic.runtime.plugins import Plugin
        from alembic.util import DispatchPriority
    except ImportError:
        _warn()
        return
    Plugin(_PLUGIN).add_autogenerate_comparator(_hide, "schema", "taskengine", priority=DispatchPriority.FIRST)


def _warn() -> None:
    _logger.warning(
        "this version of Alembic does not let Flask-TaskEngine hide its tables from autogenerate, which may propose to drop them:"
        " pass include_object=flask_taskengine.store.autogenerate.include_object to context.configure, or to Flask-Migrate's Migrate"
    )


class _AlembicFinder(MetaPathFinder):
    """Registers once the host imports Alembic: importing it for every web process would cost each a tenth of a second."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "alembic":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _AlembicLoader(spec.loader)
        return spec


class _AlembicLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register()
