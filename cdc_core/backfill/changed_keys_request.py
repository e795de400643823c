"""The changed keys that a worker asked capture to remember, and what the log says about them.

Pure. A worker uses a new id for each request. So one id has exactly one start position.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.backfill.results import Said
from cdc_core.vocabulary import Position


@dataclass(slots=True)
class ChangedKeysRequest:
    """A worker's request to remember changed keys, and the answer of capture.

    `remembered_from` is the position where capture began to remember; None until the log has it.
    `is_settled`: the worker sees every change from before that position. `is_forgotten` is final:
    capture may not know every key that changed since, or the worker missed answers of capture. So
    the worker makes another request.
    """

    id: str
    remembered_from: Position | None = None
    is_settled: bool = False
    is_forgotten: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether capture can find the stale rows of a chunk that the worker reads now."""
        return self.is_settled and not self.is_forgotten

    @property
    def is_answered(self) -> bool:
        """Whether capture has answered: it began to remember, or it refused."""
        return self.is_forgotten or self.remembered_from is not None

    def note(self, said: Said, position: Position) -> None:
        """Take the answer of capture from a mark in the log; ignore a mark of another request."""
        if said.get("memory") != self.id:
            return
        if said.get("state") == "void":
            self.is_forgotten = True
        elif said.get("step") == "begin" and self.remembered_from is None:
            self.remembered_from = position
