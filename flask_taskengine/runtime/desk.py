"""What a process that runs tasks writes for the outside to see."""

from __future__ import annotations

from dataclasses import dataclass, field

from .cells import Cells
from .shared import SharedNumber


@dataclass(slots=True)
class Desk:
    """What one child writes; the next one that gets the desk goes on from there."""

    pid: SharedNumber = field(default_factory=SharedNumber)
    """The child's, written by the supervisor; 0 while nobody sits there."""
    seated: SharedNumber = field(default_factory=SharedNumber)
    """1 from when the child has begun to write: what stands there before is another one's."""
    ready: SharedNumber = field(default_factory=SharedNumber)
    """1 while the child has a lease, so that it may claim."""
    cells: Cells = field(default_factory=Cells)
