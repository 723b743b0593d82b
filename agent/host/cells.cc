#include "agent/host/cells.h"

#include <array>
#include <cstddef>

namespace statcollect::host {
namespace {

PyObject* watch_type = nullptr;
PyObject* agent_type = nullptr;
PyObject* clock_type = nullptr;
PyObject* pass_type = nullptr;

using WatchReferences = References<WatchCells, &WatchCells::placing>;
using AgentReferences = References<AgentCells, &AgentCells::watches, &AgentCells::native_observe,
                                   &AgentCells::native_observe_large, &AgentCells::pointer>;
using ClockReferences = References<ClockCells, &ClockCells::meter>;
using PassReferences = References<PassCells, &PassCells::agent, &PassCells::clock,
                                  &PassCells::tensor_type, &PassCells::here>;

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

template <typename References>
bool Add(PyObject* module, const char* name, const char* full_name, size_t bytes,
         PyMemberDef* members, PyObject** type) {
  std::array slots{
      PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(References::Dealloc)},
      PyType_Slot{Py_tp_traverse, reinterpret_cast<void*>(References::Visit)},
      PyType_Slot{Py_tp_clear, reinterpret_cast<void*>(References::Clear)},
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
  return Add<WatchReferences>(module, "WatchCells", "statagent_host.WatchCells", sizeof(WatchCells),
                              watch_members.data(), &watch_type) &&
         Add<AgentReferences>(module, "AgentCells", "statagent_host.AgentCells", sizeof(AgentCells),
                              agent_members.data(), &agent_type) &&
         Add<ClockReferences>(module, "ClockCells", "statagent_host.ClockCells", sizeof(ClockCells),
                              clock_members.data(), &clock_type) &&
         Add<PassReferences>(module, "PassCells", "statagent_host.PassCells", sizeof(PassCells),
                             pass_members.data(), &pass_type);
}

AgentCells* AsAgent(PyObject* object) { return Checked<AgentCells>(object, agent_type); }
WatchCells* AsWatches(PyObject* object) { return Checked<WatchCells>(object, watch_type); }
ClockCells* AsClock(PyObject* object) { return Checked<ClockCells>(object, clock_type); }
PassCells* AsPasses(PyObject* object) { return Checked<PassCells>(object, pass_type); }

}  // namespace statcollect::host
