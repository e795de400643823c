"""The memory that a worker asked capture for, and what the log says became of it.

Pure. A worker asks under a new id each time. So an id names one memory that begins at one position.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.backfill.results import Said
from cdc_core.vocabulary import Position


@dataclass(slots=True)
class AskedMemory:
    """The position where capture began to remember, and whether the memory is of use.

    `remembered_from` is None until the log has that position. `is_settled`: the worker sees every
    change from before it. `is_forgotten` is final: capture may not know what changed since, so the
    worker asks for another memory.
    """

    id: str
    remembered_from: Position | None = None
    is_settled: bool = False
    is_forgotten: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether capture can judge a chunk that is read now by this memory."""
        return self.is_settled and not self.is_forgotten

    @property
    def is_answered(self) -> bool:
        """Whether capture has answered: it began to remember, or it refused."""
        return self.is_forgotten or self.remembered_from is not None

    def note(self, said: Said, position: Position) -> None:
        """Note what capture made of a step that names a memory."""
        if said.get("memory") != self.id:
            return
        if said.get("state") == "void":
            self.is_forgotten = True
        elif said.get("step") == "begin" and self.remembered_from is None:
            self.remembered_from = position
