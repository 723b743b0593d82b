"""Replaces ONNX Runtime's training hooks (docs/compat-ort.md): scripts only change the import line.

>>> from statagent.compat.ort import GlobalSubscriberManager, StatisticsSubscriber, inspect_activation
>>> GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber("pt_out", override_output_dir=True)])

Statistics are sent to the collector as run "pt_out" instead of being written to files; `statctl move export ort pt_out DIR` writes the files.
"""

from ._activations import ActivationSummarizer, _InspectActivation, inspect_activation
from ._manager import GlobalSubscriberManager, SubscriberManager
from ._run import OutputExistsError
from ._statistics import StatisticsSubscriber
from ._subscriber import RuntimeStates, SubscriberBase

__all__ = [
    "ActivationSummarizer",
    "GlobalSubscriberManager",
    "OutputExistsError",
    "RuntimeStates",
    "StatisticsSubscriber",
    "SubscriberBase",
    "SubscriberManager",
    "_InspectActivation",
    "inspect_activation",
]
