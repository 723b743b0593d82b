"""What the collector answers. Written by scripts/make_python_client.py from the OpenAPI document; do not edit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .rows import Rows, TableMixin

By = Literal[
    "l2",
    "l1",
    "absmax",
    "rms",
    "std",
    "mean",
    "max",
    "min",
    "nan",
    "inf",
    "zero_fraction",
    "numel",
    "update_ratio",
    "exponent_loss",
]
Category = Literal["model", "data", "optimizer", "precision", "determinism", "parallel", "versions", "environment", "other"]
DistanceKind = Literal["sketch", "statistics"]
Kind = Literal[
    "output",
    "input",
    "grad_output",
    "grad_input",
    "weight",
    "weight_grad",
    "optimizer_state",
    "inspect",
    "inspect_grad",
    "batch",
    "buffer",
    "operator",
]
RankFindingReason = Literal[
    "weights_differ",
    "state_differs",
    "gradients_differ",
    "shape_differs",
    "same_batch",
    "frozen_weight",
    "loss_differs",
    "nonfinite",
    "outlier",
    "missing_rank",
    "missing_step",
    "missing_activation",
    "ended_early",
]
RanksReportVerdict = Literal["consistent", "inconsistent", "incomparable"]
Reason = Literal["missing_in_a", "missing_in_b", "order", "shape", "dtype", "nonfinite", "numeric", "bitwise"]
Stage = Literal["config", "weights", "batch", "forward", "loss", "backward", "grad", "optimizer"]
State = Literal["stale", "exchanged", "permuted", "cast", "same_statistics", "differs", "missing_in_a", "missing_in_b"]
Verdict = Literal["identical", "within_tolerance", "diverged", "incomparable"]


@dataclass(frozen=True)
class Access:
    """Refused and throttled callers since start (docs/security.md)."""

    on: bool  # every call needs a token or a certificate
    unauthenticated: int  # refused calls
    permission_denied: int  # refused calls
    streams_refused: int  # over a caller's limit
    throttled_millis: int  # for which streams were held back by a limit of bytes per second
    audit_lost: int  # lines that the audit log could not write
    quota_refused: int  # streams and batches of projects over their limit of disk


@dataclass(frozen=True)
class Alarms:
    """State of the alarms (docs/alarms.md)."""

    enabled: bool
    raised: dict[str, int]  # since start, by rule
    active: dict[str, int]  # active alarms of unfinished runs, by rule
    evaluated_records: int  # tensor records, since start
    skipped_records: int  # skipped because the rules could not keep up
    state_bytes: int
    webhook: str  # its address; empty: none
    webhook_sent: int  # messages, since start
    webhook_failed: int  # attempts
    webhook_dropped: int  # messages


@dataclass(frozen=True)
class AlignedNames:
    """Different names in A and B that were matched."""

    a: str  # several names, joined by ", ", if they are compared together
    b: str
    method: str  # "map" (the user's), "order" (order of execution, class, depth and shape)
    confidence: float  # 0..1; 1 for "map"


@dataclass(frozen=True)
class AttemptInfo:
    attempt: int  # from 1
    start_unix_nanos: int
    ranks: Rows[RankInfo]


@dataclass(frozen=True)
class Bracket:
    """Under an overhead budget not every step has its tensors recorded: a difference may have begun before the step in which
    it shows."""

    last_agreeing: int | None  # last step that both recorded in full, without a difference; absent: none
    first_seen: int


@dataclass(frozen=True)
class CaptureRequestRank:
    rank: int
    # "waiting": the step has not come yet; "receiving": some chunks have arrived; "captured"; "missed": the agent reported why
    # not; "overdue": the step has passed and the agent has not answered; "away": the rank is not connected now and is asked when
    # it reconnects; "ended": the rank said goodbye or has been away for a minute without the capture.
    state: str
    why: str  # one sentence; empty if captured
    last_step: int | None  # the rank's last stored step


@dataclass(frozen=True)
class CaptureRequestRow:
    request: int
    activation: str
    kind: Kind | None  # unspecified: output, inspect, weight or batch
    output_path: str | None
    micro_batch: int
    call: int
    mode: str
    step: int
    bytes_max: int
    asked_unix_nanos: int  # collector's clock
    ranks: Rows[CaptureRequestRank]


@dataclass(frozen=True)
class CaptureRow:
    """A captured tensor, or a part of it."""

    run: str
    rank: int
    step: int
    micro_batch: int
    # The kind of an observed tensor.; buffer: untrained state of a module, such as BatchNorm's running statistics; operator:
    # result of an operator within a module, or a tensor that it uses (docs/zoom.md); not part of a diff
    kind: Kind | None
    activation: str
    output_path: str
    call: int
    mode: str  # "train", "eval", "init"
    dtype: str  # "f32"
    shape: list[int]  # of the tensor
    numel: int  # elements of the tensor
    elements: int  # number kept: the first ones in row-major order
    bytes: int  # their size
    bytes_stored: int  # received so far
    complete: bool  # all of `elements` are stored; only then can they be read
    attempt: int  # launch of the run, from 1
    class_name: str  # of the module, if known


@dataclass(frozen=True)
class Captures(TableMixin):
    records: Rows[CaptureRow]  # by step, rank, in the order in which they were first seen
    requests: Rows[CaptureRequestRow]  # of the newest launch, oldest first

    def table(self) -> Rows[CaptureRow]:
        return self.records


@dataclass(frozen=True)
class Cause:
    """Why the runs differ at the root, as far as the stored records show."""

    rule: str  # "learning_rate", "module_setting", "loss_scale", ...: docs/causes.md lists them
    text: str  # one sentence, with both values and the step
    confidence: str  # "certain", "likely", "possible"
    key: str  # what differs, if it has a name: a key of the configuration, a scalar
    a: str  # its value in A and in B; empty if there is none
    b: str


@dataclass(frozen=True)
class Compared:
    records: int
    identical: int
    within_tolerance: int
    diverged: int


@dataclass(frozen=True)
class ConfigDifference:
    key: str
    a: str | None  # absent: not set in A
    b: str | None


@dataclass(frozen=True)
class ConfigItem:
    # In the order in which they usually explain a difference.; model: layers, widths, eps, dropout, initialisation; data: data
    # set, seed, batch size, sequence length, tokenizer; optimizer: learning rate, schedule, betas, weight decay, clipping,
    # accumulation; precision: dtypes, mixed precision, loss scale, TF32; determinism: deterministic algorithms, autotuning, hash
    # seeds; parallel: world size, parallel layout, sharding; versions: of packages, drivers, the code itself; environment:
    # hosts, threads, variables, command line
    category: Category | None
    key: str
    a: str | None  # absent: not set in A
    b: str | None  # absent: not set in B, or only one run was requested
    same: bool  # both set and equal, numbers by value; true if only one run was requested


@dataclass(frozen=True)
class ConfigReport(TableMixin):
    run_a: str
    run_b: str  # empty: only one run was requested
    same: bool  # nothing differs
    items: Rows[ConfigItem]  # by category, then key: differences; with `all`, or for one run, everything
    compared: int  # keys
    differ: int  # of these
    notes: list[str]  # one sentence each, such as settings that differ between ranks of one run

    def table(self) -> Rows[ConfigItem]:
        return self.items


@dataclass(frozen=True)
class DensityRow:
    run: str
    rank: int
    step: int
    micro_batch: int
    input: str  # name of the input
    type: str  # "embed": padding index of an embedding; "label": ignore index of the loss
    pad_index: int
    valid: int  # elements
    total: int  # elements
    valid_per_sample: list[int]


@dataclass(frozen=True)
class DiffInputs:
    config: Rows[ConfigDifference]
    weights: str  # "identical", "differ", "unknown"
    batches: str


@dataclass(frozen=True)
class DiffReport(TableMixin):
    run_a: str
    run_b: str
    # identical: every compared record is equal (bit for bit, if without_hash is 0), and nothing is unmatched; incomparable:
    # nothing to compare; `message` says why
    verdict: Verdict | None
    first: Divergence | None  # absent unless diverged
    diverged: Rows[Divergence]  # in order of execution, first `top`
    compared: Compared | None
    unmatched: Unmatched | None
    inputs: DiffInputs | None
    ranks: list[int]  # compared ranks of A
    steps: StepRange | None  # compared; absent if none
    message: str  # why the runs are incomparable, and what to do; or a remark
    first_bitwise: Divergence | None  # first record that is not bit-identical, if any
    origins: Rows[Divergence]  # the root, or without one the first; then those that are independent of it
    spread: Spread | None
    notes: list[str]  # one sentence each
    aligned: Rows[AlignedNames]
    growth: Growth | None
    noise: NoiseSource | None  # absent: no noise was used
    ranks_b: list[int]  # with merge_ranks: compared ranks of B
    root: Root | None  # the first difference that rounding does not explain, if any
    explained: str | None  # "rounding": every difference is explained by it; absent otherwise
    without_hash: int  # part of compared.identical: equal in every statistic that both recorded, but without content
    # hashes on both sides that would prove equal bits; only where the steps before the first difference were not recorded in
    # full by both runs
    bracket: Bracket | None
    heat_map: HeatMap | None  # only if requested
    text: DiffText | None
    source_a: str  # "agent": an agent recorded it; "import": from another tool's dump; "golden": loaded from a file
    source_b: str
    # whether the comparison is valid: "steps", "ranks", "tensors", "weights", "batches", "dtypes",
    comparable: Rows[PremiseCheck]
    # "recording", "settings", in this order; one may have several; in A's order; empty: no choices were recorded in both
    # (docs/layouts.md)
    routers: Rows[RouterDiff]

    def table(self) -> Rows[Divergence]:
        return self.diverged


@dataclass(frozen=True)
class DiffText:
    """The answer in words, as statctl diff prints it."""

    verdict: str  # "DIVERGED", "WITHIN TOLERANCE", "SAME UP TO ROUNDING", "IDENTICAL", "EQUAL", "INCOMPARABLE"
    sentence: str  # where and what, and the cause
    next: str  # what to look at next; empty: nothing
    values: str  # how to see the raw values; empty: not of this difference


@dataclass(frozen=True)
class DifferingPart:
    """A part of a tensor that is made of whole parts of ranks in both runs."""

    place: str  # "[4:8, 0:10] of (8, 10)"
    ranks_a: list[int]  # that hold it in A
    ranks_b: list[int]  # in B
    distance: float | None  # infinite: there is no finite measure


@dataclass(frozen=True)
class Divergence:
    """One activation of one rank and step that differs."""

    step: int
    micro_batch: int
    rank: int
    # weights: as loaded, before the first step; grad: weight gradients; optimizer: weights and optimizer state after the update
    stage: Stage | None
    # The kind of an observed tensor.; buffer: untrained state of a module, such as BatchNorm's running statistics; operator:
    # result of an operator within a module, or a tensor that it uses (docs/zoom.md); not part of a diff
    kind: Kind | None
    activation: str
    output_path: str
    call: int
    reason: Reason | None  # bitwise: only with `exact`
    distance: float | None  # absent for missing_*; infinite for nonfinite
    distance_low: float | None  # interval of about two standard deviations, sketch only
    distance_high: float | None
    # sketch: estimate of ||A-B|| / max(||A||, ||B||); statistics: largest relative difference of a statistic
    distance_kind: DistanceKind | None
    tolerance: float | None
    times_noise: float | None
    origin: bool
    a: ObservationSide | None  # absent for missing_in_a
    b: ObservationSide | None  # absent for missing_in_b
    class_name: str
    mode: str  # "train", "eval", "init"
    previous: str  # the activation before it that agrees, if any
    previous_distance: float | None
    activation_b: str  # its name in B, if different
    rank_b: int | None  # with merge_ranks: the rank of B, if it differs from `rank`, which is A's
    # For a logical tensor, which several ranks may hold: its ranks in A and in B, and its shape. `rank` then has no meaning.
    ranks_a: list[int]
    ranks_b: list[int]
    global_shape: list[int]
    # For the first divergence and the root, if the runs split the tensor differently: those of the smallest common parts that
    # differ, and the number of common parts. 0: the runs have only the whole tensor in common.
    parts: Rows[DifferingPart]
    parts_total: int


@dataclass(frozen=True)
class EventRow:
    run: str
    rank: int
    step: int
    kind: str
    text: str
    unix_nanos: int
    fields: dict[str, str]
    origin: str  # who raised it: "agent", "collector" (docs/alarms.md)
    attempt: int  # launch of the run, from 1


@dataclass(frozen=True)
class Growth:
    """How the distance grows from the first step that is not identical."""

    points: Rows[GrowthPoint]  # at most 40, thinned evenly on a logarithmic scale
    factor_per_step: float | None  # of `distance` while it is below 0.1; needs at least 3 steps


@dataclass(frozen=True)
class GrowthPoint:
    """The distance of the runs in a step."""

    step: int
    diverged: int  # number of records
    distance: float | None  # geometric mean of the finite distances of records that are not identical
    distance_max: float | None  # maximum of the same


@dataclass(frozen=True)
class HeatMap:
    """How far apart the runs are, by step and tensor: the maximum over all ranks, micro-batches and calls of the tensor."""

    rows: Rows[HeatMapRow]  # in the order of execution
    first_steps: list[int]  # of the columns, ascending
    last_steps: list[int]  # the same as first_steps, unless several steps share a column
    # Row by row, a byte each: 0 no data, 1 identical, 2 to 126 within tolerance, 127 only one run has it, 128 to 255 diverged.
    # 16 levels are a factor of ten in distance / tolerance: 10^((level - 126) / 16) up to 126, 10^((level - 128) / 16) from 128
    # on.
    cells: str
    origin_row: int | None  # of the root, otherwise of the first divergence; absent: it is not a tensor (a loss)
    origin_column: int | None  # absent: there is neither
    tensors: int  # before rows and columns were merged
    steps: int
    runs: Rows[RunSummary]  # A and B as they were before they were compared: tells whether the map is out of date


@dataclass(frozen=True)
class HeatMapRow:
    """Tensors of a row of a heat map; several are named after the first of them."""

    # weights: as loaded, before the first step; grad: weight gradients; optimizer: weights and optimizer state after the update
    stage: Stage | None
    # The kind of an observed tensor.; buffer: untrained state of a module, such as BatchNorm's running statistics; operator:
    # result of an operator within a module, or a tensor that it uses (docs/zoom.md); not part of a diff
    kind: Kind | None
    activation: str
    output_path: str
    activation_b: str  # its name in B, if different
    mode: str  # "train", "eval", "init"
    tensors: int  # number in this row


@dataclass(frozen=True)
class KindCount:
    # The kind of an observed tensor.; buffer: untrained state of a module, such as BatchNorm's running statistics; operator:
    # result of an operator within a module, or a tensor that it uses (docs/zoom.md); not part of a diff
    kind: Kind | None
    activations: int


@dataclass(frozen=True)
class MemoryRow:
    """In bytes; unknown quantities are absent. Unless stated otherwise they are of the device, from the framework's
    allocator, at the time of the record; "max" is the maximum since the process began."""

    run: str
    rank: int
    step: int
    micro_batch: int
    phase: str  # "pre_forward", ... "post_optimizer"
    device: str  # "cuda:0", "cpu"
    module: str  # empty: the whole phase
    allocated: int | None
    max_allocated: int | None
    reserved: int | None  # by the allocator, from the device
    max_reserved: int | None
    inactive: int | None  # free split blocks that cannot be released
    max_inactive: int | None
    parameter: int | None  # of the watched model's parameters on this rank
    gradient: int | None  # of their gradients
    buffer: int | None  # of the model's buffers
    optimizer_state: int | None  # of the watched optimizers' state
    device_free: int | None  # of the whole device, all processes
    device_total: int | None
    host_rss: int | None  # resident memory of the process
    host_max_rss: int | None
    host_free: int | None  # of the machine: available without swapping
    host_total: int | None
    step_max_allocated: int | None  # maximum within the step so far
    allocated_delta: int | None  # of a module's record: what its forward pass allocated
    peak_delta: int | None  # by how much its forward pass raised the peak


@dataclass(frozen=True)
class NoiseSource:
    """Source of the noise."""

    runs: list[str]  # repeats of A, or its perturbed twins
    stored: bool  # from a saved profile, not from runs read now
    twins: int  # of how many of the runs rounding was measured, perturbed twins or repeats: all or none
    scale: list[float]  # the noise of each of them, in units in the last place; of a repeat 1


@dataclass(frozen=True)
class ObservationSide:
    """One side of a comparison. Statistics are absent if the tensor has no finite element, or if the tool that wrote the
    records did not provide them."""

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    l1: float | None
    l2: float | None
    nan: int | None
    pos_inf: int | None
    neg_inf: int | None
    zero: int | None  # including -0
    numel: int | None
    dtype: str  # "f32"
    shape: list[int]  # empty: a 0-d tensor or, if numel is absent, unknown
    hash: str | None
    value: float | None  # stage loss: the scalar
    inf: int | None  # infinities of both signs, if they were counted together
    neg: int | None  # finite elements below zero
    pos: int | None  # finite elements above zero
    hash_kind: str  # empty: statagent's own; otherwise "content2" (definition 2), "crc32", "xor64", "md5", "sha1"
    untrusted: list[str]  # statistics that are shown but never compared: "std"
    place: str  # the part of a larger tensor that it is: "[0:4, 0:10] of (8, 10)"; empty: the whole, or not known


@dataclass(frozen=True)
class PremiseCheck:
    """Whether something holds that makes a comparison valid."""

    check: str
    ok: bool
    detail: str  # with counts


@dataclass(frozen=True)
class ProjectDisk:
    """What the runs of a project take on the disk, and may take (--project-disk-max); as of a few seconds ago."""

    project: str
    bytes: int  # approximate
    bytes_max: int  # 0: no limit


@dataclass(frozen=True)
class RankFinding:
    """A problem of some ranks from a step on."""

    step: int  # the first one
    micro_batch: int
    # weights: as loaded, before the first step; grad: weight gradients; optimizer: weights and optimizer state after the update
    stage: Stage | None
    kind: Kind | None  # unspecified: not about a tensor
    activation: str  # the first one; stage loss: the scalar's name; empty: not about a single tensor
    output_path: str
    call: int
    class_name: str
    mode: str  # "train", "eval", "init"
    # weights_differ: as loaded, or after an update; state_differs: of the optimizer; gradients_differ: before the update, after
    # the reduction over the ranks; shape_differs: or dtype, of one of these; same_batch: ranks were fed the same data;
    # frozen_weight: never changed, although its gradient is not zero; loss_differs: was equal on all ranks before; nonfinite:
    # NaN or infinities that the other ranks do not have; outlier: norms far from the median over the ranks; missing_rank: of the
    # launch: never reported; missing_step: other ranks have it; missing_activation: a weight that other ranks have; ended_early:
    # other ranks continued
    reason: RankFindingReason | None
    ranks: list[int]  # the affected ranks
    others: list[int]  # the ranks they were compared with; empty: none, or `ranks` among themselves
    outvoted: bool  # more than half of the replicas agree against `ranks`
    distance: float | None  # relative L2 of the first one
    tolerance: float | None  # 0: bit for bit
    # sketch: estimate of ||A-B|| / max(||A||, ||B||); statistics: largest relative difference of a statistic
    distance_kind: DistanceKind | None
    value: float | None  # outlier: root mean square; loss: its value; frozen weight: gradient's root mean square
    expected: float | None  # outlier: median over the ranks; loss: of the others
    activations: int  # number of distinct tensors affected; 0: not about tensors
    steps: int  # number of steps affected
    last_step: int  # the last of these
    propagated: bool  # an earlier finding about one of the ranks may explain it
    text: str  # one sentence


@dataclass(frozen=True)
class RankGroup:
    ranks: list[int]  # replicas of each other


@dataclass(frozen=True)
class RankInfo:
    rank: int
    local_rank: int
    host: str
    pid: int
    state: str  # "running", "finished", "interrupted"
    records: int  # stored, of all kinds
    stat_records: int
    first_step: int | None
    last_step: int | None
    steps: int  # steps with statistics
    durable_seq: int
    dropped: dict[str, int]  # reported by the agent, by cause


@dataclass(frozen=True)
class RanksReport(TableMixin):
    run: str
    # consistent: replicas agree, no findings; inconsistent: there are findings; incomparable: nothing to compare; `message` says
    # why
    verdict: RanksReportVerdict | None
    findings: Rows[RankFinding]  # by step, then in the order of the step
    compared: Compared | None  # tensors of a rank, each against its replicas
    groups: Rows[RankGroup]
    ranks: list[int]  # checked
    steps: StepRange | None  # checked; absent if none
    message: str  # why incomparable, or why consistent although nothing was compared
    notes: list[str]  # one sentence each

    def table(self) -> Rows[RankFinding]:
        return self.findings


@dataclass(frozen=True)
class Retention:
    """State of automatic removal, as of its last look (every minute)."""

    age_seconds_max: int  # since a run's last write; 0: no limit
    disk_bytes_max: int  # of the store; 0: no limit
    note: str  # why less is removed than the limits require; empty otherwise
    runs_removed: int  # since start
    bytes_removed: int  # approximate, since start
    next: Rows[RetentionNext]  # the first few, in the order of removal
    kept: list[str]  # runs that are exempt


@dataclass(frozen=True)
class RetentionNext:
    run: str
    last_write_unix_nanos: int
    bytes: int  # approximate
    due_unix_nanos: int  # by age; 0: only when space runs low


@dataclass(frozen=True)
class Root:
    """The first difference that rounding does not explain."""

    step: int
    micro_batch: int
    rank: int
    # weights: as loaded, before the first step; grad: weight gradients; optimizer: weights and optimizer state after the update
    stage: Stage | None
    # The kind of an observed tensor.; buffer: untrained state of a module, such as BatchNorm's running statistics; operator:
    # result of an operator within a module, or a tensor that it uses (docs/zoom.md); not part of a diff
    kind: Kind | None
    activation: str
    output_path: str
    call: int
    reason: Reason | None  # bitwise: only with `exact`
    distance: float | None
    distance_low: float | None
    distance_high: float | None
    # sketch: estimate of ||A-B|| / max(||A||, ||B||); statistics: largest relative difference of a statistic
    distance_kind: DistanceKind | None
    tolerance: float | None
    times_noise: float | None
    origin: bool
    a: ObservationSide | None
    b: ObservationSide | None
    class_name: str
    mode: str
    previous: str
    previous_distance: float | None
    activation_b: str
    rank_b: int | None
    ranks_a: list[int]
    ranks_b: list[int]
    global_shape: list[int]
    parts: Rows[DifferingPart]
    parts_total: int
    confidence: str  # "certain", "likely", "possible"
    because: list[str]  # one sentence each, strongest first
    alternatives: Rows[Divergence]  # at most two, most likely first
    cause: Cause | None  # the first of causes; absent: no rule fits
    times_expected: float | None  # the distance divided by what inputs and rounding explain
    agreeing: int | None  # records before it in causal order, if all are equal
    above_tolerance: int | None  # the first step in which a record exceeds its tolerance; absent: none does
    causes: Rows[Cause]  # all that hold, most specific first; an older collector has only `cause`


@dataclass(frozen=True)
class RouterDiff:
    """What a router of a mixture of experts chose for the tokens that both runs have: in the first step with a difference
    that rounding does not explain, otherwise the first with other choices, otherwise the last."""

    router: str  # its module
    router_b: str  # its name in B, if different
    step: int
    finding: str  # "same", "rounding", "router", "expert", "tokens", "before": as `text` says it
    text: str  # one sentence
    tokens: int  # in both
    chosen: int  # experts of each token
    agreeing: int  # of tokens * chosen choices: the same in both
    flips: int  # tokens with other experts in B
    near_ties: int  # of these, those with a margin that rounding explains
    margin: float | None  # largest of a flip: how far the experts chosen lie before others, relative to the norm of the
    margin_limit: float | None  # token's logits; absent: not known; what rounding explains; absent: the logits are not known
    distance: float | None  # largest of a token's logits
    distance_limit: float | None
    dtype_a: str  # of the logits; empty: not known
    dtype_b: str
    layer: str  # the first tap behind the experts; empty: none
    explained: float | None  # the part of the squared difference there of tokens with other experts or at near ties; absent: none
    apart: int  # other tokens that differ there by more than rounding
    expert: int | None  # one that all of these chose, if it is the only one, or they are most of its tokens
    expert_tokens: int  # such tokens that chose it, whether they differ or not
    load_a: list[int]  # tokens of each expert
    load_b: list[int]


@dataclass(frozen=True)
class Run:
    summary: RunSummary | None
    attempts: Rows[AttemptInfo]
    config: dict[str, str]  # of the lowest rank of the newest attempt
    events: Rows[EventRow]  # newest attempt, first 100
    activations: int  # distinct activations of the newest attempt's lowest rank
    kinds: Rows[KindCount]  # the same activations by kind


@dataclass(frozen=True)
class RunSummary:
    """One run, over all its attempts."""

    run: str
    attempts: int
    world_size: int  # of the newest attempt
    ranks: int  # ranks seen in the newest attempt
    records: int  # stored, all kinds, all attempts
    steps: int  # distinct steps of the run's view
    first_step: int | None
    last_step: int | None
    start_unix_nanos: int  # first hello of the newest attempt, collector's clock
    end_unix_nanos: int  # last goodbye or last write
    state: str  # "running" (a stream is open), "finished" (all ranks that record said goodbye), "interrupted"
    dropped: int  # records that agents reported as lost
    ranks_expected: int  # of the newest attempt, that record: all of world_size, unless init(ranks=) named some
    twin_of: str  # the run that this one is a twin of (docs/twins.md), by its name; empty: it is none


@dataclass(frozen=True)
class ScalarRow:
    run: str
    rank: int
    step: int
    micro_batch: int
    name: str
    value: float
    ranks: list[int]  # whose parts were put together, of which `rank` is the first; empty: of `rank` alone


@dataclass(frozen=True)
class SeriesPoint:
    run: str
    rank: int
    step: int
    micro_batch: int
    # The kind of an observed tensor.; buffer: untrained state of a module, such as BatchNorm's running statistics; operator:
    # result of an operator within a module, or a tensor that it uses (docs/zoom.md); not part of a diff
    kind: Kind | None
    activation: str
    output_path: str
    call: int
    mode: str
    stats: ObservationSide | None
    ranks: list[int]  # whose parts were put together (docs/layouts.md); `rank` is the first of them. Empty: `rank` alone


@dataclass(frozen=True)
class Spread:
    """Extent of a divergence."""

    activations: int  # distinct activations that diverged
    activations_total: int
    steps: int  # steps with a divergence
    ranks: list[int]  # ranks with a divergence; of A
    ranks_b: list[int]  # with merge_ranks: of B


@dataclass(frozen=True)
class Status:
    version: str
    pid: int
    start_unix_nanos: int
    uptime_seconds: int
    data_dir: str
    durability: str  # "fsync" or "process"
    state: str  # "ready", "read_only: <why>", "draining"
    runs: int
    streams_open: int
    streams_total: int  # since start
    batches_total: int  # accepted since start
    records_total: int  # durable since start
    bytes_total: int  # of batches accepted since start
    duplicate_records_total: int  # received again and discarded
    rejected_batches_total: int
    commits_total: int
    disk_bytes: int  # of the store
    disk_free_bytes: int  # of its file system; 0 if unknown
    agents_dropped_total: int  # reported by agents since start
    dropped_by_cause: dict[str, int]  # reported by agents, over all stored runs
    backlog_records: int  # received and not yet durable
    backlog_bytes: int
    backlog_oldest_millis: int  # age of the oldest of them
    retention: Retention | None
    alarms: Alarms | None
    access: Access | None
    project_disk: ProjectDisk | None  # of the caller's project; absent: no project has a limit
    projects_full: int  # over their limit of disk
    disk_free_unknown: bool | None  # whether the store cannot tell disk_free_bytes; absent: an older collector
    http_address: str  # "127.0.0.1:7434", where the page and the HTTP API are; empty: off
    # "127.0.0.1:7433" or "unix:/run/statcollect.sock", where agents and statctl connect; empty: an older collector
    grpc_address: str


@dataclass(frozen=True)
class StepRange:
    first: int
    last: int


@dataclass(frozen=True)
class TokenCells:
    """The rows of one sequence: taps x tokens."""

    of: TokenSequence | None
    ids: list[int]  # of its tokens, from the first position on; -1: not known
    cells: str  # a byte for each tap of the answer and token, tap by tap, as HeatMap.cells; the limit is the tolerance
    values: Rows[TokenValues]  # of taps with one column, such as log-probabilities


@dataclass(frozen=True)
class TokenPlace:
    key: str  # hash of the token and all before it
    position: int  # in its sequence, as A recorded it
    step_a: int
    step_b: int
    rank_a: int
    rank_b: int
    a: float  # norm of A's row; of one column, its value
    b: float


@dataclass(frozen=True)
class TokenSequence:
    """Tokens that follow each other, as their keys tell. Another one begins behind each gap."""

    key: str  # of its last token
    first_position: int
    last_position: int
    diverged: int  # its rows beyond the limit, at all taps


@dataclass(frozen=True)
class TokenTap:
    """A module's output, or log-probabilities, for the tokens that both runs have."""

    tap: str
    tap_b: str  # B's name; empty: the same
    dtype_a: str  # "f32"
    dtype_b: str
    columns: int  # components of a row; 1: a value, such as a log-probability
    columns_b: int  # B's; 0: as many
    rows: int  # tokens compared
    equal: int  # of these, bit for bit
    diverged: int  # of these, beyond the limit; if exact, not equal
    distance: float  # the largest relative distance; of values, relative to their size or 1
    limit: float  # up to which a distance counts as rounding; 0 if exact
    measured: float | None  # largest distance between repeats at this tap; absent: not measured, so judged by dtype and growth
    first: TokenPlace | None  # of those beyond the limit, the one of the lowest position; absent: none
    furthest: TokenPlace | None  # absent: all are equal


@dataclass(frozen=True)
class TokenValues:
    tap: int  # index into the answer's taps
    a: list[float]  # of each token; NaN: not in both runs
    b: list[float]


@dataclass(frozen=True)
class TokensReport(TableMixin):
    run_a: str
    run_b: str
    exact: bool  # as asked
    # identical: every compared record is equal (bit for bit, if without_hash is 0), and nothing is unmatched; incomparable:
    # nothing to compare; `message` says why
    verdict: Verdict | None
    message: str  # why the runs are incomparable, and what to do
    comparable: Rows[PremiseCheck]  # whether the comparison is valid: "tokens", "taps", "weights", "dtype", "repeated"
    tokens: int  # distinct tokens in both
    tokens_only_a: int
    tokens_only_b: int
    taps: Rows[TokenTap]  # that both have, in A's order
    first: int | None  # index of the first of them with rows that part; absent: none
    noise: list[str]  # runs that measured rounding
    notes: list[str]
    text: DiffText | None  # verdict and sentence
    sequences: Rows[TokenSequence]  # with `cells`: of A, those with most rows beyond the limit first, at most 100
    sequences_total: int
    sequence: TokenCells | None  # with `cells`

    def table(self) -> Rows[TokenTap]:
        return self.taps


@dataclass(frozen=True)
class Top(TableMixin):
    run: str
    step: int
    # The number by which the activations of a step are ordered.; null: l2; l2: largest first, like the others unless stated;
    # absmax: largest |min| or |max|; rms: l2 / sqrt(finite elements); mean: largest |mean|; min: smallest first; nan: number of
    # NaN; tensors without any are not listed; inf: number of infinities of both signs; tensors without any are not listed;
    # zero_fraction: zeros / elements; tensors without zeros are not listed; numel: elements; update_ratio: only in a map: how
    # far an update moved a weight, relative to its norm before; estimated from sketches; exponent_loss: only in a map: the share
    # of elements that f16 would lose, where exponents were recorded
    by: By | None
    records: Rows[TopRow]  # most extreme first; equal ones by rank and order of execution
    considered: int  # observations of the step that have this number
    notes: list[str]  # one sentence each

    def table(self) -> Rows[TopRow]:
        return self.records


@dataclass(frozen=True)
class TopRow:
    value: float  # the number by which the rows are ordered
    rank: int
    step: int
    micro_batch: int
    # The kind of an observed tensor.; buffer: untrained state of a module, such as BatchNorm's running statistics; operator:
    # result of an operator within a module, or a tensor that it uses (docs/zoom.md); not part of a diff
    kind: Kind | None
    activation: str
    output_path: str
    call: int
    mode: str  # "train", "eval", "init"
    class_name: str  # of the module, if known
    stats: ObservationSide | None
    ranks: list[int]  # as in SeriesPoint


@dataclass(frozen=True)
class Unmatched:
    only_a: list[str]  # "kind name[path] call c"
    only_b: list[str]


@dataclass(frozen=True)
class WeightRow:
    # What is known of a weight that is not equal bit for bit.; stale: B has what A had in an earlier step, bit for bit;
    # exchanged: B has what A has under another name, bit for bit; permuted: the same elements in another order, as far as
    # statistics tell; cast: another dtype, and no more than its rounding apart; same_statistics: several weights in one run and
    # one in the other: only their statistics can be compared, and agree
    state: State | None
    name_a: str  # empty: A lacks it
    name_b: str  # empty: B lacks it
    rank: int  # of B; 0 for whole tensors that B has cut over its ranks, and if B lacks it
    dtype_a: str  # "f32"; empty if one run lacks it
    dtype_b: str
    shape: list[int]  # B's; A's if B lacks it
    distance: float | None  # relative L2 distance; absent: cannot be measured, as of other shapes
    equals_step: int  # stale: the step of A
    equals_name: str  # exchanged: the name in A


@dataclass(frozen=True)
class WeightsReport(TableMixin):
    run_a: str
    run_b: str
    step: int
    compared: int  # weights that both have, of each rank of B
    equal: int  # of these, bit for bit
    records: Rows[WeightRow]  # the others, and those that one run lacks; in A's order for each rank of B
    notes: list[str]  # rules of the map that had no effect

    def table(self) -> Rows[WeightRow]:
        return self.records
