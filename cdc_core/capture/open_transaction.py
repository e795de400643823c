"""The transaction that is being received: where in the stream it is, and what waits of it."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.protocol.messages import Begin


@dataclass(slots=True)
class OpenTransaction:
    """The transaction being received.

    `seq` is the next entry's where the current run began, at row `run_row` of the frames that wait;
    `block` and `row` say where its first row is, `entry` its first entry; `size` is its bytes so
    far. `patience` is the share of a batch's time that it may wait before it is staged.
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
