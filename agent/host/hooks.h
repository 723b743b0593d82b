// The hooks of watched modules: the base of _ModuleHook, and the hook of one gradient
// (_watch/module_hooks.py).
#ifndef STATCOLLECT_AGENT_HOST_HOOKS_H_
#define STATCOLLECT_AGENT_HOST_HOOKS_H_

#include "agent/host/python_api.h"

namespace statcollect::host {

// Adds HookCells and GradientOf to the module; false with an exception set.
bool AddHooks(PyObject* module);

}  // namespace statcollect::host

#endif  // STATCOLLECT_AGENT_HOST_HOOKS_H_
