#include "agent/host/cells.h"

#include <array>
#include <cstddef>

namespace statcollect::host {
namespace {

PyObject* watch_type = nullptr;
PyObject* agent_type = nullptr;
PyObject* clock_type = nullptr;
PyObject* pass_type = nullptr;

int ClearWatches(PyObject* self) {
  Py_CLEAR(As<WatchCells>(self)->placing);
  return 0;
}

int VisitWatches(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(As<WatchCells>(self)->placing);
  return 0;
}

int ClearAgent(PyObject* self) {
  auto* cells = As<AgentCells>(self);
  Py_CLEAR(cells->watches);
  Py_CLEAR(cells->native_observe);
  Py_CLEAR(cells->native_observe_large);
  Py_CLEAR(cells->pointer);
  return 0;
}

int VisitAgent(PyObject* self, visitproc visit, void* arg) {
  auto* cells = As<AgentCells>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cells->watches);
  Py_VISIT(cells->native_observe);
  Py_VISIT(cells->native_observe_large);
  Py_VISIT(cells->pointer);
  return 0;
}

int ClearClock(PyObject* self) {
  Py_CLEAR(As<ClockCells>(self)->meter);
  return 0;
}

int VisitClock(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(As<ClockCells>(self)->meter);
  return 0;
}

int ClearPasses(PyObject* self) {
  auto* cells = As<PassCells>(self);
  Py_CLEAR(cells->agent);
  Py_CLEAR(cells->clock);
  Py_CLEAR(cells->tensor_type);
  Py_CLEAR(cells->here);
  return 0;
}

int VisitPasses(PyObject* self, visitproc visit, void* arg) {
  auto* cells = As<PassCells>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cells->agent);
  Py_VISIT(cells->clock);
  Py_VISIT(cells->tensor_type);
  Py_VISIT(cells->here);
  return 0;
}

template <int (*clear)(PyObject*)>
void FreeWith(PyObject* self) {
  Free(self, clear);
}

std::array watch_members{
    PyMemberDef{"placing", T_OBJECT, offsetof(WatchCells, placing), 0, nullptr},
    PyMemberDef{},
};
std::array agent_members{
    PyMemberDef{"watches", T_OBJECT, offsetof(AgentCells, watches), 0, nullptr},
    PyMemberDef{"native_observe", T_OBJECT, offsetof(AgentCells, native_observe), 0, nullptr},
    PyMemberDef{"native_observe_large", T_OBJECT, offsetof(AgentCells, native_observe_large), 0,
                nullptr},
    PyMemberDef{"_pointer", T_OBJECT, offsetof(AgentCells, pointer), 0, nullptr},
    PyMemberDef{"_address", T_ULONGLONG, offsetof(AgentCells, address), 0, nullptr},
    PyMemberDef{},
};
std::array clock_members{
    PyMemberDef{"meter", T_OBJECT, offsetof(ClockCells, meter), 0, nullptr},
    PyMemberDef{"steps_ending", T_LONGLONG, offsetof(ClockCells, steps_ending), 0, nullptr},
    PyMemberDef{},
};
std::array pass_members{
    PyMemberDef{"agent", T_OBJECT, offsetof(PassCells, agent), 0, nullptr},
    PyMemberDef{"clock", T_OBJECT, offsetof(PassCells, clock), 0, nullptr},
    PyMemberDef{"tensor_type", T_OBJECT, offsetof(PassCells, tensor_type), 0, nullptr},
    PyMemberDef{"_here", T_OBJECT, offsetof(PassCells, here), 0, nullptr},
    PyMemberDef{"micro_batch", T_LONGLONG, offsetof(PassCells, micro_batch), 0, nullptr},
    PyMemberDef{"epoch", T_LONGLONG, offsetof(PassCells, epoch), 0, nullptr},
    PyMemberDef{"steps", T_LONGLONG, offsetof(PassCells, steps), 0, nullptr},
    PyMemberDef{"state", T_INT, offsetof(PassCells, state), 0, nullptr},
    PyMemberDef{"resting", T_INT, offsetof(PassCells, resting), 0, nullptr},
    PyMemberDef{"straddled", T_BOOL, offsetof(PassCells, straddled), 0, nullptr},
    PyMemberDef{"_backward_seen", T_BOOL, offsetof(PassCells, backward_seen), 0, nullptr},
    PyMemberDef{},
};

template <int (*visit)(PyObject*, visitproc, void*), int (*clear)(PyObject*)>
bool Add(PyObject* module, const char* name, const char* full_name, size_t bytes,
         PyMemberDef* members, PyObject** type) {
  std::array slots{
      PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(FreeWith<clear>)},
      PyType_Slot{Py_tp_traverse, reinterpret_cast<void*>(visit)},
      PyType_Slot{Py_tp_clear, reinterpret_cast<void*>(clear)},
      PyType_Slot{Py_tp_members, members},
      PyType_Slot{0, nullptr},
  };
  *type = MakeType(full_name, static_cast<int>(bytes), slots.data());
  return *type != nullptr && PyModule_AddObjectRef(module, name, *type) == 0;
}

template <typename Cells>
Cells* Checked(PyObject* object, PyObject* type) {
  if (object == nullptr || !PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type))) {
    return nullptr;
  }
  return As<Cells>(object);
}

}  // namespace

bool AddCells(PyObject* module) {
  return Add<VisitWatches, ClearWatches>(module, "WatchCells", "statagent_host.WatchCells",
                                         sizeof(WatchCells), watch_members.data(), &watch_type) &&
         Add<VisitAgent, ClearAgent>(module, "AgentCells", "statagent_host.AgentCells",
                                     sizeof(AgentCells), agent_members.data(), &agent_type) &&
         Add<VisitClock, ClearClock>(module, "ClockCells", "statagent_host.ClockCells",
                                     sizeof(ClockCells), clock_members.data(), &clock_type) &&
         Add<VisitPasses, ClearPasses>(module, "PassCells", "statagent_host.PassCells",
                                       sizeof(PassCells), pass_members.data(), &pass_type);
}

AgentCells* AsAgent(PyObject* object) { return Checked<AgentCells>(object, agent_type); }
WatchCells* AsWatches(PyObject* object) { return Checked<WatchCells>(object, watch_type); }
ClockCells* AsClock(PyObject* object) { return Checked<ClockCells>(object, clock_type); }
PassCells* AsPasses(PyObject* object) { return Checked<PassCells>(object, pass_type); }

}  // namespace statcollect::host
