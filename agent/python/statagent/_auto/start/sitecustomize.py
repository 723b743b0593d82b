"""Python imports this at its start, because `statctl run` puts this folder first on PYTHONPATH. Imports nothing early: it waits until the
program imports torch and builds an optimizer, and then imports statagent. Must be readable by old versions of Python, too."""

# mypy: disable-error-code="no-untyped-def, attr-defined"
# ruff: noqa: SIM105, UP031
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))  # statagent
_OLDEST_TORCH = (2, 1)
_OLDEST_PYTHON = (3, 9)


def _note(text):
    """Adds a line to the file that statctl reads, if it has named one: what this process got to."""
    path = os.environ.get("STATAGENT_AUTO_NOTES", "")
    if path:
        try:
            notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(notes, ("%d %s\n" % (os.getpid(), text)).encode("utf-8", "replace"))
            os.close(notes)
        except OSError:
            pass


def _warn(text):
    if os.environ.get("STATAGENT_LOG") not in ("off", "error"):
        try:
            sys.stderr.write("statagent: %s\n" % text)
        except Exception:
            return


class _Room:
    """statagent._auto.training, imported at its first use. Nothing here raises."""

    def __init__(self):
        self._tried = False
        self._training = None

    def get(self):
        """The process's Training; None if it cannot be had."""
        if not self._tried:
            self._tried = True
            try:
                from statagent._auto.training import training

                self._training = training(_note)
            except Exception as error:
                _note("failed %s: %s" % (type(error).__name__, error))
                _warn("statctl run: cannot record: %s: %s; training goes on" % (type(error).__name__, error))
        return self._training


_room = _Room()


def _attend_torch(torch):
    """Notices optimizers when they are made, also those whose classes do not call Optimizer.__init__, and the first backward pass."""
    found = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    _note("torch %s" % torch.__version__)
    if found < _OLDEST_TORCH:
        _warn("statctl run: found torch %s; expected 2.1 or later; nothing is recorded" % torch.__version__)
        return
    optimizer_class, inherited = torch.optim.Optimizer, torch.optim.Optimizer.__new__
    backward = torch.autograd.backward

    def new(cls, *args, **kwargs):
        following = super(optimizer_class, cls).__new__
        made = following(cls) if following is object.__new__ else following(cls, *args, **kwargs)
        if torch.autograd.backward is first_backward:
            torch.autograd.backward = backward
        training = _room.get()
        if training is not None:
            training.optimizer_made(made)
        return made

    def first_backward(*args, **kwargs):
        if torch.autograd.backward is first_backward:
            torch.autograd.backward = backward
        training = _room.get()
        if training is not None:
            training.backward_without_optimizer()
        return backward(*args, **kwargs)

    if inherited is object.__new__:
        new.__name__, new.__qualname__, new.__module__ = "__new__", "Optimizer.__new__", optimizer_class.__module__
        optimizer_class.__new__ = staticmethod(new)
        first_backward.__name__, first_backward.__doc__ = backward.__name__, backward.__doc__
        first_backward.__module__, first_backward.__wrapped__ = backward.__module__, backward
        torch.autograd.backward = first_backward


def _attend_trainer(module):
    from statagent._auto.trainers import attend

    attend(module, _room.get)


_ATTENDED = {
    "torch": _attend_torch,
    "transformers.trainer": _attend_trainer,
    "lightning.pytorch.trainer.trainer": _attend_trainer,
    "pytorch_lightning.trainer.trainer": _attend_trainer,
}


class _Attending:
    """A finder before all others: calls a function when a module has been imported. Finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        attend = _ATTENDED.get(name)
        if attend is None:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                self._call_after(spec.loader, attend)
                return spec
        return None

    @staticmethod
    def _call_after(loader, attend):
        """Calls `attend` with the module once this loader, which belongs to it alone, has executed it."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module):
            try:
                del loader.exec_module
            except AttributeError:
                pass
            execute(module)
            try:
                attend(module)
            except Exception as error:
                _warn("statctl run: cannot attend %s: %s: %s" % (module.__name__, type(error).__name__, error))

        try:
            loader.exec_module = exec_module
        except Exception:  # a loader that takes no attributes
            return


class _Fallback:
    """A finder after all others: this package, for a Python in whose own path it is not. Nothing else becomes importable."""

    def find_spec(self, name, path=None, target=None):
        if name != "statagent":
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE])


def _start():
    if os.environ.get("STATAGENT_AUTO") != "1":
        return
    if sys.version_info[:2] < _OLDEST_PYTHON:
        _note("python %d.%d" % sys.version_info[:2])
        _warn("statctl run: found Python %d.%d; expected 3.9 or later; nothing is recorded" % sys.version_info[:2])
        return
    _note("python")
    sys.meta_path.insert(0, _Attending())
    sys.meta_path.append(_Fallback())


def _run_next():
    """Runs the sitecustomize that Python would have found without this folder, in this one's place. Its errors are its own."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    if not hasattr(PathFinder, "find_spec"):
        return
    spec = PathFinder.find_spec("sitecustomize", list(sys.path))
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _leave_path():
    """This folder has done its work: the program sees the path that it would have without it. Children inherit PYTHONPATH."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]


try:
    _start()
    _leave_path()
except Exception as error:  # nothing of ours may stop the program
    _warn("statctl run: cannot start: %s: %s" % (type(error).__name__, error))
_run_next()
