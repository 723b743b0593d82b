#include "agent/host/module.h"

#include "agent/host/cells.h"
#include "agent/host/hooks.h"
#include "agent/host/place.h"
#include "agent/host/torch.h"

namespace statcollect::host {
namespace {

// Grows with every change of what Python and the extension expect of each other (_native/host.py).
constexpr int kInterface = 2;

PyModuleDef definition{.m_base = PyModuleDef_HEAD_INIT,
                       .m_name = "statagent_host",
                       .m_doc = nullptr,
                       .m_size = -1,
                       .m_methods = nullptr,
                       .m_slots = nullptr,
                       .m_traverse = nullptr,
                       .m_clear = nullptr,
                       .m_free = nullptr};

}  // namespace
}  // namespace statcollect::host

PyMODINIT_FUNC PyInit_statagent_host() {
  using namespace statcollect::host;  // NOLINT(google-build-using-namespace)
  Owned module(PyModule_Create(&definition));
  if (!module || !MakeNames() || !AddCells(module.get()) || !AddPlace(module.get()) ||
      !AddHooks(module.get()) ||
      PyModule_AddIntConstant(module.get(), "interface", kInterface) != 0) {
    return nullptr;
  }
  return module.release();
}
