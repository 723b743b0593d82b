#include "agent/host/place.h"

#include <array>
#include <cstddef>
#include <utility>

#include "agent/host/cells.h"
#include "agent/host/layout.h"
#include "agent/host/torch.h"
#include "agent/include/statagent/statagent.h"

namespace statcollect::host {
namespace {

struct PlaceCells {
  PyObject ob_base;
  PyObject* structure;  // of ctypes, for statagent_observe; null or None while it is in use
  PyObject* kept;       // the structure that the fields below describe, also while it is in use
  statagent_tensor* tensor;  // its memory
  Layout layout;             // of the tensor that it was made for
  char readable;             // on the CPU, and of a known layout
  char held;                 // small and on the CPU: the library is called with the GIL
};

using Observe = int (*)(void* agent, uint32_t handle, const statagent_tensor* tensor, void* stream);

// A function of the library, and the ctypes object that calls it.
struct Known {
  PyObject* object = nullptr;
  Observe function = nullptr;
};

PyObject* place_type = nullptr;
Known observe_held;
Known observe_released;

enum class Done { kYes, kNo, kFailed };

using PlaceReferences = References<PlaceCells, &PlaceCells::structure, &PlaceCells::kept>;

int ClearPlace(PyObject* self) {
  PlaceReferences::Clear(self);
  Drop(&As<PlaceCells>(self)->layout);
  return 0;
}

int VisitPlace(PyObject* self, visitproc visit, void* arg) {
  const int found = PlaceReferences::Visit(self, visit, arg);
  return found != 0 ? found : Visit(As<PlaceCells>(self)->layout, visit, arg);
}

void FreePlace(PyObject* self) { Free(self, ClearPlace); }

// The agent counts what an error kept from being recorded. False for errors that no hook may
// swallow.
bool RefuseError(PyObject* agent, long long handle) {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return false;
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Owned kept_type(type);
  const Owned kept_value(value);
  const Owned kept_trace(trace);
  Owned message(PyObject_Str(value));
  if (!message) {
    PyErr_Clear();
    message = Owned(PyUnicode_FromString(""));
  }
  const Owned number(PyLong_FromLongLong(handle));
  return static_cast<bool>(Owned(PyObject_CallMethodObjArgs(agent, names().refuse_handle,
                                                            number.get(), message.get(), nullptr)));
}

// Whether placements of logical tensors change with the micro-batch, so that Python has to look for
// this one.
bool PlacesEach(AgentCells* agent) {
  const WatchCells* watches = AsWatches(agent->watches);
  if (watches == nullptr) return true;
  if (Missing(watches->placing)) return false;
  const Owned layouts(PyObject_GetAttr(watches->placing, names().layouts));
  const Owned changing(layouts ? PyObject_GetAttr(layouts.get(), names().by_micro_batch) : nullptr);
  if (changing) return PyObject_IsTrue(changing.get()) != 0;
  PyErr_Clear();
  return true;
}

// The library's answer, or -1 with an exception set. While the GIL is released, another thread may
// change the place.
int CallLibrary(const PlaceCells& place, AgentCells* agent, long long handle, PyObject* structure) {
  const Owned function =
      Owned::Shared(place.held != 0 ? agent->native_observe : agent->native_observe_large);
  const auto number = static_cast<uint32_t>(handle);
  auto* address = reinterpret_cast<void*>(agent->address);
  const statagent_tensor* tensor = place.tensor;
  if (place.held != 0 && function.get() == observe_held.object) {
    return observe_held.function(address, number, tensor, nullptr);
  }
  if (function.get() == observe_released.object) {
    int code = 0;
    Py_BEGIN_ALLOW_THREADS;
    code = observe_released.function(address, number, tensor, nullptr);
    Py_END_ALLOW_THREADS;
    return code;
  }
  const Owned key(PyLong_FromLongLong(handle));
  const Owned pointer(PyObject_GetAttr(structure, names().address));
  const Owned stream(PyObject_GetAttr(structure, names().stream));
  if (!function || !key || !pointer || !stream) return -1;
  const Owned code(PyObject_CallFunctionObjArgs(function.get(), agent->pointer, key.get(),
                                                pointer.get(), stream.get(), nullptr));
  return code ? static_cast<int>(PyLong_AsLong(code.get())) : -1;
}

// kNo: Python has to do it. kFailed: with an exception set.
Done TryObserve(PlaceCells* place, PyObject* owner, long long handle, PyObject* tensor) {
  AgentCells* agent = AsAgent(owner);
  if (agent == nullptr || agent->address == 0 || Missing(place->structure) ||
      place->structure != place->kept || place->readable == 0 || handle < 0 ||
      Missing(agent->pointer) || Missing(agent->native_observe) ||
      Missing(agent->native_observe_large)) {
    return Done::kNo;
  }
  if (PlacesEach(agent)) return Done::kNo;
  const Owned structure(std::exchange(place->structure, nullptr));  // another thread makes its own
  void* data = MemoryOf(place->layout, tensor);
  if (data == nullptr || place->kept != structure.get()) return Done::kNo;
  place->tensor->data = data;
  const int code = CallLibrary(*place, agent, handle, structure.get());
  if (code == -1 && PyErr_Occurred() != nullptr) return Done::kFailed;
  if (place->kept == structure.get()) {
    Py_XDECREF(std::exchange(place->structure, Owned::Shared(structure.get()).release()));
  }
  if (code == 0) return Done::kYes;
  const Owned key(PyLong_FromLongLong(handle));
  const Owned told(PyObject_CallMethodObjArgs(owner, names().refuse_last, key.get(), nullptr));
  return told ? Done::kYes : Done::kFailed;
}

// observe(agent, handle, tensor): whether the tensor has been dealt with.
PyObject* ObserveMethod(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "observe: expected agent, handle and tensor");
    return nullptr;
  }
  const long long handle = PyLong_AsLongLong(arguments[1]);
  if (handle == -1 && PyErr_Occurred() != nullptr) return nullptr;
  switch (TryObserve(As<PlaceCells>(self), arguments[0], handle, arguments[2])) {
    case Done::kFailed:
      return nullptr;
    case Done::kYes:
      Py_RETURN_TRUE;
    case Done::kNo:
      break;
  }
  Py_RETURN_FALSE;
}

// keep(structure, tensor): from now on `structure`, which was made for a tensor like this one.
PyObject* KeepMethod(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "keep: expected a structure and a tensor");
    return nullptr;
  }
  auto* place = As<PlaceCells>(self);
  const Owned address(PyObject_GetAttr(arguments[0], names().address));
  const Owned number(address ? PyObject_GetAttr(address.get(), names().value) : nullptr);
  const Owned held(PyObject_GetAttr(arguments[0], names().held));
  if (!number || !held) return nullptr;
  auto* memory = static_cast<statagent_tensor*>(PyLong_AsVoidPtr(number.get()));
  if (memory == nullptr) return nullptr;
  Layout layout{};
  if (memory->device == 0) Learn(&layout, arguments[1]);
  // No other thread runs Python from here on.
  const Owned old_structure(std::exchange(place->structure, Owned::Shared(arguments[0]).release()));
  const Owned old_kept(std::exchange(place->kept, Owned::Shared(arguments[0]).release()));
  Layout old_layout = std::exchange(place->layout, layout);
  place->tensor = memory;
  place->held = static_cast<char>(held.get() == Py_True);
  place->readable = static_cast<char>(layout.known);
  Drop(&old_layout);
  Py_RETURN_NONE;
}

bool Remember(Known* known, PyObject* object, PyObject* address) {
  void* function = PyLong_AsVoidPtr(address);
  if (function == nullptr) return false;
  Py_XDECREF(std::exchange(known->object, Owned::Shared(object).release()));
  known->function = reinterpret_cast<Observe>(function);
  return true;
}

// use_library(held, its address, released, its address): the library's observe functions as ctypes
// objects, of which the first keeps the GIL, and where they are.
PyObject* UseLibrary(PyObject*, PyObject* arguments) {
  std::array<PyObject*, 4> given{};
  if (PyArg_ParseTuple(arguments, "OOOO", &given[0], &given[1], &given[2], &given[3]) == 0 ||
      !Remember(&observe_held, given[0], given[1]) ||
      !Remember(&observe_released, given[2], given[3])) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

// observe_each(agent, items): records each (handle, place, tensor) of a list.
PyObject* ObserveEach(PyObject*, PyObject* arguments) {
  PyObject* agent = nullptr;
  PyObject* items = nullptr;
  if (PyArg_UnpackTuple(arguments, "observe_each", 2, 2, &agent, &items) == 0) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_Size(items); ++i) {
    const Owned item = Owned::Shared(PyList_GetItem(items, i));
    long long handle = -1;
    PyObject* place = nullptr;
    PyObject* tensor = nullptr;
    if (!item || PyArg_ParseTuple(item.get(), "LOO", &handle, &place, &tensor) == 0 ||
        !ObserveAt(place, agent, handle, tensor)) {
      return nullptr;
    }
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  Py_RETURN_NONE;
}

PyObject* ReadByMethodsFunction(PyObject*, PyObject* always) {
  ReadByMethods(PyObject_IsTrue(always) == 1);
  Py_RETURN_NONE;
}

std::array place_members{
    PyMemberDef{"structure", T_OBJECT, offsetof(PlaceCells, structure), 0, nullptr},
    PyMemberDef{},
};
std::array place_methods{
    PyMethodDef{"observe", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(ObserveMethod)),
                METH_FASTCALL, nullptr},
    PyMethodDef{"keep", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(KeepMethod)),
                METH_FASTCALL, nullptr},
    PyMethodDef{},
};
std::array functions{
    PyMethodDef{"use_library", UseLibrary, METH_VARARGS, nullptr},
    PyMethodDef{"observe_each", ObserveEach, METH_VARARGS, nullptr},
    PyMethodDef{"read_by_methods", ReadByMethodsFunction, METH_O, nullptr},
    PyMethodDef{},
};

}  // namespace

bool AddPlace(PyObject* module) {
  std::array slots{
      PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(FreePlace)},
      PyType_Slot{Py_tp_traverse, reinterpret_cast<void*>(VisitPlace)},
      PyType_Slot{Py_tp_clear, reinterpret_cast<void*>(ClearPlace)},
      PyType_Slot{Py_tp_members, place_members.data()},
      PyType_Slot{Py_tp_methods, place_methods.data()},
      PyType_Slot{0, nullptr},
  };
  place_type = MakeType("statagent_host.PlaceCells", sizeof(PlaceCells), slots.data());
  return place_type != nullptr && PyModule_AddObjectRef(module, "PlaceCells", place_type) == 0 &&
         PyModule_AddFunctions(module, functions.data()) == 0;
}

bool ObserveAt(PyObject* place, PyObject* agent, long long handle, PyObject* tensor) {
  Done done = Done::kNo;
  if (place != nullptr && PyObject_TypeCheck(place, reinterpret_cast<PyTypeObject*>(place_type))) {
    done = TryObserve(As<PlaceCells>(place), agent, handle, tensor);
  }
  if (done == Done::kFailed) return RefuseError(agent, handle);
  if (done == Done::kYes) return true;
  const Owned key(PyLong_FromLongLong(handle));
  return static_cast<bool>(Owned(
      PyObject_CallMethodObjArgs(agent, names().observe_at, place, key.get(), tensor, nullptr)));
}

}  // namespace statcollect::host
