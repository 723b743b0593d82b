// A place in a model where a tensor appears in every step: the base of Place (_native/tensors.py).
#ifndef STATCOLLECT_AGENT_HOST_PLACE_H_
#define STATCOLLECT_AGENT_HOST_PLACE_H_

#include "agent/host/python_api.h"

namespace statcollect::host {

// Adds PlaceCells, use_library(), observe_each() and read_by_methods() to the module; false with an
// exception set.
bool AddPlace(PyObject* module);

// Records a tensor under a handle: in C if the place knows its layout, else as the agent's Python
// methods do. What is refused is counted. False only with an exception that must not be swallowed.
// Precondition: type(tensor) is one of plain_tensor_types().
bool ObserveAt(PyObject* place, PyObject* agent, long long handle, PyObject* tensor);

}  // namespace statcollect::host

#endif  // STATCOLLECT_AGENT_HOST_PLACE_H_
