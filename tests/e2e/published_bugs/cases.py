"""The published bugs: where each was reported, the layout that shows it, and the tensor and step at which it acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """`bug` is None in the clean runs. `acts`: where it acts first, any of these (kind, pattern of names); in step `step`."""

    bug: str
    source: str
    text: str
    cut: dict[str, Any]
    acts: tuple[tuple[str, str], ...]
    options: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    pipeline: bool = False

    @property
    def ranks(self) -> int:
        if self.pipeline:
            return int(self.cut["stages"]) * int(self.cut.get("dp", 1))
        return int(self.cut.get("tp", 1)) * int(self.cut.get("cp", 1)) * int(self.cut.get("dp", 1))

    @property
    def layout(self) -> str:
        cut = self.cut
        names = {"sequence": "sp", "stages": "pp"}
        return " ".join(names.get(k, k) + ("" if n is True else f"{n}") for k, n in cut.items())

    def _named(self, start: str) -> str:
        return "-".join([start, *(f"{k}_{v}".replace(".", "") for k, v in self.options.items())] + ["pipeline"] * self.pipeline)

    @property
    def reference(self) -> str:
        """The run of one rank."""
        return self._named("whole")

    @property
    def clean(self) -> str:
        return self._named(self.layout.replace(" ", "_"))

    @property
    def run(self) -> str:
        return f"bug-{self.bug}"

    def jobs(self, steps: int) -> list[dict[str, Any]]:
        """Of one rank, and of the layout without and with the bug."""
        cut = {} if self.pipeline else self.cut
        options = {k: v for k, v in self.options.items() if k != "whole_logits"}
        common = {"steps": steps, "pipeline": self.pipeline}
        return [
            {"ranks": 1, "run": self.reference, "options": options, **common},
            {"ranks": self.ranks, "run": self.clean, "options": cut | self.options, **common},
            {"ranks": self.ranks, "run": self.run, "options": cut | self.options | {"bug": self.bug}, **common},
        ]


TP, SP, CP, DP, EP, PP = {"tp": 2}, {"tp": 2, "sequence": True}, {"cp": 2}, {"dp": 2}, {"dp": 2}, {"stages": 2}
ZIGZAG, EXPERTS_TWICE = {"cp": 2, "zigzag": True}, {"dp": 4, "ep": 2}
MOE = {"experts": True}
SENT = {**MOE, "dispatch": True}
ANY = (("weight_grad", "*"), ("grad_output", "*"), ("scalar", "loss"))  # a wrong scale of the loss: all gradients
MEGATRON, TTRACE = "Megatron-LM", "TTrace"

CASES = [
    Case("label_smoothing", f"{MEGATRON}#7452 (1), #737", "smoothing uses the mean of this rank's columns", TP, (("output", "criterion"),), {"smoothing": 0.1}),
    Case("whole_logits", f"{MEGATRON}#7452 (2)", "a loss for cut logits gets gathered ones: log 2 too high", TP, (("output", "criterion"),), {"whole_logits": True}),
    Case("second_head_mean", f"{MEGATRON}#7452 (3)", "a second head's loss is a mean over each rank's own tokens", DP, (("weight_grad", "head2.weight"), ("grad_output", "head2"), ("grad_output", "criterion2"), ("scalar", "loss")), {"second": True}),
    Case("saved_group", f"{MEGATRON}#7452 (4)", "a saved activation is gathered from another replica", {"tp": 2, "dp": 2}, (("weight_grad", "blocks.*.mlp.fc1.weight"),)),
    Case("sink_norm", f"{MEGATRON}#7452 (8)", "clipping counts one rank's part of the softmax's entries", TP, (*ANY, ("scalar", "norm_before_clipping")), {"clip": 0.5}),
    Case("own_norm", "pytorch#170862", "each rank clips by the norm of its own parts", TP, (*ANY, ("scalar", "norm_before_clipping")), {"clip": 0.5}),
    Case("balance_count", f"{MEGATRON}#7452 (10)", "the router's auxiliary loss is scaled by all ranks' tokens", SP, (("weight_grad", "blocks.1.mlp.router.weight"), ("grad_output", "blocks.1.mlp.router")), MOE),
    Case("head_norm", f"{MEGATRON}#7452 (11)", "the gradient of the heads' norm is not summed", TP, (("weight_grad", "blocks.*.attn.head_norm.weight"),)),
    Case("local_names", f"{MEGATRON}#7452 (12)", "the second stage loads the first layers' weights", PP, (("weight", "blocks.2.*"), ("output", "blocks.2.*")), pipeline=True),
    Case("embedding_mask", TTRACE, "the mask of another rank's rows is off by one", TP, (("output", "tokens"),)),
    Case("saved_input", TTRACE, "the backward pass uses another input", TP, (("weight_grad", "blocks.*.mlp.fc1.weight"),)),
    Case("context_scale", f"{TTRACE}, {MEGATRON}#673", "the loss is divided by the context's ranks, too", CP, ANY),
    Case("not_averaged", TTRACE, "gradients are summed over samples, not averaged", DP, ANY),
    Case("not_handed_out", TTRACE, "an updated weight stays on its rank (ZeRO)", DP, (("weight", "head.weight"),), {"zero": True}, step=1),
    Case("router_sequence", TTRACE, "the router's gradient is not summed over the sequence", SP, (("weight_grad", "blocks.1.mlp.router.weight"),), MOE),
    Case("overlap", TTRACE, "attention's input gradient is used before it is summed", TP, (("grad_output", "blocks.1.ln1"), ("weight_grad", "blocks.1.ln1.*"))),
    Case("stage_division", TTRACE, "a layer is in no stage", PP, (("output", "blocks.2*"), ("weight", "blocks.2*")), pipeline=True),
    Case("tied_after_scatter", f"{TTRACE}, {MEGATRON}#844", "the stages' table is summed after gradients are scattered", {"stages": 2, "dp": 2}, (("weight_grad", "tokens.weight"), ("weight_grad", "head.weight")), {"tied": True}, pipeline=True),
    Case("final_norm", f"{TTRACE}, {MEGATRON}#1446", "the last norm's gradient is not summed over the sequence", SP, (("weight_grad", "norm.*"),)),
    Case("context_gradient", f"{TTRACE}, {MEGATRON}#1464", "gradients of keys and values stay on the rank that used them", CP, (("grad_output", "blocks.1.attn.qkv"), ("weight_grad", "blocks.1.attn.qkv.*"))),
    Case("norms_of_contexts", TTRACE, "a norm's gradient is summed over tp, not the context", {"tp": 2, "cp": 2, "sequence": True}, (("weight_grad", "blocks.*.ln1.*"),)),
    Case("expert_scale", f"pytorch#160285, {MEGATRON}#5956", "the experts' gradients are twice as large", EP, (("weight_grad", "blocks.1.mlp.*"),), MOE),
    Case("expert_norm", f"{MEGATRON}#5916", "clipping counts one rank's experts only", EP, (*ANY, ("scalar", "norm_before_clipping")), {**MOE, "clip": 0.5}),
    Case("detached_gates", "NeMo Automodel#2995", "the router's choices are gathered without their gradient", EP, (("weight_grad", "blocks.1.mlp.router.weight"), ("grad_output", "blocks.1.mlp.router")), MOE),
    Case("own_tokens", "rtp-llm#884", "tokens sent by other ranks are left out", EP, (("output", "blocks.1.mlp"),), SENT),
    Case("expert_replicas", f"{MEGATRON}#5916", "gradients of an expert on two ranks are not summed", EXPERTS_TWICE, (("weight_grad", "blocks.1.mlp.*"),), SENT),
    Case("mean_of_norms", "DeepSpeed#8475", "clipping takes the mean of the ranks' norms", EP, (*ANY, ("scalar", "norm_before_clipping")), {**SENT, "clip": 0.5}),
    Case("gathered_tokens", "NeMo Automodel#1260", "the gradient of tokens for all experts is not summed", EP, (("weight_grad", "blocks.1.ln2.*"), ("weight_grad", "tokens.weight")), MOE),
    Case("shared_expert", "sglang#31475", "a shared expert's output is summed over the ranks", TP, (("output", "blocks.1.mlp"),), {**MOE, "shared": True}),
    Case("router_replicas", "torchtitan#2387, transformers#48205", "each rank's router sees the gradient of its experts", TP, (("weight_grad", "blocks.1.mlp.router.weight"), ("grad_output", "blocks.1.mlp.router")), MOE),
    Case("summed_gradient", "torchtitan#2106", "a whole gradient is summed over the ranks", TP, (("weight_grad", "blocks.1.mlp.fc2.weight"), ("grad_output", "blocks.1.mlp.fc1"))),
    Case("chunked_loss", "torchtitan#3412", "the loss's partial gradient is taken for whole", TP, (("grad_output", "norm"), ("weight_grad", "norm.*"))),
    Case("scaled_gradients", "torchtitan#1733", "torch scales what was accumulated before, too", PP, ANY, pipeline=True),
    Case("loss_sum", "torchtitan#2972", "the pipeline's loss is not divided by the tokens", PP, ANY, pipeline=True),
    Case("divided_again", "AReaL#1273", "the pipeline divides a normalised loss by the micro-batches", PP, ANY, pipeline=True),
    Case("wiped", "NeMo Automodel#3530", "only the last accumulated micro-batches count", PP, ANY, pipeline=True),
    Case("positions", "torchtitan#792", "each rank counts positions from 0", CP, (("output", "positions"),)),
    Case("zigzag_positions", f"{MEGATRON}#1612", "positions are those of another part of the sequence", ZIGZAG, (("output", "positions"),)),
    Case("zigzag_targets", "ms-swift#10071", "tokens are cut in a row, targets in zigzag", CP, (("batch", "targets"), ("output", "criterion"))),
    Case("rolled_targets", "verl#4250", "targets are shifted within each rank's part of the sequence", CP, (("batch", "targets"), ("output", "criterion"))),
    Case("context_group", "VeOmni#1115", "gradients are not summed over the context", CP, ANY),
    Case("rank_mean", "prime-rl#1957", "the loss is a mean over each rank's own tokens", DP, ANY),
    Case("plain_to_local", "pytorch#172932, #153016", "DTensor takes a partial gradient for whole", SP, (("grad_output", "norm"), ("weight_grad", "norm.*"))),
    Case("shared_key", f"{MEGATRON}#1699, torchtitan#1373", "the heads' common key gets this rank's gradient", TP, (("weight_grad", "blocks.1.attn.shared.weight"), ("grad_output", "blocks.1.attn.shared"))),
    Case("reduced_twice", "AReno#496", "a replica's whole gradient is summed again", TP, (("weight_grad", "blocks.*.attn.shared.weight"),)),
]  # fmt: skip

# (where, what, why it is not here)
NOT_SHOWN = [
    (
        f"{MEGATRON}#7452 (5, 6, 7, 9), torchtitan#2206, #2318, open-instruct#1498, AReaL#1270, TTrace's own table",
        "",
        "their text was not at hand; cases marked TTrace are kinds that it is known for",
    ),
    (TTRACE, "scaling factors of FP8 exchanged in the wrong group", "FP8 needs a GPU"),
    ("pytorch#149768", "clipping adds 1e-6 once for each rank", "too small for fp32 to tell"),
]
