// The extension statagent_host: the hot half of the Python package's hooks, loaded by
// _native/host.py.
#ifndef STATCOLLECT_AGENT_HOST_MODULE_H_
#define STATCOLLECT_AGENT_HOST_MODULE_H_

#include "agent/host/python_api.h"

// What Python calls when it loads the extension.
PyMODINIT_FUNC PyInit_statagent_host();

#endif  // STATCOLLECT_AGENT_HOST_MODULE_H_
