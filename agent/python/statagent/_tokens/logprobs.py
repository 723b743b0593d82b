"""Log-probabilities of tokens from logits."""

from __future__ import annotations

from typing import Any

import numpy as np

LOGPROB = "logprob"  # the tap's name
_CHUNK = 256  # rows that are widened to f32 at a time


def log_probabilities(logits: Any, rows: Any, ids: Any) -> Any:
    """Of the id that follows each of these rows of [rows, vocabulary], as f32 on the logits' device, [n, 1]."""
    import torch

    detached = logits.detach()
    at, of = (_there(torch.from_numpy(np.ascontiguousarray(each, np.int64)), detached.device) for each in (rows, ids))
    found = []
    for start in range(0, len(at), _CHUNK):
        wide = all_log_probabilities(detached.index_select(0, at[start : start + _CHUNK]))
        found.append(wide.gather(1, of[start : start + _CHUNK, None]))
    return torch.cat(found)


def all_log_probabilities(logits: Any) -> Any:
    """Of each id, as f32, [rows, vocabulary]. In one operation, which takes a third of the time of a sum and a difference."""
    import torch

    return logits.detach().log_softmax(1, dtype=torch.float32)


def chosen_log_probabilities(all_of: Any, ids: Any) -> Any:
    """Of one id of each row, on their device, [n, 1]."""
    return all_of.gather(1, ids.to(all_of.device).long()[:, None])


def find_scores(output: Any, shape: tuple[int, ...]) -> Any:
    """Log-probabilities that a model makes itself of tokens that are its labels, without keeping logits (TRL): [sequences, length - 1], of
    each token but the first; None if the output has none."""
    import torch

    found = getattr(output, "log_probs", None)
    fits = isinstance(found, torch.Tensor) and len(shape) == 2 and tuple(found.shape) == (shape[0], shape[1] - 1)
    return found if fits else None


def chosen_scores(scores: Any, places: Any) -> Any:
    """As f32, [n, 1], those of these places of all, one after the other."""
    return taken(scores.detach().reshape(-1, 1), places).float()


def taken(tensor: Any, rows: Any) -> Any:
    """These rows of the tensor, ascending, without waiting for a GPU."""
    import torch

    if len(rows) == len(tensor):
        return tensor
    return tensor.index_select(0, _there(torch.from_numpy(np.ascontiguousarray(rows, np.int64)), tensor.device))


def _there(numbers: Any, device: Any) -> Any:
    """On the device, without waiting for it: an ordinary copy to a GPU waits for all that is enqueued there."""
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)


def find_logits(output: Any, shape: tuple[int, ...], vocabulary: int) -> Any:
    """The logits of a pass over ids of this shape: [sequences, the last k tokens, vocabulary]; None if the output has none."""
    import torch

    found = getattr(output, "logits", None)
    if found is None and isinstance(output, dict):
        found = output.get("logits")
    if found is None:
        candidates = output if isinstance(output, (tuple, list)) else [output]
        found = next((each for each in candidates if isinstance(each, torch.Tensor) and each.shape[-1:] == (vocabulary,)), None)
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        return None
    sequences, length = shape if len(shape) == 2 else (1, shape[0])
    if found.dim() == 2 and len(found) == sequences * length:
        found = found.reshape(sequences, length, -1)
    if found.dim() != 3 or found.shape[0] != sequences or not 0 < found.shape[1] <= length:
        return None
    return found
