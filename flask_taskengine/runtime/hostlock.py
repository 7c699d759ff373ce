"""A lock that one process per host has, and that the kernel frees when that process dies."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from .host import Host

_LONGEST = 1000


class HostLock:
    """The right to run the embedded worker of a database on this host, for this user.

    Its file also holds the name of the holder's node, so that who takes over from a process that died knows whose tasks to take.
    """

    def __init__(self, host: Host) -> None:
        url, names = host.sql_engine().url, host.names
        place = (url.get_backend_name(), url.host, url.port, url.database, names.schema, names.prefix, names.task)
        digest = blake2b(repr(place).encode(), digest_size=10).hexdigest()
        self.path = Path(tempfile.gettempdir()) / f"taskengine-{os.getuid()}-{digest}.lock"
        self._file: int | None = None

    def take(self) -> bool:
        """Take the lock unless another process has it."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return True

    def read(self) -> str:
        """Return what the last holder has written and not taken back."""
        return "" if self._file is None else os.pread(self._file, _LONGEST, 0).decode(errors="replace")

    def write(self, text: str) -> None:
        """Leave a note for the next holder."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode(), 0)

    def release(self) -> None:
        """Let another process have it."""
        if self._file is not None:
            self.write("")
            self.forget()

    def forget(self) -> None:
        """Close the file in a forked process: the lock is the parent's, and must not outlive it here."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)
