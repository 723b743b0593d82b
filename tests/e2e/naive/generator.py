"""Pairs of runs, made at random from a seed, with planted differences of every kind."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

DTYPES = ["f32", "f32", "f32", "bf16", "f16", "f64", "f8e4m3", "i64", "bool", "c64"]
LOSSES = ["loss", "train/loss", "eval_Loss_step", "loss_scale"]  # the last is not a loss
LOSSES_OF_MODELS = ["Gen/loss", "g.loss", "loss", "loss_dis_loss", "misdis_loss"]  # by models of several_optimizers, or nearly


def model_of(rng: random.Random) -> list[dict[str, Any]]:
    """The records of one step of one rank, in order of execution."""
    records: list[dict[str, Any]] = []

    def add(name: str, kind: str, **more: Any) -> None:
        records.append({"name": name, "kind": kind, **more})

    if rng.random() < 0.7:
        add("ids", "batch", dtype="i64")
    parts = rng.choices([[""], [".fc"], [".ln"], [".ln", ".fc"], [".mlp.up", ".mlp.down", ".mlp", ""]], k=rng.randint(1, 5))
    modules = [f"h.{i}{part}" for i, of_block in enumerate(parts) for part in of_block]
    for micro_batch in range(rng.choice([1, 1, 2, 3])):
        for module in modules:
            if rng.random() < 0.1:
                add("state", "batch", micro_batch=micro_batch, call=rng.choice([0, 1, 1]), dtype=rng.choice(DTYPES))
            dtype = rng.choice(DTYPES)
            if rng.random() < 0.2:
                add(module, "input", micro_batch=micro_batch, dtype=dtype)
            for call in range(rng.choice([1, 1, 1, 2])):
                for path in rng.choice([[""], [""], ["0", "1"]]):
                    add(module, "output", micro_batch=micro_batch, call=call, path=path, dtype=dtype)
        for module in reversed(modules):
            if rng.random() < 0.7:
                add(module, rng.choice(["grad_output", "grad_input"]), micro_batch=micro_batch)
    if rng.random() < 0.3:
        add(modules[0], "output", mode="eval")
        add("probe", "inspect", mode="eval")
    updated = [module for module in modules if rng.random() < 0.6]
    for module in updated:
        add(module + ".weight", "weight_grad")
    for module in modules:
        if module in updated:
            add(module + ".weight", "weight")
        if rng.random() < 0.2:
            add(module + ".weight.m", "optimizer_state")
    return each_once(records)


def each_once(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    unique: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        unique.setdefault(identity(record), record)
    return list(unique.values())


def several_optimizers(rng: random.Random) -> list[dict[str, Any]]:
    """As model_of, of a step in which several models are updated, one after the other, some of them several times."""
    records: list[dict[str, Any]] = []

    def add(name: str, kind: str, **more: Any) -> None:
        records.append({"name": name, "kind": kind, **more})

    modules = {name: [f"{name}.{i}" for i in range(rng.randint(1, 3))] + [name] for name in ("gen", "dis", "g")}
    micro_batch, has_gone_back, calls, updates = (dict.fromkeys(modules, 0) for _ in range(4))
    for phase in range(rng.choice([2, 2, 3, 5])):
        if rng.random() < 0.3:
            add(f"ids{phase}", "batch", dtype="i64")
        for _ in range(rng.choice([0, 1, 1, 2])):
            run = rng.sample(sorted(modules), rng.randint(1, 2))
            for name in run:
                if rng.random() < 0.2:
                    add(rng.choice(modules[name]), "output", mode="eval", call=phase)
                if has_gone_back[name]:
                    micro_batch[name], has_gone_back[name], calls[name] = micro_batch[name] + 1, 0, 0
                if rng.random() < 0.2:
                    add("input", "batch", micro_batch=micro_batch[name], call=phase)
                for module in modules[name]:
                    add(module, "output", micro_batch=micro_batch[name], call=calls[name])
                calls[name] += 1
            for name in rng.sample(run, rng.randint(0, len(run))):
                has_gone_back[name] = 1
                for module in reversed(modules[name]):
                    add(module, "grad_output", micro_batch=micro_batch[name], call=calls[name] - 1)
        model = rng.choice(sorted(modules))
        weights = [f"{module}.weight" for module in modules[model] if rng.random() < 0.8]
        together = rng.random() < 0.8
        if together:
            for weight in weights:
                add(weight, "weight_grad", call=updates[model])
        for weight in weights:
            if not together:  # an optimizer for each
                add(weight, "weight_grad", call=updates[model])
            add(weight, "weight", call=updates[model])
            if rng.random() < 0.3:
                add(weight, "optimizer_state", call=updates[model], path="exp_avg")
        if rng.random() < 0.2:
            add(rng.choice(modules[model]), "output", mode="eval", call=phase + 10)
        updates[model] += 1
    return each_once(records)


def identity(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(part) for part in ("name", "kind", "path", "micro_batch", "call", "mode"))


def values_of(rng: random.Random, dtype: str, size: int) -> list[Any]:
    if dtype == "bool":
        return [float(rng.random() < 0.5) for _ in range(size)]
    if dtype in ("i64",):
        return [float(rng.randint(-50, 50)) for _ in range(size)]
    scale = rng.choice([1.0, 1.0, 1e-3, 1e4])
    offset = rng.choice([0.0, 0.0, 0.0, 10.0])
    return [scale * (offset + rng.gauss(0, 1)) for _ in range(size)]


def observation(rng: random.Random, template: dict[str, Any], step: int, rank: int) -> dict[str, Any]:
    record = {**template, "rank": rank, "step": step}
    dtype = record.get("dtype", "f32")
    size = rng.choice([1, 2, 5, 16, 33, 48])
    record["shape"] = [size]  # complex: values are the real and imaginary parts as they are counted
    if size == 48 and rng.random() < 0.5:
        record["shape"] = [6, 8]
    record["values"] = values_of(rng, dtype, size)
    if rng.random() < 0.03 and dtype.startswith(("f", "b")) and dtype != "bool":
        record["values"][rng.randrange(size)] = rng.choice(["nan", "inf", "-inf"])
    if dtype == "c64":
        record["dtype"] = "f32"  # the writer of the tests does not know complex
    return record


def one_run(rng: random.Random) -> list[dict[str, Any]]:
    several = rng.random() < 0.4
    model = several_optimizers(rng) if several else model_of(rng)
    ranks = rng.choice([1, 1, 2, 3])
    steps = [step for step in range(rng.randint(1, 5)) if rng.random() < 0.9] or [3]
    names = LOSSES_OF_MODELS if several else LOSSES
    losses = sorted(rng.sample(names, rng.randint(0, 2)))  # in the listed order, because nothing else gives their order
    records: list[dict[str, Any]] = []
    for step in steps:
        for rank in range(ranks):
            if step == steps[0] and rng.random() < 0.5:
                records.append(observation(rng, {"name": "h.0.weight", "kind": "weight", "mode": "init"}, step, rank))
            records += [observation(rng, template, step, rank) for template in model]
            for name in losses:
                for micro_batch in range(rng.choice([1, 1, 2])):
                    records.append(
                        {"rank": rank, "step": step, "scalar": name, "value": rng.gauss(2, 1), "micro_batch": micro_batch}
                    )
    return records


# --- differences; each changes the records of run B in place and may do nothing


def some_tensor(rng: random.Random, records: list[dict[str, Any]]) -> dict[str, Any] | None:
    tensors = [r for r in records if "values" in r]
    return rng.choice(tensors) if tensors else None


def plant_missing(rng: random.Random, records: list[dict[str, Any]]) -> None:
    if (chosen := some_tensor(rng, records)) is not None:
        whole_run = rng.random() < 0.4
        gone = [r for r in records if r is chosen or (whole_run and "values" in r and identity(r) == identity(chosen))]
        for record in gone:
            records.remove(record)


def plant_extra(rng: random.Random, records: list[dict[str, Any]]) -> None:
    if (chosen := some_tensor(rng, records)) is not None:
        extra = copy.deepcopy(chosen)
        extra["name"] = "extra." + chosen["name"]
        if not any(identity(r) == identity(extra) and same_place(r, extra) for r in records if "values" in r):
            records.insert(records.index(chosen) + rng.randint(0, 1), extra)


def plant_returned(rng: random.Random, records: list[dict[str, Any]]) -> None:
    """A module returns another output, sometimes only in some step."""
    outputs = [r for r in records if r.get("kind", "output") in ("output", "grad_output") and "values" in r and not r.get("path")]
    if not outputs:
        return
    chosen = rng.choice(outputs)
    whole_run = rng.random() < 0.7
    for record in [r for r in outputs if r is chosen or (whole_run and r["name"] == chosen["name"])]:
        extra = {**copy.deepcopy(record), "path": "1"}
        if not any(identity(r) == identity(extra) and same_place(r, extra) for r in records if "values" in r):
            records.insert(records.index(record) + 1, extra)


def plant_lost_kind(rng: random.Random, records: list[dict[str, Any]]) -> None:
    if (chosen := some_tensor(rng, records)) is not None:
        records[:] = [r for r in records if r.get("kind") != chosen["kind"]]


def same_place(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return bool(a["rank"] == b["rank"] and a["step"] == b["step"])


def plant_reordered(rng: random.Random, records: list[dict[str, Any]]) -> None:
    if (chosen := some_tensor(rng, records)) is not None:
        places = [i for i, r in enumerate(records) if "values" in r and same_place(r, chosen)]
        i, j = rng.choice(places), rng.choice(places)
        records[i], records[j] = records[j], records[i]


def plant_shape(rng: random.Random, records: list[dict[str, Any]]) -> None:
    if (chosen := some_tensor(rng, records)) is not None:
        if rng.random() < 0.5:
            chosen["shape"] = [1, *chosen["shape"]]  # the same elements
        else:
            chosen["values"] = [*chosen["values"], 1.0]
            chosen["shape"] = [len(chosen["values"])]


def plant_dtype(rng: random.Random, records: list[dict[str, Any]]) -> None:
    if (chosen := some_tensor(rng, records)) is not None:
        chosen["dtype"] = rng.choice(["f64", "f32", "bf16", "i32"])


def plant_nonfinite(rng: random.Random, records: list[dict[str, Any]]) -> None:
    if (chosen := some_tensor(rng, records)) is not None:
        for _ in range(rng.choice([1, 1, len(chosen["values"])])):
            chosen["values"][rng.randrange(len(chosen["values"]))] = rng.choice(["nan", "inf", "-inf"])


def plant_numeric(rng: random.Random, records: list[dict[str, Any]]) -> None:
    """Around the tolerance, on one tensor or on everything from a step on."""
    if (chosen := some_tensor(rng, records)) is not None:
        size = 10 ** rng.uniform(-12, 0.5)
        onwards = rng.random() < 0.2
        for record in records:
            if "values" in record and (record is chosen or (onwards and record["step"] >= chosen["step"])):
                one = rng.random() < 0.3
                at = rng.randrange(len(record["values"]))
                record["values"] = [
                    x * (1 + size * rng.gauss(0, 1)) if isinstance(x, float) and (not one or i == at) else x
                    for i, x in enumerate(record["values"])
                ]


def plant_sign_flip(rng: random.Random, records: list[dict[str, Any]]) -> None:
    if (chosen := some_tensor(rng, records)) is not None:
        chosen["values"] = [-x if isinstance(x, float) else x for x in chosen["values"]]


def plant_permutation(rng: random.Random, records: list[dict[str, Any]]) -> None:
    if (chosen := some_tensor(rng, records)) is not None:
        rng.shuffle(chosen["values"])


def plant_lost_rank(rng: random.Random, records: list[dict[str, Any]]) -> None:
    rank = rng.choice([r["rank"] for r in records])
    left = [r for r in records if r["rank"] != rank]
    records[:] = left or records


def plant_lost_step(rng: random.Random, records: list[dict[str, Any]]) -> None:
    step = rng.choice([r["step"] for r in records])
    rank = rng.choice([None, rng.choice([r["rank"] for r in records])])
    left = [r for r in records if r["step"] != step or (rank is not None and r["rank"] != rank)]
    records[:] = left or records


def plant_late_start(rng: random.Random, records: list[dict[str, Any]]) -> None:
    """As a launch that goes on from a checkpoint: weights as loaded, often as the step before has left them."""
    steps = sorted({r["step"] for r in records})
    first = rng.choice(steps[1:] or steps)
    left = [r for r in records if r["step"] >= first and r.get("mode") != "init"]
    if first == steps[0] or not left:
        return
    updated = [r for r in records if r.get("kind") == "weight" and r["step"] == first - 1]
    loaded = [{**copy.deepcopy(r), "step": first, "mode": "init"} for r in updated if rng.random() < 0.9]
    there = {(r["rank"], r["step"]) for r in left}
    unique = {(r["rank"], r["name"]): r for r in loaded if (r["rank"], first) in there}
    for record in unique.values():
        if rng.random() < 0.3:
            record["values"] = [x * (1 + 10 ** rng.uniform(-8, 0)) if isinstance(x, float) else x for x in record["values"]]
    records[:] = [*unique.values(), *left]


def plant_loss(rng: random.Random, records: list[dict[str, Any]]) -> None:
    losses = [r for r in records if "scalar" in r]
    if not losses:
        return
    chosen = rng.choice(losses)
    fate = rng.random()
    if fate < 0.2:
        records.remove(chosen)
    elif fate < 0.3:
        chosen["scalar"] = "other_loss"
    elif fate < 0.4:
        records.insert(records.index(chosen), copy.deepcopy(chosen))
    elif fate < 0.55:
        chosen["value"] = rng.choice(["nan", "inf"])
    elif isinstance(chosen["value"], float):
        chosen["value"] *= 1 + 10 ** rng.uniform(-8, 0)


PLANTS = [
    plant_missing, plant_extra, plant_returned, plant_lost_kind, plant_reordered, plant_shape, plant_dtype, plant_nonfinite, plant_numeric,
    plant_numeric, plant_sign_flip, plant_permutation, plant_lost_rank, plant_lost_step, plant_late_start, plant_loss,
]  # fmt: skip


def launches(
    rng: random.Random, run: str, records: list[dict[str, Any]], other: list[dict[str, Any]], relaunched: bool
) -> list[dict[str, Any]]:
    """One launch, or two of which the second resumes: the first one's later steps are superseded, whatever they held."""
    world = 1 + max(r["rank"] for r in records)
    sketch = rng.choice([0, 16, 16, 32])
    spec = {"run": run, "world_size": world, "sketch": sketch}
    steps = sorted({r["step"] for r in records})
    places = {(r["step"], r["rank"]) for r in records}
    # Where a launch lacks a rank's last step, or superseded steps hold what the others do not, the answer depends on what no
    # export shows.
    regular = len(places) == len(steps) * len({rank for _, rank in places})
    if len(steps) < 2 or not regular or not relaunched or rng.random() < 0.4:
        return [{**spec, "records": records}]
    resumed = rng.choice(steps[1:])
    before = [r for r in records if r["step"] < resumed]
    known = {(r["rank"], r.get("kind")) for r in records}
    ranks, kinds = {rank for rank, _ in known}, {kind for _, kind in known}
    stale = [r for r in other if r["step"] in steps and r["step"] >= resumed and r["rank"] in ranks and r.get("kind") in kinds]
    return [{**spec, "records": before + stale}, {**spec, "records": [r for r in records if r["step"] >= resumed]}]


def make_pair(seed: int, name_a: str, name_b: str) -> list[dict[str, Any]]:
    """Two runs as make_runs takes them, one launch each or more."""
    rng = random.Random(seed)
    a = one_run(rng)
    b = copy.deepcopy(a)
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        before = copy.deepcopy(b)
        rng.choice(PLANTS)(rng, b)
        b = b or before  # a run without records would not exist
    if rng.random() < 0.05:
        b = one_run(rng)  # has little or nothing to do with A
    if rng.random() < 0.3:
        b = noisy(rng, b, noise_size(seed) * 10 ** rng.uniform(-0.5, 2))  # around ten times what repeats of A differ by
    if rng.random() < 0.3:
        a, b = b, a
    relaunched = rng.random() < 0.5
    if relaunched:
        # The answer about loaded weights depends on where launches began, which no export shows.
        a, b = ([r for r in records if r.get("mode") != "init"] or records for records in (a, b))
    return launches(rng, name_a, a, b, relaunched) + launches(rng, name_b, b, a, relaunched)


def begun_by(launches: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[int, int]]:
    """By step and rank, the number of the newest launch of one run that has it, from 1, and that launch's first step."""
    begun: dict[tuple[int, int], tuple[int, int]] = {}
    for number, launch in enumerate(launches, 1):
        first: dict[int, int] = {}
        for record in launch["records"]:
            first[record["rank"]] = min(record["step"], first.get(record["rank"], record["step"]))
        begun |= {(record["step"], record["rank"]): (number, first[record["rank"]]) for record in launch["records"]}
    return begun


def noise_size(seed: int) -> float:
    return float(10 ** random.Random(f"noise {seed}").uniform(-6, -1))


def noisy(rng: random.Random, records: list[dict[str, Any]], size: float) -> list[dict[str, Any]]:
    """The same with about half of all numbers changed by a relative `size`."""
    records = copy.deepcopy(records)
    for record in records:
        for field in record.keys() & {"values", "value"}:
            numbers = record[field] if field == "values" else [record[field]]
            changed = [x * (1 + size * rng.gauss(0, 1)) if isinstance(x, float) and rng.random() < 0.5 else x for x in numbers]
            record[field] = changed if field == "values" else changed[0]
    return records


def make_repeats(seed: int, names: list[str]) -> list[dict[str, Any]]:
    """Repeats of the seed's run A with a little noise in some of its tensors and losses."""
    repeats = []
    for name in names:
        rng = random.Random(f"repeat {seed} {name}")
        launches_a = make_pair(seed, "a", "b")
        newest = [launch for launch in launches_a if launch["run"] == "a"][-1]
        records = noisy(rng, newest["records"], noise_size(seed))
        if rng.random() < 0.3:
            rng.choice([plant_missing, plant_shape, plant_dtype, plant_nonfinite, plant_lost_rank])(rng, records)
        kept = {record["step"] for record in records if rng.random() < 0.9}
        thinned = [record for record in records if record["step"] in kept] or records
        repeats.append({"run": name, "world_size": newest["world_size"], "sketch": newest["sketch"], "records": thinned})
    return repeats


def as_line(launch: dict[str, Any]) -> str:
    assert all(not isinstance(v, float) or math.isfinite(v) for r in launch["records"] for v in r.get("values", []))
    return json.dumps(launch)
