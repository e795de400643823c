"""The transaction that capture is receiving: its place in the batch, and what it has so far."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.protocol.messages import Begin


@dataclass(slots=True)
class OpenTransaction:
    """The transaction being received.

    Its first row is at `row` of block `block`; its first entry is at index `entry`. The current run
    of rows begins at row `run_row` of the waiting frames, with the number `seq`. `size` is its
    bytes so far. `patience` is the share of a batch's time that it may wait before it is staged.
    """

    begin: Begin
    index: int
    replayed: bool
    block: int
    row: int
    entry: int
    run_row: int
    seq: int = 0
    entries: int = 0
    size: int = 0
    spooled: bool = False
    patience: float = 1.0
