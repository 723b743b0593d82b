"""The arguments of a Trainer in a run's configuration."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent
from statagent._settings.trainer import ENTRIES_MAX, trainer_settings

from .models import Net, data, seeded
from .support import Recording

SECRET = "hf_aXbYcZdEfGhIjKlMnOpQrStUvWxYz12345"


class Schedule(enum.Enum):
    LINEAR = "linear"


@dataclasses.dataclass
class Nested:
    split_batches: bool = False
    dispatch: Any = None


@dataclasses.dataclass
class Arguments:
    """As TrainingArguments: a dataclass; its subclasses add fields of their own."""

    output_dir: str = "/tmp/tmp14abc/out"
    run_name: str = "quick-fox-7"
    logging_dir: str = "runs"
    resume_from_checkpoint: Any = "checkpoint-500"
    hub_model_id: Any = "me-model"
    hub_token: str = SECRET
    push_token: str = SECRET
    wandb_api_key: str = "0123456789abcdef"
    report_to: Any = dataclasses.field(default_factory=lambda: ["wandb"])
    vllm_server_host: str = "localhost"
    vllm_server_port: int = 8123
    local_rank: int = 3
    deepspeed: Any = "ds.json"
    learning_rate: float = 5e-5
    max_grad_norm: float = 1.0
    max_steps: int = -1
    bf16: bool = True
    num_items: Any = None
    average_tokens_across_devices: bool = True
    max_completion_length: int = 64
    optim: str = "adamw_torch"
    loss_type: str = "dapo"
    lr_scheduler_type: Schedule = Schedule.LINEAR
    reward_weights: Any = (1.0, 0.5)
    accelerator_config: Any = dataclasses.field(default_factory=Nested)
    gradient_checkpointing_kwargs: Any = dataclasses.field(default_factory=lambda: {"use_reentrant": False})
    _n_gpu: int = 2
    callback: Any = print
    temperature: float = 0.9


class WithToDict(Arguments):
    def to_dict(self) -> dict[str, Any]:
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**found, "lr_scheduler_type": self.lr_scheduler_type.value, "hub_token": "<HUB_TOKEN>"}


EXPECTED = {
    "learning_rate": "5e-05", "max_grad_norm": "1.0", "max_steps": "-1", "bf16": "true", "num_items": "null",
    "average_tokens_across_devices": "true", "max_completion_length": "64", "optim": "adamw_torch", "loss_type": "dapo",
    "lr_scheduler_type": "linear", "reward_weights": "(1.0, 0.5)", "accelerator_config.split_batches": "false",
    "accelerator_config.dispatch": "null", "gradient_checkpointing_kwargs.use_reentrant": "false", "temperature": "0.9",
}  # fmt: skip


@pytest.mark.parametrize("make", [Arguments, WithToDict, lambda: dataclasses.asdict(Arguments())])
def test_numbers_switches_and_choices_are_settings_and_nothing_else_is(make: Any) -> None:
    assert trainer_settings(make()) == {f"trainer.{key}": value for key, value in EXPECTED.items()}


def test_two_launches_of_one_training_have_equal_settings() -> None:
    other = Arguments(
        output_dir="/home/me/other", run_name="slow-dog-8", logging_dir="events", resume_from_checkpoint="checkpoint-900",
        hub_model_id=None, hub_token="", vllm_server_port=9000, local_rank=0,
    )  # fmt: skip
    assert trainer_settings(other) == trainer_settings(Arguments())
    assert trainer_settings(Arguments(temperature=1.0)) != trainer_settings(Arguments())


def test_settings_are_bounded_and_an_object_that_holds_itself_ends() -> None:
    around: dict[str, Any] = {f"n{index}": index for index in range(2 * ENTRIES_MAX)}
    assert len(trainer_settings(around)) == ENTRIES_MAX
    own: dict[str, Any] = {"rate": 1.0}
    own["own"] = own
    assert trainer_settings(own)["trainer.own.rate"] == "1.0"
    assert trainer_settings(None) == trainer_settings(3) == trainer_settings(Arguments) == {}


def callback_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The callback over a stand-in of the package."""
    stand_in: Any = types.ModuleType("transformers")
    stand_in.TrainerCallback = object
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    name = "statagent.integrations.transformers"
    monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module(name).StatagentCallback
    del sys.modules[name]  # so that others get the real one
    return found


def begin(callback: Any, arguments: Any) -> None:
    net = seeded(Net)
    state = types.SimpleNamespace(global_step=0)
    callback.on_train_begin(arguments, state, None, model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))


def of_trainer(recording: Recording) -> dict[str, str]:
    return {key: value for key, value in recording.config.items() if "trainer" in key}


def test_the_callback_sends_the_arguments(agent: Agent, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(callback_class(monkeypatch)(), Arguments())
    assert of_trainer(recording) == {f"trainer.{key}": value for key, value in EXPECTED.items()}
    assert SECRET not in str(recording.config)
    assert recording.config["optimizer.group0.lr"] == "0.1"


def test_what_the_user_has_set_stands(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    statagent.init(run="test", collector="127.0.0.1:1", connect_timeout=0, config={"trainer": {"temperature": "mine"}})
    begin(callback_class(monkeypatch)(), Arguments())
    assert of_trainer(recording)["trainer.temperature"] == "mine"


def test_arguments_that_cannot_be_read_break_no_training(
    agent: Agent, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def to_dict(self) -> dict[str, Any]:
            raise RuntimeError("no")

    begin(callback_class(monkeypatch)(), Broken())
    assert of_trainer(recording) == {"checklist.trainer": "unknown: RuntimeError"}


def test_a_real_trainer_sends_its_arguments(agent: Agent, recording: Recording, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    pytest.importorskip("accelerate", reason="needs the package accelerate")
    from statagent.integrations.transformers import StatagentCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = seeded(Net)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.net(x) - labels).square().mean()}

    def settings(name: str) -> dict[str, str]:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / name), run_name=name, max_steps=1, per_device_train_batch_size=2, learning_rate=0.25,
            report_to=[], use_cpu=True, save_strategy="no", hub_token=SECRET, lr_scheduler_type="constant",
        )  # fmt: skip
        rows = [{"x": data(1, seed=row)[0], "labels": torch.zeros(3)} for row in range(4)]
        transformers.Trainer(Model(), arguments, train_dataset=rows, callbacks=[StatagentCallback()]).train()
        return of_trainer(recording)

    found = settings("one")
    assert found["trainer.learning_rate"] == "0.25"
    assert found["trainer.max_steps"] == "1"
    assert found["trainer.use_cpu"] == "true"
    assert found["trainer.lr_scheduler_type"] == "constant"
    assert SECRET not in str(recording.config) and str(tmp_path) not in str(found)
    assert settings("two") == found, "the output folder and the run's name are no settings"
