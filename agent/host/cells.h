// What hooks read at every call, as fields of C structures: base classes of the Python classes that
// own the state (_native/host.py). A field has the same name there. Fields that hold objects are
// null or None until they are set.
#ifndef STATCOLLECT_AGENT_HOST_CELLS_H_
#define STATCOLLECT_AGENT_HOST_CELLS_H_

#include "agent/host/python_api.h"

namespace statcollect::host {

// Of Watches.
struct WatchCells {
  PyObject ob_base;
  PyObject* placing;
};

// Of Agent.
struct AgentCells {
  PyObject ob_base;
  PyObject* watches;
  PyObject* native_observe;        // for small tensors on the CPU
  PyObject* native_observe_large;  // for all others
  PyObject* pointer;               // the library's agent as a ctypes object
  unsigned long long address;      // the same as a number
};

// Of StepClock.
struct ClockCells {
  PyObject ob_base;
  PyObject* meter;
  long long steps_ending;
};

// Of Passes.
struct PassCells {
  PyObject ob_base;
  PyObject* agent;
  PyObject* clock;
  PyObject* tensor_type;
  PyObject* here;
  long long micro_batch;
  long long epoch;
  long long steps;
  int state;
  int resting;
  char straddled;
  char backward_seen;
};

// What a state is: SKIP, TRAIN of _watch/passes.py.
inline constexpr int kSkip = 0;
inline constexpr int kTrain = 1;

// Adds the types to the module; false with an exception set.
bool AddCells(PyObject* module);

// Null if the object is of another type.
AgentCells* AsAgent(PyObject* object);
WatchCells* AsWatches(PyObject* object);
ClockCells* AsClock(PyObject* object);
PassCells* AsPasses(PyObject* object);

}  // namespace statcollect::host

#endif  // STATCOLLECT_AGENT_HOST_CELLS_H_
