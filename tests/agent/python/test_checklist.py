"""The configuration checklist: what is recorded without anybody writing it down."""

from __future__ import annotations

import os
import random
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import statagent
from statagent._settings import checklist as _checklist
from statagent._settings import environment as _environment
from statagent._settings.checklist import CHANGES_MAX, model_checklist, optimizer_checklist, parallel_checklist, pattern_of

from .models import Net, data, seeded
from .support import Recording, python

NOWHERE: dict[str, Any] = {"collector": "127.0.0.1:1", "connect_timeout": 0}


def changed(make: Any, change: Any) -> dict[str, tuple[str | None, str | None]]:
    """Entries of a model that a change of it changes."""
    before = model_checklist(make())
    model = make()
    change(model)
    after = model_checklist(model)
    keys = sorted(before.keys() | after.keys())
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


class Deep(nn.Module):
    """48 pre-norm layers with dropout and an embedding that shares its weight with the head."""

    def __init__(self, layers: int = 48) -> None:
        super().__init__()
        self.tok = nn.Embedding(10, 4, padding_idx=0)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(4), "fc": nn.Linear(4, 4), "act": nn.GELU(), "drop": nn.Dropout(0.1)})
            for _ in range(layers)
        )
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.tok.weight


# --- model ---


def test_structure_and_settings_of_a_model_are_found() -> None:
    found = model_checklist(Deep())
    expected = {
        "model.class": "Deep", "model.modules": str(3 + 48 * 5 + 1), "model.layers.layers": "48", "model.activations": "GELU x 48",
        "model.parameters": str(40 + 48 * (4 + 4 + 16 + 4)), "model.parameters.frozen": "0", "model.device": "cpu x 193",
        "model.tied": "1", "model.tied.tok.weight": "head.weight", "module.tok.padding_idx": "0",
        "module.layers.*.norm.eps": "1e-05", "module.layers.*.norm.class": "LayerNorm", "module.layers.*.drop.p": "0.1",
        "module.layers.*.fc.out_features": "4", "module.layers.*.fc.dtype": "float32",
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == expected
    assert len(found) < 100, "48 layers share their entries"


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        (lambda m: setattr(m.layers[7].norm, "eps", 1e-3), "module.layers.*.norm.eps", "1e-05 x 47; 0.001 (layers.7.norm)"),
        (lambda m: setattr(m.layers[3].drop, "p", 0.2), "module.layers.*.drop.p", "0.1 x 47; 0.2 (layers.3.drop)"),
        (lambda m: m.layers[3].fc.bfloat16(), "module.layers.*.fc.dtype", "float32 x 47; bfloat16 (layers.3.fc)"),
        (lambda m: m.layers[3].norm.eval(), "module.layers.*.norm.training", "true x 47; false (layers.3.norm)"),
        (
            lambda m: m.layers[3].norm.requires_grad_(False),
            "module.layers.*.norm.weight.requires_grad",
            "true x 47; false (layers.3.norm.weight)",
        ),
        (lambda m: setattr(m.head, "weight", nn.Parameter(torch.zeros(10, 4))), "model.tied", None),
        (
            lambda m: m.layers[3].update({"act": nn.ReLU()}),
            "module.layers.*.act.class",
            "GELU x 47; ReLU (layers.3.act)",
        ),
    ],
    ids=["eps", "dropout", "dtype", "eval", "frozen", "untied", "activation"],
)
def test_one_changed_module_is_named(change: Any, key: str, value: str | None) -> None:
    differences = changed(Deep, change)
    assert key in differences, differences
    assert differences[key][1] == value


class Adapted(nn.Linear):
    """As PEFT's layers: a number for each adapter, by its name."""

    def __init__(self, alpha: int = 16) -> None:
        super().__init__(4, 4)
        self.r, self.lora_alpha, self.scaling = {"default": 8}, {"default": alpha}, {"default": alpha / 8}
        self.use_rslora = {"default": False}
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(0.1)})
        self.cache = {"a.b": 1, 3: 2, "tensor": torch.zeros(2), "text": "x", "nested": {"a": 1}}


def test_settings_of_adapters_are_found_by_their_names() -> None:
    found = model_checklist(nn.Sequential(Adapted(), Adapted(), Adapted(alpha=128)))
    expected = {
        "module.*.r[default]": "8",
        "module.*.lora_alpha[default]": "16 (0, 1); 128 (2)",
        "module.*.scaling[default]": "2.0 (0, 1); 16.0 (2)",
        "module.*.use_rslora[default]": "false",
        "module.*.lora_dropout.default.p": "0.1",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert not [key for key in found if ".cache" in key]


def test_parts_of_a_sequential_are_told_apart() -> None:
    found = model_checklist(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8, eps=1e-6)))
    assert found["module.0.in_features"] == "8" and found["module.2.eps"] == "1e-06"


def layers(approximate: str) -> list[nn.Module]:
    return [nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(approximate), nn.Linear(8, 8)]


def test_it_is_known_which_part_of_repeated_sequentials_has_a_setting() -> None:
    found = model_checklist(nn.Sequential(*[nn.Sequential(*layers("tanh")) for _ in range(3)]))
    assert found["module.*.*.approximate"] == "tanh (*.2); not set x 9"
    assert found["module.*.*.class"] == "Linear (*.1, *.3); LayerNorm (*.0); GELU (*.2)"
    assert found["module.*.*.in_features"] == "8 (*.1, *.3); not set x 6"


def test_it_is_known_which_part_of_a_flat_sequential_has_a_setting() -> None:
    found = model_checklist(nn.Sequential(*layers("none"), *layers("none"), *layers("tanh")))
    assert found["module.*.approximate"] == "none (2, 6); tanh (10); not set x 9"
    assert found["module.*.eps"] == "1e-05 (0, 4, 8); not set x 9"


def test_places_of_a_value_have_a_limit() -> None:
    found = model_checklist(nn.Sequential(*[part for _ in range(17) for part in (nn.Linear(8, 8), nn.Tanh())]))
    assert found["module.*.in_features"] == "8 x 17; not set x 17"


def test_replaced_forward_is_named() -> None:
    def other_forward(x: torch.Tensor) -> torch.Tensor:
        return x

    differences = changed(Deep, lambda m: setattr(m.layers[5].fc, "forward", other_forward))
    assert list(differences) == ["module.layers.*.fc.forward"]
    assert "other_forward (layers.5.fc); not set x 47" in str(differences["module.layers.*.fc.forward"][1])


def test_a_class_own_forward_is_not_replaced_by_a_trainer_that_puts_it_back_or_compiles_it() -> None:
    def put_back(m: Any) -> None:
        m.layers[5].fc.forward = m.layers[5].fc.forward
        m.layers[6].fc.forward = torch.compile(m.layers[6].fc.forward)

    assert changed(Deep, put_back) == {}


def test_what_is_compiled_is_in_the_parallel_layout() -> None:
    assert "parallel.compiled" not in parallel_checklist(Deep())
    assert parallel_checklist(torch.compile(Deep()))["parallel.compiled"] == "true"
    model = Deep()
    model.layers[0].compile()
    model.layers[1] = torch.compile(model.layers[1])  # type: ignore[assignment]
    assert parallel_checklist(model)["parallel.compiled"] == "2 modules"


def test_hugging_face_configuration_is_flattened() -> None:
    model = Net()
    content = {"hidden_size": 8, "rope": {"theta": 1e4}, "id2label": {0: "a"}, "tie": False}
    model.config = SimpleNamespace(to_dict=lambda: content, _attn_implementation="sdpa")  # type: ignore[assignment]
    found = model_checklist(model)
    assert found["model.config.hidden_size"] == "8"
    assert found["model.config.rope.theta"] == "10000.0"
    assert found["model.config.tie"] == "false"
    assert found["model.config._attn_implementation"] == "sdpa"
    assert not any("id2label" in key for key in found)


def test_number_of_entries_is_bounded_and_the_rest_is_hashed() -> None:
    def wide(eps: float) -> nn.Module:
        model = nn.Module()
        for number in range(1000):
            model.add_module(f"n{number}x", nn.LayerNorm(2, eps=1e-5 if number < 999 else eps))
        return model

    a, b = model_checklist(wide(1e-5)), model_checklist(wide(1e-3))
    assert len(a) <= _checklist.ENTRIES_MAX
    assert int(a["checklist.left_out"]) > 1000
    assert a["checklist.left_out.hash"] != b["checklist.left_out.hash"], "a change beyond the bound is seen"


def test_models_that_are_odd_are_listed_all_the_same() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lazy = nn.LazyLinear(3)
            self.meta = nn.Linear(2, 2, device="meta")
            self.empty = nn.Sequential()
            self.name, self.big, self.hostile = "x" * 5000, list(range(1000)), Hostile()

    class Hostile(str):
        def __str__(self) -> str:
            raise RuntimeError("no")

    found = model_checklist(Odd())
    assert found["model.class"] == "Odd"
    assert len(found["module.Odd.name"]) < 200
    assert "module.Odd.big" not in found
    assert model_checklist(nn.Identity())["model.parameters"] == "0"


def test_pattern_replaces_whole_numbers_only() -> None:
    assert pattern_of("layer1.0.conv2.3") == "layer1.*.conv2.*"
    assert pattern_of("h.0.1.x") == "h.*.*.x"


# --- optimizers ---


def test_each_parameter_group_is_listed() -> None:
    net = seeded(Net)
    groups = [{"params": net.head.parameters(), "lr": 0.1}, {"params": net.blocks.parameters(), "weight_decay": 0.0}]
    found = optimizer_checklist([torch.optim.AdamW(groups, lr=torch.tensor(0.5), betas=(0.8, 0.9))])
    expected = {
        "optimizer.class": "AdamW", "optimizer.groups": "2", "optimizer.group0.lr": "0.1", "optimizer.group1.lr": "0.5",
        "optimizer.group0.weight_decay": "0.01", "optimizer.group1.weight_decay": "0.0", "optimizer.group0.betas": "(0.8, 0.9)",
        "optimizer.group0.eps": "1e-08", "optimizer.group0.fused": "null", "optimizer.group0.tensors": "2",
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == expected
    two = optimizer_checklist([torch.optim.SGD(net.parameters(), lr=1), torch.optim.Adam(net.parameters())])
    assert two["optimizer.0.class"] == "SGD" and two["optimizer.1.group0.lr"] == "0.001"


def test_many_groups_share_their_entries() -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1 if i else 0.2} for i in range(40)]
    found = optimizer_checklist([torch.optim.SGD(groups, lr=1)])
    assert found["optimizer.group*.lr"] == "0.1 x 39; 0.2 (group0)"
    assert len(found) < 20


# --- through watch ---


def train(net: nn.Module, optimizer: Any, steps: int = 1) -> None:
    for _ in range(steps):
        net(data()).sum().backward()
        optimizer.step()


def test_watch_adds_model_and_optimizer_to_the_configuration(recording: Recording) -> None:
    agent = statagent.init(run="test", config={"model": {"class": "mine"}, "lr": 1}, **NOWHERE)
    net = seeded(Net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer=optimizer)
    found = recording.config
    assert found["module.blocks.*.ln.eps"] == "1e-05"
    assert found["optimizer.group0.lr"] == "0.1"
    assert found["model.class"] == "mine", "what the user has set stands"
    assert len(agent.settings) == len(found)


def test_learning_rate_set_after_watch_and_before_the_first_update_counts(agent: Any, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer=optimizer)
    optimizer.param_groups[0]["lr"] = 0.3
    train(net, optimizer)
    assert recording.config["optimizer.group0.lr"] == "0.3"
    optimizer.param_groups[0]["lr"] = 0.4  # a schedule: a scalar tells
    train(net, optimizer)
    assert recording.config["optimizer.group0.lr"] == "0.3"


@pytest.mark.parametrize("end", ["steps", "flush", "close"])
def test_setting_that_changes_later_is_an_event_and_the_configuration_follows(agent: Any, recording: Recording, end: str) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer=optimizer)
    train(net, optimizer, 3)
    assert [e for e in recording.events if e[1] == "setting_changed"] == []
    net.block(1).ln.eps = 1e-3
    if end == "steps":
        train(net, optimizer)
    elif end == "flush":
        statagent.flush(timeout=0)
    if end != "close":
        assert [e for e in recording.events if e[1] == "setting_changed"], "told before the end"
    statagent.close(timeout=0)
    changed = [(step, fields) for step, kind, _, fields in recording.events if kind == "setting_changed"]
    key, value = "module.blocks.*.ln.eps", "1e-05 (blocks.0.ln); 0.001 (blocks.1.ln)"
    assert changed == [(4 if end == "steps" else 3, {"key": key, "from": "1e-05", "to": value})]
    assert recording.config[key] == value


def test_restless_settings_are_told_once(agent: Any, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer=optimizer)
    for number in range(40):
        net.calls = number
        train(net, optimizer)
    assert len([e for e in recording.events if e[1] == "setting_changed"]) == 1


def test_settings_beyond_the_limit_of_events_stay_as_they_were(agent: Any, recording: Recording) -> None:
    net = seeded(Net)
    for number in range(CHANGES_MAX + 5):
        setattr(net, f"count_{number}", 0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer=optimizer)
    for number in range(CHANGES_MAX + 5):
        setattr(net, f"count_{number}", 1)
    train(net, optimizer)
    told = {fields["key"] for _, kind, _, fields in recording.events if kind == "setting_changed"}
    changed = {key for key, value in recording.config.items() if ".count_" in key and value == "1"}
    assert len(told) == CHANGES_MAX
    assert changed == told


def test_second_model_has_keys_of_its_own(agent: Any, recording: Recording) -> None:
    statagent.watch(seeded(Net))
    statagent.watch(seeded(Net), name="teacher")
    statagent.watch(Deep(2), exclude=["head"])
    found = recording.config
    assert found["model.class"] == "Net" and found["model.teacher.class"] == "Net" and found["model.Deep.class"] == "Deep"
    assert found["module.teacher.blocks.*.ln.eps"] == "1e-05"


def test_model_without_anything_can_be_watched(agent: Any, recording: Recording) -> None:
    statagent.watch(nn.Identity())
    assert recording.config["model.class"] == "Identity"
    assert "dropped_refused" not in statagent.counters()


# --- process ---


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        (["--api-key", "abc"], "--api-key (redacted)"),
        (["--token=abc"], "--token=(redacted)"),
        (["--password", "1234"], "--password (redacted)"),
        (["--password=1234"], "--password=(redacted)"),
        (["--hfToken", "abc"], "--hfToken (redacted)"),
        (["wandb.api_key=abc"], "wandb.api_key=(redacted)"),
        (["https://user:pw@host/x"], "https://(redacted)@host/x"),
        (["--note", "hf_aBcD1234eFgH"], "--note (redacted)"),
        (["--db-pass", "it's 1 secret"], "--db-pass '(redacted)'"),
        (["--authtoken", "abc", "privatekey=abc"], "--authtoken (redacted) privatekey=(redacted)"),
        (["-H", "Authorization: Basic abc"], "-H 'Authorization: (redacted)'"),
        (["--extra", '{"api_key": "abc", "lr": 1}'], """--extra '{"api_key": "(redacted)", "lr": 1}'"""),
        (["--max-tokens", "512"], "--max-tokens 512"),
        (["--num-key-value-heads=8", "--key-dim", "64"], "--num-key-value-heads=8 --key-dim 64"),
        (["--tokenizer", "gpt2", "--lr=0.1"], "--tokenizer gpt2 --lr=0.1"),
        (["--use-token", "--epochs", "3"], "--use-token --epochs 3"),
    ],
)
def test_secrets_in_the_command_line_are_left_out(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, argument: list[str], shown: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["t.py", *argument])
    statagent.init(run="test", **NOWHERE)
    assert recording.config["command_line"] == f"t.py {shown}"


def test_only_listed_variables_are_recorded(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "NCCL_ALGO": "Ring", "TORCH_NCCL_BLOCKING_WAIT": "1", "MY_SECRET": "s3cret", "HF_TOKEN": "s3cret", "TORCH_API_TOKEN": "s3cret",
        "XLA_FLAGS": "--a", "PYTORCH_CUDA_ALLOC_CONF": "x", "NCCL_NET": "http://u:s3cret@proxy", "TORCH_PASS": "s3cret",
        "VLLM_API_KEY": "s3cret", "ORTMODULE_ALLOW_AUTOGRAD_CHECKPOINT": "1", "HCCL_DETERMINISTIC": "true", "ASCEND_LAUNCH_BLOCKING": "1",
        "MS_ENABLE_NUMA": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVTE_FLASH_ATTN": "0", "VLLM_ATTENTION_BACKEND": "FLASHINFER",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["train.py", "--token", "s3cret"])
    statagent.init(run="test", **NOWHERE)
    found = recording.config
    assert found["env.NCCL_ALGO"] == "Ring"
    assert {"env.XLA_FLAGS", "env.PYTORCH_CUDA_ALLOC_CONF", "env.TORCH_NCCL_BLOCKING_WAIT"} <= found.keys()
    assert {
        "env.ORTMODULE_ALLOW_AUTOGRAD_CHECKPOINT", "env.HCCL_DETERMINISTIC", "env.ASCEND_LAUNCH_BLOCKING", "env.MS_ENABLE_NUMA",
        "env.CUBLAS_WORKSPACE_CONFIG", "env.NVTE_FLASH_ATTN", "env.VLLM_ATTENTION_BACKEND",
    } <= found.keys()  # fmt: skip
    assert found["env.TORCH_PASS"] == "(redacted)", "that it is set is no secret"
    assert "s3cret" not in repr(found)


def test_precision_and_determinism_are_recorded(recording: Recording) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        statagent.init(run="test", **NOWHERE)
    found = recording.config
    assert found["torch.autocast.cpu"] == "torch.bfloat16"
    assert found["torch.autocast.cuda"] == "false"
    assert found["torch.float32_matmul_precision"] == "highest"
    names = {"torch.cuda.matmul.allow_tf32", "torch.cuda.matmul.bf16_reduced_precision_reduction", "torch.sdp.flash",
             "torch.deterministic.fill_uninitialized_memory", "torch.cpu_capability", "hardware.cpu.count"}  # fmt: skip
    assert names <= found.keys()


def test_seeds_are_recognised_and_states_hashed() -> None:
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(42)
    found = _environment.random_state()
    assert (found["random.torch.seed"], found["random.python.seed"], found["random.numpy.seed"]) == ("7", "7", "42")
    torch.rand(1)
    random.random()
    later = _environment.random_state()
    assert later["random.torch.seed"] == "7" and later["random.torch.state"] != found["random.torch.state"]
    assert later["random.python.seed"] == "7" and later["random.python.state"] != found["random.python.state"]
    for _ in range(2000):
        random.random()
    assert _environment.random_state()["random.python.seed"] == "unknown"


def test_looking_draws_no_random_numbers() -> None:
    model = Deep()
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    _environment.process_checklist()
    model_checklist(model)
    drawn = torch.rand(1).item(), random.random(), numpy.random.rand()
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    assert drawn == (torch.rand(1).item(), random.random(), numpy.random.rand())


@pytest.mark.parametrize(
    "package", ["onnxruntime-training", "onnx", "mindspore", "torch-npu", "transformer-engine", "vllm", "onnxruntime"]
)
def test_versions_of_frameworks_are_read_from_their_files(package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    folder = tmp_path / f"{package.replace('-', '_')}-7.8.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 7.8.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _environment.package_versions()[f"{package}.version"] == "7.8.9"


def test_a_changed_secret_of_a_module_stays_one(agent: Any, recording: Recording) -> None:
    model: Any = Net()
    model.api_token, model.note = "s3cret-one", "password=s3cret"
    statagent.watch(model)
    model.api_token, model.note = "s3cret-two", "password=s3crets"
    model(data()).sum().backward()
    statagent.step()
    changed = [event for event in recording.events if event[1] == "setting_changed"]
    assert {event[3]["key"] for event in changed} == {"module.Net.api_token", "module.Net.note"}
    assert "s3cret" not in repr([recording.sent_texts, recording.config])


def test_nothing_is_imported_to_know_its_version() -> None:
    script = (
        "import sys, statagent._settings.environment as e; f = e.process_checklist(); "
        "print(sorted(m for m in ('torch', 'numpy', 'transformers', 'jax', 'lightning') if m in sys.modules), f['torch.version'])"
    )
    assert python(script, cold=True).stdout.split() == ["[]", torch.__version__]


def test_hanging_git_costs_less_than_a_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 20\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    started = time.monotonic()
    assert _environment.git_state() == {}
    assert time.monotonic() - started < 5  # 0.9 s, on a busy machine


def test_automatic_entries_leave_room_for_the_users(recording: Recording) -> None:
    statagent.init(run="test", config={f"k{i}": i for i in range(3990)}, **NOWHERE)
    assert len(recording.config) <= 4096
    assert recording.config["k3989"] == "3989"


# --- what was asked to be recorded ---


def asked(recording: Recording) -> dict[str, str]:
    return {key: value for key, value in recording.config.items() if key.startswith("recording.")}


def test_what_a_watch_was_asked_to_record_is_recorded(recording: Recording) -> None:
    model = Net()
    statagent.init("r", steps="0-9", **NOWHERE)
    assert asked(recording) == {"recording.agent_steps": "0-9"}
    del recording.config["recording.agent_steps"]
    first = statagent.watch(model, kinds="output")
    plain = {"recording.kinds": "output", "recording.eval": "false", "recording.between": "false", "recording.optimizer": "false"}
    assert asked(recording) == plain
    first.remove()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"include": ["fc*", "head"], "exclude": "fc2", "steps": "5-", "parameter_steps": "every=2"}
    statagent.watch(
        model, optimizer, name="net", kinds=["output", "weight"], eval=True, **options | {"include": ["net.*"]}
    ).remove()
    found = {key: value for key, value in asked(recording).items() if key.startswith("recording.net.")}
    assert found == {
        "recording.net.kinds": "output, weight", "recording.net.eval": "true", "recording.net.between": "false",
        "recording.net.optimizer": "true", "recording.net.include": "net.*", "recording.net.exclude": "fc2",
        "recording.net.steps": "5-", "recording.net.parameter_steps": "every=2",
    }  # fmt: skip
    statagent.watch(model, name="net", kinds="output").remove()
    assert recording.config["recording.net.steps"] == "", "withdrawn"
    statagent.watch(model, kinds="output").remove()
    assert not any(key.startswith("recording.+") for key in asked(recording)), "the same as the first"
    statagent.watch(model, kinds="grad_output").remove()
    assert recording.config["recording.+2.kinds"] == "grad_output"
