"""The subscriber that records statistics of every module's outputs and of their gradients."""

from __future__ import annotations

from typing import Any

from ..._runtime import process
from ._recorder import Recorder
from ._run import agent_for
from ._subscriber import RuntimeStates, SubscriberBase


class StatisticsSubscriber(SubscriberBase):
    """Records outputs of modules as "{class}_{index}_{k}th_output", and their gradients, in steps start_step to end_step, excluding the latter.
    The run is named after `output_dir` (`run_name` in _run.py). Tensors are neither changed nor copied.

    If the script has called statagent.init(), that agent and its run are used. Raises OutputExistsError, a FileExistsError, if the run has
    data and override_output_dir is False; if it is True, the run is replaced with a warning. run_on_cpu and bucket_size are accepted
    without effect: a tensor is read where it is, without extra memory."""

    def __init__(
        self,
        output_dir: Any,
        start_step: int | None = None,
        end_step: int | None = None,
        override_output_dir: bool = False,
        run_on_cpu: bool = False,
        bucket_size: int = 1024 * 1024 * 1024 // 2,
    ) -> None:
        super().__init__(start_step=start_step, end_step=end_step)
        self._output_dir, self._run_on_cpu, self._bucket_size = output_dir, run_on_cpu, bucket_size
        self._recorder: Recorder | None = None
        if not process.disabled():
            self._recorder = Recorder(agent_for(output_dir, override_output_dir), self._start_step, self._end_step)

    def post_forward_tensor_apply(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        return self.post_forward_tensor_apply_impl(run_rtx, module, tensor_index, tensor)  # the recorder checks the steps

    def post_forward_tensor_apply_impl(self, run_rtx: RuntimeStates, module: Any, tensor_index: int, tensor: Any) -> Any:
        if self._recorder is not None and not self._recorder.idle():
            states = run_rtx.global_states
            index = states.module_to_module_index.get(module)
            if index is None:  # a replica of torch.nn.DataParallel
                self._recorder.agent.refuse(
                    "it is not a module of the model that was subscribed", type(module).__name__, "output"
                )
                return tensor
            class_name = type(module).__name__
            self._recorder.see(
                f"{class_name}_{index}_{tensor_index}th_output", tensor, class_name=class_name,
                parent=states.module_index_to_parent[index], depth=states.module_index_to_depth[index],
            )  # fmt: skip
        return tensor


def recorder_of(subscriber: SubscriberBase) -> Recorder | None:
    """The recorder of a StatisticsSubscriber; None for other subscribers, and with STATAGENT_DISABLE."""
    return subscriber._recorder if isinstance(subscriber, StatisticsSubscriber) else None
