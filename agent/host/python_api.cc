#include "agent/host/python_api.h"

namespace statcollect::host {

PyObject* MakeType(const char* name, int bytes, PyType_Slot* slots) {
  PyType_Spec spec{name, bytes, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                   slots};
  return PyType_FromSpec(&spec);
}

void Free(PyObject* self, inquiry clear) {
  PyObject_GC_UnTrack(self);
  clear(self);
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

}  // namespace statcollect::host
