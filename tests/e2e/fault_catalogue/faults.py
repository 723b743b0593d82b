"""The catalogue. K is the step from which most faults act: what comes before must agree."""

# mypy: disable-error-code="method-assign, assignment"
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import statagent
from fault_catalogue.fault import BASES, LAST, Place, fault
from fault_catalogue.model import Gpt, Mlp, Sizes
from fault_catalogue.training import FAULT_STEP, PAD, Recipe, Training

K = FAULT_STEP
FIRST_PARAMETER = "tok.weight"

BASES.update(
    plain=Recipe(),
    inspected=Recipe(sizes=Sizes(inspected=True)),
    accumulating=Recipe(micro_batches=2, max_norm=0.5),
    scaled=Recipe(loss_scale=1024.0),
    dropout=Recipe(sizes=Sizes(dropout=0.1), evaluations=True),
    tied=Recipe(sizes=Sizes(tied=True)),
    momentum=Recipe(momentum=0.9, lr=0.1),
    resumed=Recipe(resume_at=K),
    shared=Recipe(sizes=Sizes(shared=True)),
    with_inputs=Recipe(watch={"kinds": ("input", "output", "grad_output", "weight", "weight_grad", "optimizer_state")}),
    without_ln2=Recipe(watch={"exclude": ["blocks.*.ln2"]}),
    without_sketches=Recipe(agent={"sketch": 0}),
    every_other_step=Recipe(agent={"steps": "0-,every=2"}),
)

UNRECORDED = "what attention itself computes is not recorded; proj is the next module"


# --- weights as loaded -----------------------------------------------------------------------------------------------------


def loaded(training: Training, change: Callable[[Gpt], object]) -> None:
    def without_gradients(model: Gpt) -> None:
        with torch.no_grad():
            change(model)

    training.on_model.append(without_gradients)


@fault("weights initialised from a different seed", Place(0, "weights", FIRST_PARAMETER, further=("*",)))
def different_seed(training: Training) -> None:
    training.change(seed=training.recipe.seed + 1)


@fault(
    "mlp.fc1.weight of the two layers swapped when loaded",
    Place(0, "weights", "blocks.0.mlp.fc1.weight", further=("weights blocks.1.mlp.fc1.weight",)),
)
def swapped_weights(training: Training) -> None:
    def swap(model: Gpt) -> None:
        a, b = (model.block(layer).mlp.fc1.weight for layer in (0, 1))
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)

    loaded(training, swap)


@fault(
    "the sign of one column of a weight is flipped; min, max and norm stay the same",
    Place(0, "weights", "blocks.1.mlp.fc2.weight"),
)
def sign_flip(training: Training) -> None:
    def flip(model: Gpt) -> None:
        weight = model.block(1).mlp.fc2.weight
        extremes = {int(weight.argmin()) % weight.shape[1], int(weight.argmax()) % weight.shape[1]}
        column = next(c for c in range(weight.shape[1]) if c not in extremes)
        before = (weight.min(), weight.max(), weight.norm())
        weight[:, column] *= -1
        assert (weight.min(), weight.max(), weight.norm()) == before

    loaded(training, flip)


@fault(
    "a square weight is loaded transposed; every summary statistic stays the same",
    Place(0, "weights", "blocks.0.attn.proj.weight"),
)
def transposed_weight(training: Training) -> None:
    loaded(training, lambda model: model.block(0).attn.proj.weight.copy_(model.block(0).attn.proj.weight.T.clone()))


@fault("the value heads of one layer's qkv.weight are reordered", Place(0, "weights", "blocks.1.attn.qkv.weight"))
def permuted_heads(training: Training) -> None:
    def permute(model: Gpt) -> None:
        attention = model.block(1).attn
        values = attention.qkv.weight.chunk(3)[2]
        values.copy_(values.unflatten(0, (attention.heads, -1)).flip(0).flatten(0, 1).clone())

    loaded(training, permute)


@fault(
    "the output projection has its own weight instead of the embedding's",
    Place(0, "weights", "head.weight", "missing_in_a", further=("grad tok.weight",)),
    base="tied",
)
def untied_weights(training: Training) -> None:
    def untie(model: Gpt) -> None:
        model.head.weight = nn.Parameter(model.tok.weight.detach().clone())

    training.on_model.append(untie)


# --- the model's structure -------------------------------------------------------------------------------------------------


@fault("the second block is left out", Place(0, "weights", "blocks.1.ln1.weight", "missing_in_b", further=("forward ln_f",)))
def missing_layer(training: Training) -> None:
    def leave_out(model: Gpt) -> None:
        del model.blocks[1]

    training.on_model.append(leave_out)


@fault(
    "the activation function of one mlp is not called",
    Place(0, "forward", "blocks.1.mlp.act", "missing_in_b", further=("forward blocks.1.mlp.fc2",)),
)
def missing_activation(training: Training) -> None:
    def leave_out(model: Gpt) -> None:
        mlp = model.block(1).mlp
        mlp.forward = lambda x: mlp.fc2(mlp.fc1(x))

    training.on_model.append(leave_out)


@fault(
    "an additional layer norm after the second block",
    Place(0, "weights", "blocks.1.ln3.weight", "missing_in_a", further=("forward blocks.1",)),
)
def added_layer(training: Training) -> None:
    def add(model: Gpt) -> None:
        block = model.block(1)
        norm = block.ln3 = nn.LayerNorm(training.recipe.sizes.width)
        plain = block.forward
        block.forward = lambda x: norm(plain(x))

    training.on_model.append(add)


@fault(
    "an additional function without weights at the end of the first mlp",
    Place(0, "forward", "blocks.0.mlp.extra", "missing_in_a", further=("forward blocks.0.mlp",)),
)
def added_activation(training: Training) -> None:
    def add(model: Gpt) -> None:
        mlp = model.block(0).mlp
        extra = mlp.extra = nn.Tanh()
        mlp.forward = lambda x: extra(mlp.fc2(mlp.act(mlp.fc1(x))))

    training.on_model.append(add)


@fault(
    "the mlp of one layer is 48 wide instead of 64",
    Place(
        0,
        "weights",
        "blocks.1.mlp.fc1.weight",
        "shape",
        further=("weights blocks.1.mlp.fc1.bias", "weights blocks.1.mlp.fc2.weight"),
    ),
)
def narrower_layer(training: Training) -> None:
    def narrow(model: Gpt) -> None:
        mlp = model.block(1).mlp
        for old, rows, columns in ((mlp.fc1, 48, 32), (mlp.fc2, 32, 48)):
            old.weight = nn.Parameter(old.weight.detach()[:rows, :columns].clone())
            old.bias = nn.Parameter(old.bias.detach()[:rows].clone())

    training.on_model.append(narrow)


@fault("layer norm after attention instead of before", Place(0, "forward", "blocks.1.ln1", "order"))
def swapped_modules(training: Training) -> None:
    def swap(model: Gpt) -> None:
        block = model.block(1)

        def forward(x: torch.Tensor) -> torch.Tensor:
            x = x + block.ln1(block.attn(x))
            return x + block.mlp(block.ln2(x))

        block.forward = forward

    training.on_model.append(swap)


# --- the batch -------------------------------------------------------------------------------------------------------------


@fault(
    "one rank gets a different batch in one step",
    Place(K, "batch", "tokens", rank=LAST, ranks=(LAST,), further=("batch targets",)),
)
def different_batch(training: Training) -> None:
    def batch(step: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        wrong = training.rank == training.world - 1 and step == K
        return training.data_of(step + 50, micro, training.rank) if wrong else training.data(step, micro)

    training.batch = batch


@fault("targets shifted by one more position", Place(K, "batch", "targets"))
def shifted_labels(training: Training) -> None:
    def batch(step: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, targets = training.data(step, micro)
        return tokens, targets.roll(-1, dims=1) if step >= K else targets

    training.batch = batch


@fault("sequences cut one token shorter", Place(K, "batch", "tokens", "shape", further=("batch targets",)))
def shorter_batch(training: Training) -> None:
    def batch(step: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, targets = training.data(step, micro)
        return (tokens[:, :-1], targets[:, :-1]) if step >= K else (tokens, targets)

    training.batch = batch


@fault(
    "the two micro-batches of a step are swapped",
    Place(K, "batch", "tokens", further=("batch targets",)),
    base="accumulating",
)
def swapped_micro_batches(training: Training) -> None:
    training.batch = lambda step, micro: training.data(step, 1 - micro if step == K else micro)


# --- forward ---------------------------------------------------------------------------------------------------------------


@fault("layer norm with eps 1e-3 instead of 1e-5", Place(K, "forward", "blocks.0.ln1"))
def layernorm_eps(training: Training) -> None:
    training.at(K, lambda: setattr(training.model.block(0).ln1, "eps", 1e-3))


def scale_by_width(training: Training) -> None:
    attention = training.model.block(0).attn
    attention.scale = 1.0 / math.sqrt(training.recipe.sizes.width)


@fault(
    "attention divides by sqrt(width) instead of sqrt(width of a head)",
    Place(K, "forward", "blocks.0.attn.proj"),
    why=UNRECORDED,
)
def attention_scale(training: Training) -> None:
    training.at(K, lambda: scale_by_width(training))


@fault(
    "the same, in a model that records attention's probabilities with inspect()",
    Place(K, "forward", "blocks.0.attn.probs", kind="inspect"),
    base="inspected",
)
def attention_scale_inspected(training: Training) -> None:
    training.at(K, lambda: scale_by_width(training))


@fault("a linear layer that ignores its bias", Place(K, "forward", "blocks.1.mlp.fc1"))
def dropped_bias(training: Training) -> None:
    def drop() -> None:
        fc1 = training.model.block(1).mlp.fc1
        # Times zero, so that every parameter has a gradient, as DistributedDataParallel demands.
        fc1.forward = lambda x: functional.linear(x, fc1.weight, fc1.bias * 0)

    training.at(K, drop)


@fault("features of a layer norm's output rotated by one: only sketch and hash can see it", Place(K, "forward", "blocks.0.ln2"))
def permuted_features(training: Training) -> None:
    def permute() -> None:
        ln2 = training.model.block(0).ln2
        plain = ln2.forward
        ln2.forward = lambda x: plain(x).roll(1, dims=-1)

    training.at(K, permute)


@fault("heads merged without transposing them first", Place(K, "forward", "blocks.0.attn.proj"), why=UNRECORDED)
def heads_not_transposed(training: Training) -> None:
    def merge() -> None:
        training.model.block(0).attn.merge = lambda mixed: mixed.reshape(mixed.shape[0], mixed.shape[2], -1)

    training.at(K, merge)


@fault("attention sees one token ahead", Place(K, "forward", "blocks.1.attn.proj"), why=UNRECORDED)
def causal_mask(training: Training) -> None:
    def see_ahead() -> None:
        def masked(scores: torch.Tensor) -> torch.Tensor:
            return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2), float("-inf"))

        training.model.block(1).attn.masked = masked

    training.at(K, see_ahead)


@fault("softmax of attention computed in float16", Place(K, "forward", "blocks.1.attn.probs", kind="inspect"), base="inspected")
def softmax_in_f16(training: Training) -> None:
    def soften() -> None:
        training.model.block(1).attn.softmax = lambda scores: scores.half().softmax(dim=-1).float()

    training.at(K, soften)


@fault("GELU by its tanh approximation", Place(K, "forward", "blocks.1.mlp.act"))
def gelu_tanh(training: Training) -> None:
    training.at(K, lambda: setattr(training.model.block(1).mlp.act, "approximate", "tanh"))


@fault("one mlp under bfloat16 autocast", Place(K, "forward", "blocks.1.mlp.fc1", "dtype"))
def bf16_sublayer(training: Training) -> None:
    def autocast() -> None:
        mlp = training.model.block(1).mlp
        plain = mlp.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return plain(x).to(x.dtype)

        mlp.forward = forward

    training.at(K, autocast)


@fault("one linear layer computes in bfloat16 and casts back", Place(K, "forward", "blocks.0.mlp.fc2"))
def bf16_inside(training: Training) -> None:
    def cast() -> None:
        fc2 = training.model.block(0).mlp.fc2
        fc2.forward = lambda x: functional.linear(x.bfloat16(), fc2.weight.bfloat16(), fc2.bias.bfloat16()).float()

    training.at(K, cast)


@fault("one layer's output overflows in one step; NaN everywhere after it", Place(K, "forward", "blocks.1.mlp.fc1", "nonfinite"))
def overflow(training: Training) -> None:
    def blow_up() -> None:
        fc1 = training.model.block(1).mlp.fc1
        plain = fc1.forward
        fc1.forward = lambda x: plain(x) * 1e20 * 1e20
        training.at(K + 1, lambda: setattr(fc1, "forward", plain))

    training.at(K, blow_up)


@fault("position ids begin at 1", Place(K, "forward", "pos"))
def shifted_positions(training: Training) -> None:
    def shift() -> None:
        pos = training.model.pos
        plain = pos.forward
        pos.forward = lambda ids: plain((ids + 1) % pos.num_embeddings)

    training.at(K, shift)


@fault(
    "the residual around attention is halved",
    Place(K, "forward", "blocks.1.ln2"),
    why="the sum is computed between modules; ln2 is the first module that receives it",
)
def residual_scale(training: Training) -> None:
    def halve() -> None:
        block = training.model.block(1)

        def forward(x: torch.Tensor) -> torch.Tensor:
            x = x + 0.5 * block.attn(block.ln1(x))
            return x + block.mlp(block.ln2(x))

        block.forward = forward

    training.at(K, halve)


@fault(
    "one element of a weight on one rank is damaged in memory between two steps",
    Place(K, "forward", "blocks.1.mlp.fc1", rank=LAST, ranks=(LAST,)),
    why="weights are recorded only after their update; the first to compute with the damaged one is its layer",
)
def damaged_weight(training: Training) -> None:
    def damage() -> None:
        if training.rank == training.world - 1:
            with torch.no_grad():
                training.model.block(1).mlp.fc1.weight[5, 7] += 4.0

    training.at(K, damage)


@fault(
    "the same, in a model whose inputs are recorded too",
    Place(K, "forward", "blocks.1.ln2", kind="input"),
    base="with_inputs",
)
def residual_scale_with_inputs(training: Training) -> None:
    residual_scale(training)


@fault(
    "the second call of a block that runs twice uses a different activation function",
    Place(K, "forward", "blocks.0.mlp.act", call=1),
    base="shared",
)
def second_call(training: Training) -> None:
    def replace() -> None:
        act = training.model.block(0).mlp.act
        plain, calls = act.forward, [0]

        def forward(x: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            return plain(x) if calls[0] % 2 else functional.relu(x)

        act.forward = forward

    training.at(K, replace)


@fault(
    "eps of a layer norm that is excluded from recording",
    Place(K, "forward", "blocks.0.mlp.fc1"),
    base="without_ln2",
    why="the module is not recorded; the next one computes from its output",
)
def fault_in_excluded_module(training: Training) -> None:
    training.at(K, lambda: setattr(training.model.block(0).ln2, "eps", 1e-1))


@fault(
    "a linear layer that ignores its bias, recorded without sketches",
    Place(K, "forward", "blocks.1.mlp.fc1"),
    base="without_sketches",
)
def dropped_bias_by_statistics(training: Training) -> None:
    dropped_bias(training)


@fault(
    "features of a layer norm's output rotated by one, recorded without sketches",
    Place(K, "forward", "blocks.0.mlp.fc1", bitwise="forward blocks.0.ln2"),
    base="without_sketches",
    why="statistics alone cannot see a permutation; the report's first difference of any size names ln2",
)
def permuted_features_by_statistics(training: Training) -> None:
    permuted_features(training)


# --- evaluation ------------------------------------------------------------------------------------------------------------


@fault(
    "dropout stays on in one evaluation",
    Place(K, "forward", "blocks.0.drop", mode="eval"),
    base="dropout",
    why="the evaluation follows the update of step 2, which ends that step, so it is the first thing in step 3",
)
def dropout_in_evaluation(training: Training) -> None:
    def evaluation() -> None:
        if training.step != K - 1:
            training.evaluate()
            return
        random = torch.get_rng_state()
        tokens, targets = training.data_of(1000, 0, training.rank)
        with torch.no_grad():
            statagent.log_scalar("eval_loss", training.compute_loss(training.trained(tokens), targets))
        torch.set_rng_state(random)

    training.evaluation = evaluation


@fault(
    "the same, and training then lacks the random numbers that it draws",
    Place(K, "forward", "blocks.0.drop", mode="eval"),
    base="dropout",
    why="the evaluation runs before the training pass of its step",
)
def dropout_in_evaluation_moves_the_stream(training: Training) -> None:
    def evaluation() -> None:
        if training.step == K - 1:
            tokens, targets = training.data_of(1000, 0, training.rank)
            with torch.no_grad():
                statagent.log_scalar("eval_loss", training.compute_loss(training.trained(tokens), targets))
        else:
            training.evaluate()

    training.evaluation = evaluation


@fault(
    "the model is not set back to training after an evaluation",
    Place(K, "forward", "tok", "missing_in_b"),
    base="dropout",
)
def evaluation_mode_left_on(training: Training) -> None:
    def evaluation() -> None:
        training.evaluate()
        if training.step == K - 1:
            training.trained.eval()

    training.evaluation = evaluation


@fault(
    "dropout uses a different stream of random numbers on one rank",
    Place(K, "forward", "blocks.0.drop", rank=LAST, ranks=(LAST,)),
    base="dropout",
)
def dropout_seed(training: Training) -> None:
    training.at(K, lambda: torch.manual_seed(99) if training.rank == training.world - 1 else None)


# --- loss ------------------------------------------------------------------------------------------------------------------


@fault("padding is not ignored in the loss", Place(K, "loss", "loss"))
def ignore_index(training: Training) -> None:
    def compute_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        ignored = -100 if training.step >= K else PAD
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ignored)

    training.compute_loss = compute_loss


@fault("the loss shifts the targets a second time", Place(K, "loss", "loss"))
def loss_shifts_labels(training: Training) -> None:
    def compute_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return training.cross_entropy(logits, targets.roll(-1, dims=1) if training.step >= K else targets)

    training.compute_loss = compute_loss


@fault("label smoothing 0.05 in the loss", Place(K, "loss", "loss"))
def label_smoothing(training: Training) -> None:
    def compute_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        smoothing = 0.05 if training.step >= K else 0.0
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=smoothing)

    training.compute_loss = compute_loss


# --- backward --------------------------------------------------------------------------------------------------------------


@fault("the gradient of one activation overflows", Place(K, "backward", "blocks.0.mlp.act", "nonfinite"))
def inf_in_gradient(training: Training) -> None:
    def blow_up() -> None:
        act = training.model.block(0).mlp.act
        plain = act.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = plain(x)
            y.register_hook(lambda gradient: gradient * 1e30 * 1e30)
            return y

        act.forward = forward

    training.at(K, blow_up)


@fault(
    "sqrt at zero inside fc1: its value is right, its gradient is NaN",
    Place(K, "backward", "blocks.1.ln2", "nonfinite"),
    why="gradients are recorded at modules' outputs; what fc1's backward computes is the gradient of ln2's output",
)
def nan_in_backward(training: Training) -> None:
    def add() -> None:
        fc1 = training.model.block(1).mlp.fc1
        plain = fc1.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = plain(x)
            return y + (y * 0).sqrt()

        fc1.forward = forward

    training.at(K, add)


@fault(
    "a checkpointed block draws different random numbers for dropout when it is recomputed",
    Place(K, "backward", "blocks.1.mlp.fc2"),
    base="dropout",
)
def checkpoint_without_random_state(training: Training) -> None:
    def compute_again() -> None:
        block = training.model.block(1)
        plain = block.forward
        block.forward = lambda x: checkpoint(plain, x, use_reentrant=False, preserve_rng_state=False)

    training.at(K, compute_again)


@fault("the loss is not divided by the number of micro-batches", Place(K, "backward", "head"), base="accumulating")
def accumulation_not_divided(training: Training) -> None:
    def multiply(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = training.cross_entropy(logits, targets)
        if training.step == K:
            loss.register_hook(lambda gradient: gradient * training.recipe.micro_batches)
        return loss

    training.compute_loss = multiply


# --- gradients -------------------------------------------------------------------------------------------------------------


@fault("gradients are not averaged over the ranks in one step", Place(K, "grad", FIRST_PARAMETER), worlds=(2,))
def skipped_all_reduce(training: Training) -> None:
    training.synchronised = lambda: training.step != K


@fault("gradients are summed over the ranks instead of averaged", Place(K, "grad", FIRST_PARAMETER), worlds=(2,))
def summed_gradients(training: Training) -> None:
    def finish() -> None:
        if training.step >= K:  # the wrapper has divided by their number
            for parameter in training.model.parameters():
                assert parameter.grad is not None
                parameter.grad *= training.world

    training.finish_gradients = finish


@fault("a hook halves the gradient of one weight", Place(K, "grad", "blocks.1.mlp.fc2.weight"))
def gradient_hook(training: Training) -> None:
    training.at(K, lambda: training.model.block(1).mlp.fc2.weight.register_hook(lambda gradient: gradient * 0.5))


@fault(
    "the second micro-batch of one step is left out",
    Place(K, "batch", "tokens", "missing_in_b", micro_batch=1),
    base="accumulating",
)
def missing_micro_batch(training: Training) -> None:
    training.micro_batches = lambda: 1 if training.step == K else 2


@fault(
    "gradients of the first micro-batch are set to zero before the second", Place(K, "grad", FIRST_PARAMETER), base="accumulating"
)
def zeroed_between(training: Training) -> None:
    def zero(micro: int) -> None:
        if training.step == K and micro == 1:
            training.optimizer.zero_grad()

    training.before_micro_batch = zero


@fault("gradients of the scaled loss are not unscaled", Place(K, "grad", FIRST_PARAMETER), base="scaled")
def not_unscaled(training: Training) -> None:
    training.finish_gradients = lambda: training.unscale() if training.step != K else None


@fault("gradient clipping is left out", Place(K, "grad", FIRST_PARAMETER), base="accumulating")
def clipping_omitted(training: Training) -> None:
    training.finish_gradients = lambda: training.clip(0.5) if training.step < K else None


@fault("gradients clipped to norm 0.6 instead of 0.5", Place(K, "grad", FIRST_PARAMETER), base="accumulating")
def other_max_norm(training: Training) -> None:
    training.finish_gradients = lambda: training.clip(0.5 if training.step < K else 0.6)


@fault("one weight is frozen", Place(0, "grad", "blocks.0.mlp.fc1.weight", "missing_in_b"))
def frozen_weight(training: Training) -> None:
    training.on_model.append(lambda model: model.block(0).mlp.fc1.weight.requires_grad_(False))


# --- optimizer -------------------------------------------------------------------------------------------------------------


@fault("learning rate 1 % too high", Place(K, "optimizer", FIRST_PARAMETER))
def learning_rate(training: Training) -> None:
    def raise_rate() -> None:
        for group in training.optimizer.param_groups:
            group["lr"] *= 1.01

    training.at(K, raise_rate)


@fault("twice the learning rate on one rank", Place(K, "optimizer", FIRST_PARAMETER, rank=LAST, ranks=(LAST,)))
def learning_rate_of_one_rank(training: Training) -> None:
    def double() -> None:
        for group in training.optimizer.param_groups:
            group["lr"] *= 2 if training.rank == training.world - 1 else 1

    training.at(K, double)


@fault(
    "weight decay applied to biases too",
    Place(0, "optimizer", "blocks.0.attn.proj.bias"),
    why="layer norms' biases come before it, but are zero in the first step",
)
def decay_on_biases(training: Training) -> None:
    def groups(model: Gpt) -> list[dict[str, Any]]:
        decayed, others = training.decay_groups(model)
        biases = {id(p) for name, p in model.named_parameters() if name.endswith("bias")}
        return [decayed, {**others, "params": [p for p in others["params"] if id(p) not in biases]},
                {"params": [p for p in others["params"] if id(p) in biases], "weight_decay": training.recipe.decay}]  # fmt: skip

    training.groups = groups


@fault(
    "beta2 of Adam 0.95 instead of 0.99",
    Place(0, "optimizer", FIRST_PARAMETER, kind="optimizer_state", path="exp_avg_sq"),
    why="the first update does not depend on beta2, thanks to the bias correction; the state does",
)
def beta2(training: Training) -> None:
    training.change(betas=(training.recipe.betas[0], 0.95))


@fault(
    "momentum 0.8 instead of 0.9",
    Place(1, "optimizer", FIRST_PARAMETER),
    base="momentum",
    why="the first update uses the gradient alone",
)
def momentum(training: Training) -> None:
    training.change(momentum=0.8)


@fault(
    "one rank's optimizer skips one weight, which becomes stale there",
    Place(K, "optimizer", "blocks.1.mlp.fc1.weight", rank=LAST, ranks=(LAST,)),
)
def stale_weight(training: Training) -> None:
    def leave_out() -> None:
        if training.rank == training.world - 1:
            stale = training.model.block(1).mlp.fc1.weight
            for group in training.optimizer.param_groups:
                group["params"] = [p for p in group["params"] if p is not stale]

    training.at(K, leave_out)


@fault(
    "the optimizer updates twice in step 3",
    Place(K + 1, "batch", "tokens", "missing_in_b"),
    why="an update ends its step, so the second update is a step without a batch",
)
def double_step(training: Training) -> None:
    def update() -> None:
        training.step_optimizer()
        if training.step == K:
            training.step_optimizer()

    training.update = update


@fault(
    "learning rate 1 % too high from step 3, where only every other step is recorded",
    Place(K + 1, "forward", "tok"),
    base="every_other_step",
    why="step 3 is not recorded; in step 4 the embedding is the first to use what it changed",
)
def learning_rate_between_recorded_steps(training: Training) -> None:
    learning_rate(training)


@fault("after a resume, one weight is that of a different layer", Place(K, "weights", "blocks.0.ln2.weight"), base="resumed")
def wrong_checkpoint(training: Training) -> None:
    def restore(state: dict[str, Any]) -> None:
        state["model"]["blocks.0.ln2.weight"] = state["model"]["blocks.1.ln2.weight"]
        training.load_checkpoint(state)

    training.restore = restore


@fault("after a resume, the optimizer starts with empty state", Place(K, "optimizer", FIRST_PARAMETER), base="resumed")
def state_lost_on_resume(training: Training) -> None:
    training.restore = lambda state: training.model.load_state_dict(state["model"])


@fault(
    "mlp.fc1 of both layers is called mlp.up, and one starts from different weights",
    Place(0, "weights", "blocks.1.mlp.fc1.weight"),
    why="renamed modules are matched by order, class and shape, so only the weights differ",
)
def renamed_layer(training: Training) -> None:
    def rename(mlp: Mlp) -> None:
        up = mlp.up = mlp.fc1
        del mlp.fc1
        # In its old place among the mlp's modules.
        for name in ("act", "fc2"):
            mlp._modules[name] = mlp._modules.pop(name)
        mlp.forward = lambda x: mlp.fc2(mlp.act(up(x)))

    def change(model: Gpt) -> None:
        model.block(1).mlp.fc1.weight *= 1.01
        for layer in (0, 1):
            rename(model.block(layer).mlp)

    loaded(training, change)
