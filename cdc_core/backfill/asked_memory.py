"""The memory that a worker asked capture for, and what the log says became of it.

Pure. A worker asks under a new id each time: an id names one memory, remembered from one position.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.backfill.results import Said
from cdc_core.vocabulary import Position


@dataclass(slots=True)
class AskedMemory:
    """Where capture began to remember, None until it has, and whether it no longer does.

    `is_settled` says that the worker sees every change from before that position. `is_forgotten` is
    final: what changed since is not known, so the worker asks for another memory.
    """

    id: str
    remembered_from: Position | None = None
    is_settled: bool = False
    is_forgotten: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether a chunk that is read now can be judged by it."""
        return self.is_settled and not self.is_forgotten

    @property
    def is_answered(self) -> bool:
        """Whether capture has taken up the question."""
        return self.is_forgotten or self.remembered_from is not None

    def note(self, said: Said, position: Position) -> None:
        """Note what capture made of a step that names a memory."""
        if said.get("memory") != self.id:
            return
        if said.get("state") == "void":
            self.is_forgotten = True
        elif said.get("step") == "begin" and self.remembered_from is None:
            self.remembered_from = position
