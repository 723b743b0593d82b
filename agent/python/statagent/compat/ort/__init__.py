"""Takes the place of ONNX Runtime's training hooks (docs/compat-ort.md): scripts change the import line and nothing else.

>>> from statagent.compat.ort import GlobalSubscriberManager, StatisticsSubscriber, inspect_activation
>>> GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber("pt_out", override_output_dir=True)])

Statistics go to the collector instead of to files, as run "pt_out"; `statctl export ort pt_out DIR` writes the files.
"""

from ._manager import GlobalSubscriberManager, SubscriberManager, _InspectActivation, inspect_activation
from ._run import OutputExistsError
from ._statistics import ActivationSummarizer, StatisticsSubscriber
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
