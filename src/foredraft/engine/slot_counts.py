"""How often each token occurs in each running text, kept on the device: a round adds what the last one wrote."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from ..core.distributions.sampling import TokenCounts
from ..runtime.row_layout import upload
from ..types import Sequence


class SlotCounts:
    """Rows by slot. A slot that a new text has taken is counted from its start."""

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self.table = TokenCounts(*(torch.zeros((slots, vocab), device=device) for _ in range(2)))
        self._counted: dict[int, tuple[int, int]] = {}  # slot -> sequence, and how many of its tokens are counted

    def update(self, sequences: Seq[Sequence]) -> TokenCounts:
        """Count what is new; the counts of all slots."""
        fresh: list[tuple[int, int, int]] = []  # slot, token, whether it was written rather than given
        emptied = []
        for s in sequences:
            owner, known = self._counted.get(s.slot, (-1, 0))
            if owner != s.id or known > len(s.tokens):
                emptied.append(s.slot)
                known = 0
            fresh += [(s.slot, s.tokens[i], int(i >= s.prompt_length)) for i in range(known, len(s.tokens))]
            self._counted[s.slot] = s.id, len(s.tokens)
        both, output = self.table.prompt_and_output, self.table.output
        for slot in emptied:
            both[slot] = output[slot] = 0.0
        if fresh:
            slot_of, token, written = upload([list(line) for line in zip(*fresh, strict=True)], both.device)
            ones = torch.ones_like(token, dtype=torch.float32)
            both.index_put_((slot_of, token), ones, accumulate=True)
            output.index_put_((slot_of, token), written.to(torch.float32), accumulate=True)
        return self.table

    def of(self, sequences: Seq[Sequence]) -> TokenCounts:
        """The counts of these sequences, a row each."""
        table = self.update(sequences)
        rows = upload([[s.slot for s in sequences]], table.output.device)[0]
        return table.choose(rows)
