"""Text for the example: the bytes of the text files below a folder, in a fixed order, so that two runs read the same text."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

SUFFIXES = {".md", ".h", ".cc", ".py", ".proto", ".txt", ".rst"}
IGNORED_FOLDERS = {".git", ".venv", "build", "__pycache__", "node_modules", "tests", "demo-out", "statcollect-data"}


class Corpus:
    """Byte-level text. `tokens` is a 1-d uint8 tensor; the vocabulary is the 256 byte values."""

    vocabulary = 256

    def __init__(self, root: Path, bytes_max: int = 4 << 20) -> None:
        """Reads files below `root`, sorted by path, up to `bytes_max` bytes in all.

        Raises:
            ValueError: fewer than 10,000 bytes of text were found.
        """
        text = bytearray()
        self.files = 0
        for path in sorted(p for p in root.rglob("*") if p.suffix in SUFFIXES and p.is_file()):
            if IGNORED_FOLDERS.intersection(path.relative_to(root).parts):
                continue
            text += path.read_bytes()
            self.files += 1
            if len(text) >= bytes_max:
                del text[bytes_max:]
                break
        if len(text) < 10_000:
            raise ValueError(
                f"read a corpus below {root}: found {len(text)} bytes in {self.files} files ({', '.join(sorted(SUFFIXES))}); "
                "expected at least 10,000 bytes; choose a folder with more text (--corpus)"
            )
        self.tokens = torch.frombuffer(text, dtype=torch.uint8)
        self.sha256 = hashlib.sha256(text).hexdigest()

    def batch(self, step: int, rank: int, size: int, context: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of one step, two int64 tensors [size, context]. Depends on the arguments only."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step * 1_009 + rank)
        starts = torch.randint(len(self.tokens) - context - 1, (size,), generator=generator)
        rows = torch.stack([self.tokens[s : s + context + 1] for s in starts.tolist()]).long()
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
