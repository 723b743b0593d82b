#include "agent/host/hooks.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "agent/host/cells.h"
#include "agent/host/place.h"
#include "agent/host/torch.h"

namespace statcollect::host {
namespace {

// The handles of one call of a module, of its output and of the gradient; -1: not recorded.
struct Handles {
  int64_t micro_batch;
  int64_t call;
  int64_t value;
  int64_t gradient;
};

constexpr size_t kHandlesMax = 256;

struct HookCells {
  PyObject ob_base;
  PyObject* passes;
  PyObject* agent;
  PyObject* clock;
  PyObject* known;  // KnownTensors, if outputs are noted there
  PyObject* value_place;
  PyObject* gradient_place;
  PyObject* unhooked;  // calls without gradients, which a checkpoint may recompute
  PyObject* again;     // the recomputation that runs
  long long epoch;
  long long calls;
  char values;
  char gradients;
  Handles* handles;  // of the calls seen lately, each at its hash; count is a power of two
  size_t handle_count;
};

struct GradientOf {
  PyObject ob_base;
  PyObject* passes;
  PyObject* place;
  long long handle;
  bool fired;
};

PyTypeObject* gradient_type = nullptr;

// Adds the time until it goes to the meter of an overhead budget, if there is one.
class Metered {
 public:
  explicit Metered(const ClockCells& clock) : meter_(Missing(clock.meter) ? nullptr : clock.meter) {
    if (meter_ != nullptr) begun_ = std::chrono::steady_clock::now();
  }
  // False with an exception set.
  bool Stop() {
    if (meter_ == nullptr) return true;
    const auto spent = std::chrono::steady_clock::now() - begun_;
    const Owned before(PyObject_GetAttr(meter_, names().spent));
    const Owned more(
        PyLong_FromLongLong(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()));
    const Owned sum(before && more ? PyNumber_Add(before.get(), more.get()) : nullptr);
    return sum && PyObject_SetAttr(meter_, names().spent, sum.get()) == 0;
  }

 private:
  PyObject* meter_;
  std::chrono::steady_clock::time_point begun_;
};

// Whether a backward pass runs in this thread; -1 with an exception set.
int InBackward() {
  if (Missing(torch().graph_task_id)) return 0;
  const Owned id(PyObject_CallNoArgs(torch().graph_task_id));
  const long number = id ? PyLong_AsLong(id.get()) : -2;
  return PyErr_Occurred() != nullptr ? -1 : static_cast<int>(number != -1);
}

// --- the hook of a gradient

using GradientReferences = References<GradientOf, &GradientOf::passes, &GradientOf::place>;

Owned MakeGradient(PyTypeObject* type, PyObject* passes, PyObject* place, long long handle) {
  static const auto allocate =
      reinterpret_cast<allocfunc>(PyType_GetSlot(gradient_type, Py_tp_alloc));
  Owned made(allocate(type, 0));
  if (!made) return made;
  auto* hook = As<GradientOf>(made.get());
  hook->passes = Owned::Shared(passes).release();
  hook->place = Owned::Shared(place).release();
  hook->handle = handle;
  return made;
}

PyObject* NewGradient(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* passes = nullptr;
  PyObject* place = nullptr;
  long long handle = -1;
  if (PyArg_ParseTuple(arguments, "OOL", &passes, &place, &handle) == 0) return nullptr;
  if (AsPasses(passes) == nullptr) {
    PyErr_SetString(PyExc_TypeError, "GradientOf: expected Passes");
    return nullptr;
  }
  return MakeGradient(type, passes, place, handle).release();
}

bool Record(const GradientOf& hook, PassCells* passes, PyObject* gradient) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(gradient)) == passes->tensor_type) {
    return ObserveAt(hook.place, passes->agent, hook.handle, gradient);
  }
  const Owned key(PyLong_FromLongLong(hook.handle));
  return static_cast<bool>(Owned(PyObject_CallMethodObjArgs(passes->agent, names().observe_handle,
                                                            key.get(), gradient, nullptr)));
}

// The first gradient counts. Further backward passes through the same graph are ignored, and so is
// None, which torch says where another output of the same node has a gradient.
PyObject* CallGradient(PyObject* self, PyObject* arguments, PyObject*) {
  auto* hook = As<GradientOf>(self);
  PyObject* gradient = nullptr;
  if (PyArg_UnpackTuple(arguments, "GradientOf", 1, 1, &gradient) == 0) return nullptr;
  PassCells* passes = AsPasses(hook->passes);
  if (hook->fired || gradient == Py_None || passes == nullptr) Py_RETURN_NONE;
  hook->fired = true;
  const Owned kept_self = Owned::Shared(self);
  passes->backward_seen = 1;
  if (!Missing(passes->here) &&
      PyObject_SetAttr(passes->here, names().backward_seen, Py_True) != 0) {
    return nullptr;
  }
  ClockCells* clock = AsClock(passes->clock);
  if (passes->resting == kSkip || clock == nullptr) Py_RETURN_NONE;
  Metered metered(*clock);
  if (!Record(*hook, passes, gradient)) return nullptr;
  if (passes->steps != clock->steps_ending) passes->straddled = 1;
  if (!metered.Stop()) return nullptr;
  Py_RETURN_NONE;
}

// --- the hook of a module

using HookReferences =
    References<HookCells, &HookCells::passes, &HookCells::agent, &HookCells::clock,
               &HookCells::known, &HookCells::value_place, &HookCells::gradient_place,
               &HookCells::unhooked, &HookCells::again>;

int ClearHook(PyObject* self) {
  HookReferences::Clear(self);
  auto* hook = As<HookCells>(self);
  PyMem_Free(std::exchange(hook->handles, nullptr));
  hook->handle_count = 0;
  return 0;
}

void FreeHook(PyObject* self) { Free(self, ClearHook); }

// As _next_call. -1 with an exception set.
long long NextCall(HookCells* hook, const PassCells& passes) {
  if (hook->epoch != passes.epoch) {
    hook->epoch = passes.epoch;
    hook->calls = 0;
    // A recomputation of an earlier epoch keeps the list that it began with.
    if (Missing(hook->unhooked) || !Missing(hook->again) || PyList_Size(hook->unhooked) != 0) {
      if (PyErr_Occurred() != nullptr) PyErr_Clear();
      PyObject* made = PyList_New(0);
      if (made == nullptr) return -1;
      Py_XDECREF(std::exchange(hook->unhooked, made));
      Py_XDECREF(std::exchange(hook->again, Owned::Shared(Py_None).release()));
    }
  }
  return hook->calls++;
}

size_t SlotOf(const HookCells& hook, long long micro_batch, long long call) {
  const auto mixed = static_cast<size_t>(micro_batch) * 31 + static_cast<size_t>(call);
  return mixed & (hook.handle_count - 1);
}

// From the module's table in Python, which makes them at the first call. False with an exception
// set.
bool LookUp(PyObject* self, Handles* found) {
  const Owned micro_batch(PyLong_FromLongLong(found->micro_batch));
  const Owned call(PyLong_FromLongLong(found->call));
  const Owned pair(
      PyObject_CallMethodObjArgs(self, names().pair, micro_batch.get(), call.get(), nullptr));
  if (!pair) return false;
  long long value = -1;
  long long gradient = -1;
  if (PyArg_ParseTuple(pair.get(), "LL", &value, &gradient) == 0) return false;
  found->value = value;
  found->gradient = gradient;
  return true;
}

bool Grow(HookCells* hook) {
  const size_t count = hook->handle_count == 0 ? 1 : hook->handle_count * 4;
  auto* grown = static_cast<Handles*>(PyMem_Malloc(count * sizeof(Handles)));
  if (grown == nullptr) return PyErr_NoMemory() != nullptr;
  for (size_t i = 0; i < count; ++i) grown[i] = {-1, -1, -1, -1};
  PyMem_Free(std::exchange(hook->handles, grown));
  hook->handle_count = count;
  return true;
}

bool FindHandles(PyObject* self, Handles* wanted) {
  auto* hook = As<HookCells>(self);
  if (hook->handle_count != 0) {
    const Handles& at = hook->handles[SlotOf(*hook, wanted->micro_batch, wanted->call)];
    if (at.micro_batch == wanted->micro_batch && at.call == wanted->call) {
      *wanted = at;
      return true;
    }
  }
  if (!LookUp(self, wanted)) return false;
  const bool taken = hook->handle_count == 0 ||
                     hook->handles[SlotOf(*hook, wanted->micro_batch, wanted->call)].call >= 0;
  if (taken && hook->handle_count < kHandlesMax && !Grow(hook)) return false;
  hook->handles[SlotOf(*hook, wanted->micro_batch, wanted->call)] = *wanted;
  return true;
}

// As register_hook(hook), but without a handle to remove the hook. Precondition: the tensor has a
// grad_fn.
bool HookResult(PyObject* tensor, PyObject* grad_fn, PyObject* hook) {
  static long long last_id =
      -(1LL << 40);  // torch numbers its own from 0 up, the Python hooks from -1 down
  Owned hooks(PyObject_GetAttr(tensor, names().backward_hooks));
  if (!hooks) return false;
  if (hooks.get() == Py_None) {
    hooks = Owned(PyObject_CallNoArgs(torch().ordered_dict));
    if (!hooks || PyObject_SetAttr(tensor, names().backward_hooks, hooks.get()) != 0) return false;
    if (!Owned(PyObject_CallMethodObjArgs(grad_fn, names().register_hook_dict, tensor, nullptr))) {
      return false;
    }
  }
  const Owned id(PyLong_FromLongLong(last_id--));
  return id && PyObject_SetItem(hooks.get(), id.get(), hook) == 0;
}

bool HookGradient(HookCells* hook, const Handles& at, PyObject* output) {
  const Owned enabled(PyObject_CallNoArgs(torch().is_grad_enabled));
  if (!enabled) return false;
  if (enabled.get() != Py_True) {
    const Owned call(Py_BuildValue("(LL)", static_cast<long long>(at.micro_batch),
                                   static_cast<long long>(at.call)));
    return call && PyList_Append(hook->unhooked, call.get()) == 0;
  }
  const Owned wanted(PyObject_GetAttr(output, names().requires_grad));
  if (!wanted || wanted.get() != Py_True) return static_cast<bool>(wanted);
  const Owned gradient =
      MakeGradient(gradient_type, hook->passes, hook->gradient_place, at.gradient);
  const Owned grad_fn(PyObject_GetAttr(output, names().grad_fn));
  if (!gradient || !grad_fn) return false;
  if (grad_fn.get() != Py_None) return HookResult(output, grad_fn.get(), gradient.get());
  return static_cast<bool>(Owned(PyObject_CallMethodObjArgs(hook->passes, names().hook_gradient,
                                                            output, gradient.get(), nullptr)));
}

bool RecordOutput(PyObject* self, PassCells* passes, ClockCells* clock, PyObject* output) {
  auto* hook = As<HookCells>(self);
  Handles at{passes->micro_batch, NextCall(hook, *passes), -1, -1};
  if (at.call < 0 || !FindHandles(self, &at)) return false;
  if (hook->values != 0) {
    if (!ObserveAt(hook->value_place, hook->agent, at.value, output)) return false;
    if (!Missing(hook->known) &&
        !Owned(PyObject_CallMethodObjArgs(hook->known, names().note, output, nullptr))) {
      return false;
    }
  }
  if (hook->gradients != 0 && !HookGradient(hook, at, output)) return false;
  if (passes->steps != clock->steps_ending) passes->straddled = 1;
  return true;
}

// _record_plain(output): whether this was the most frequent case, which is then recorded: one
// tensor, in a training pass, not recomputed.
PyObject* RecordPlain(PyObject* self, PyObject* output) {
  auto* hook = As<HookCells>(self);
  PassCells* passes = AsPasses(hook->passes);
  ClockCells* clock = AsClock(hook->clock);
  if (passes == nullptr || clock == nullptr || passes->state != kTrain ||
      reinterpret_cast<PyObject*>(Py_TYPE(output)) != passes->tensor_type) {
    Py_RETURN_FALSE;
  }
  const int in_backward = InBackward();
  if (in_backward < 0) return nullptr;
  if (in_backward != 0) Py_RETURN_FALSE;
  Metered metered(*clock);
  const bool recorded = RecordOutput(self, passes, clock, output);
  if (!recorded || !metered.Stop()) return nullptr;
  Py_RETURN_TRUE;
}

std::array hook_members{
    PyMemberDef{"_passes", T_OBJECT, offsetof(HookCells, passes), 0, nullptr},
    PyMemberDef{"_agent", T_OBJECT, offsetof(HookCells, agent), 0, nullptr},
    PyMemberDef{"_clock", T_OBJECT, offsetof(HookCells, clock), 0, nullptr},
    PyMemberDef{"_known", T_OBJECT, offsetof(HookCells, known), 0, nullptr},
    PyMemberDef{"_value_place", T_OBJECT, offsetof(HookCells, value_place), 0, nullptr},
    PyMemberDef{"_gradient_place", T_OBJECT, offsetof(HookCells, gradient_place), 0, nullptr},
    PyMemberDef{"_unhooked", T_OBJECT, offsetof(HookCells, unhooked), 0, nullptr},
    PyMemberDef{"_again", T_OBJECT, offsetof(HookCells, again), 0, nullptr},
    PyMemberDef{"_epoch", T_LONGLONG, offsetof(HookCells, epoch), 0, nullptr},
    PyMemberDef{"_calls", T_LONGLONG, offsetof(HookCells, calls), 0, nullptr},
    PyMemberDef{"_values", T_BOOL, offsetof(HookCells, values), 0, nullptr},
    PyMemberDef{"_gradients", T_BOOL, offsetof(HookCells, gradients), 0, nullptr},
    PyMemberDef{},
};
std::array hook_methods{
    PyMethodDef{"_record_plain", RecordPlain, METH_O, nullptr},
    PyMethodDef{},
};

}  // namespace

bool AddHooks(PyObject* module) {
  std::array gradient_slots{
      PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(GradientReferences::Dealloc)},
      PyType_Slot{Py_tp_traverse, reinterpret_cast<void*>(GradientReferences::Visit)},
      PyType_Slot{Py_tp_clear, reinterpret_cast<void*>(GradientReferences::Clear)},
      PyType_Slot{Py_tp_new, reinterpret_cast<void*>(NewGradient)},
      PyType_Slot{Py_tp_call, reinterpret_cast<void*>(CallGradient)},
      PyType_Slot{0, nullptr},
  };
  PyObject* made = MakeType("statagent_host.GradientOf", sizeof(GradientOf), gradient_slots.data());
  gradient_type = reinterpret_cast<PyTypeObject*>(made);
  if (made == nullptr || PyModule_AddObjectRef(module, "GradientOf", made) != 0) return false;
  std::array hook_slots{
      PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(FreeHook)},
      PyType_Slot{Py_tp_traverse, reinterpret_cast<void*>(HookReferences::Visit)},
      PyType_Slot{Py_tp_clear, reinterpret_cast<void*>(ClearHook)},
      PyType_Slot{Py_tp_members, hook_members.data()},
      PyType_Slot{Py_tp_methods, hook_methods.data()},
      PyType_Slot{0, nullptr},
  };
  const Owned hook(MakeType("statagent_host.HookCells", sizeof(HookCells), hook_slots.data()));
  return hook && PyModule_AddObjectRef(module, "HookCells", hook.get()) == 0;
}

}  // namespace statcollect::host
