"""The places of a model's parameters inside the tensors that a sharding optimizer updates instead of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._torch import parts
from .._torch.modules import Named
from .cuts import part_of
from .placement import Placement, whole


@dataclass(frozen=True)
class Slice:
    """A part of a parameter in a tensor of the optimizer, both flattened. Padding is in no slice."""

    parameter: Any  # of the model
    shape: tuple[int, ...]  # of the parameter while it is not cut
    at: int  # its first element's place in the optimizer's tensor
    start: int  # elements of the parameter
    stop: int

    def of(self, tensor: Any) -> Any | None:
        """This part of a tensor with one element for each element of the optimizer's: its gradient or state. None: the tensor does not match."""
        if tensor.dim() == 0 or self.at + self.stop - self.start > tensor.numel() or not tensor.is_contiguous():
            return None
        return tensor.detach().view(-1).narrow(0, self.at, self.stop - self.start)

    def place(self, parameter: Placement | None = None) -> Placement | None:
        """The place of what `of` returns. `parameter`: the parameter's own placement if the rank holds only a part of it before the cut."""
        return part_of(whole(self.shape) if parameter is None else parameter, self.start, self.stop)


# Slices by the id of the optimizer's tensor.
Slices = dict[int, list[Slice]]


def deepspeed(optimizer: Any) -> Slices:
    """Slices of an optimizer of DeepSpeed: ZeRO 1 to 3, BF16_Optimizer. {} for any other."""
    if hasattr(optimizer, "fp32_partitioned_groups_flat") and hasattr(optimizer, "grad_position"):
        return _zero3(optimizer)
    flat = getattr(optimizer, "single_partition_of_fp32_groups", None) or getattr(optimizer, "fp32_groups_flat_partition", None)
    groups = getattr(optimizer, "bit16_groups", None) or getattr(optimizer, "bf16_groups", None)
    found: Slices = {}
    for tensor, parameters in zip(flat or (), groups or ()):
        slices = found[id(tensor)] = []
        for parameter in parameters:
            mapping = getattr(parameter, "_hp_mapping", None)
            if mapping is not None:
                here, there = mapping.lp_fragment_address, mapping.hp_fragment_address
                slices.append(
                    Slice(parameter, tuple(parameter.shape), int(there.start), int(here.start), int(here.start + here.numel))
                )
    return found


def _zero3(optimizer: Any) -> Slices:
    found: Slices = {}
    for tensor, parameters in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups):
        slices = found[id(tensor)] = []
        for parameter in parameters:
            _, at, _ = optimizer.grad_position[optimizer.get_param_id(parameter)]
            start, stop = zero3_range(parameter)
            slices.append(Slice(parameter, tuple(parameter.ds_shape), int(at), start, stop))
    return found


def zero3_range(parameter: Any) -> tuple[int, int]:
    """Elements of the flattened parameter that this rank holds, without padding. Empty on ranks beyond its end."""
    from torch import distributed

    each = int(parameter.ds_tensor.ds_numel)
    start = min(each * distributed.get_rank(parameter.ds_process_group), int(parameter.ds_numel))
    return start, min(start + each, int(parameter.ds_numel))


def megatron(optimizer: Any) -> Slices:
    """Slices of an optimizer of Megatron-Core that updates copies or shards of the model's parameters. {} for any other."""
    found: Slices = {}
    copies = getattr(optimizer, "fp32_from_float16_groups", None)
    for tensors, parameters in zip(copies or (), getattr(optimizer, "float16_groups", ())):
        for tensor, parameter in zip(tensors, parameters):
            found[id(tensor)] = [Slice(parameter, tuple(parameter.shape), 0, 0, int(parameter.numel()))]
    if not hasattr(optimizer, "model_param_gbuf_map"):
        return found
    for model_groups, shard_groups in (
        (optimizer.model_fp32_groups, optimizer.shard_fp32_groups),
        (optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups),
    ):
        for parameters, shards in zip(model_groups, shard_groups):
            for parameter, shard in zip(parameters, shards):
                if shard is None:  # the fused optimizer has it
                    continue
                part = optimizer._get_model_param_range_map(parameter)["param"]
                found[id(shard)] = [Slice(parameter, tuple(parameter.shape), 0, int(part.start), int(part.end))]
    return found


def flat_parameters(model: Any, prefix: str = "") -> Slices:
    """Slices of FullyShardedDataParallel with use_orig_params=False, whose optimizer updates flat parameters. The slices' parameters are the names
    of the originals within `model`, after `prefix` and without the wrappers' parts; empty slices are those of other ranks."""
    found: Slices = {}
    for path, module in parts.named_modules(model):
        flat = flat_of(module)
        if flat is None:
            continue
        slices = found[id(flat)] = []
        for name, shape, here in zip(flat._fqns, flat._shapes, flat._shard_param_infos):
            span = (here.intra_param_start_idx, here.intra_param_end_idx + 1) if here.in_shard else (0, 0)
            at = here.offset_in_shard if here.in_shard else 0
            slices.append(Slice(plain_name(f"{prefix}.{path}.{name}"), tuple(shape), at, *span))
    return found


def flat_of(module: Any) -> Any | None:
    """The flat parameter of a FullyShardedDataParallel with use_orig_params=False. None: the module is not one, or has no parameters."""
    flat = getattr(getattr(module, "_handle", None), "flat_param", None)
    if flat is None or getattr(flat, "_params", None) is not None or not hasattr(flat, "_shard_param_infos"):
        return None
    return flat


def name_originals(model: Any, modules: list[Named], parameters: list[Named], prefix: str = "") -> list[Named]:
    """The model's parameters, with the originals in place of the flat parameters that contain them; `value` is then the flat parameter."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for path, module in parts.named_modules(model):
        flat = flat_of(module)
        if flat is not None:
            found[id(flat)] = flat, [plain_name(f"{prefix}.{path}.{name}") for name in flat._fqns]
    if not found:
        return parameters
    places = {named.name: number for number, named in enumerate(modules)}
    originals = [named for named in parameters if id(named.value) not in found]
    for flat, names in found.values():
        for name in names:
            parent = name.rpartition(".")[0] or modules[0].name
            depth = modules[places[parent]].depth + 1 if parent in places else -1
            originals.append(Named(name, flat, parent, "Parameter", depth))
    return sorted(originals, key=lambda named: places.get(named.parent, len(places)))


_WRAPPERS = frozenset(("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"))


def plain_name(path: str) -> str:
    """A path through wrapped modules, without the wrappers' parts."""
    return ".".join(part for part in path.split(".") if part and part not in _WRAPPERS)
