// Python's stable interface, as far as the extension uses it: one binary for CPython 3.10 and
// later. Everything here holds the GIL.
#ifndef STATCOLLECT_AGENT_HOST_PYTHON_API_H_
#define STATCOLLECT_AGENT_HOST_PYTHON_API_H_

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
// After Python.h.
#include <structmember.h>

#include <utility>

namespace statcollect::host {

// One reference to an object, or none.
class Owned {
 public:
  Owned() = default;
  // Takes over a new reference.
  explicit Owned(PyObject* object) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) Py_XDECREF(std::exchange(object_, std::exchange(other.object_, nullptr)));
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }

  static Owned Shared(PyObject* object) {
    Py_XINCREF(object);
    return Owned(object);
  }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

inline bool Missing(PyObject* object) { return object == nullptr || object == Py_None; }

// The structure of a type of this module behind an object; precondition: the object is of that
// type.
template <typename Cells>
Cells* As(PyObject* object) {
  return reinterpret_cast<Cells*>(object);
}

// A new type that Python classes may extend. Null after a failure.
PyObject* MakeType(const char* name, int bytes, PyType_Slot* slots);
// For the slots of such a type: frees an object whose references `clear` drops.
void Free(PyObject* self, inquiry clear);

// The fields of such a type that hold objects, for the garbage collector.
template <typename Cells, PyObject* Cells::*... fields>
struct References {
  static int Clear(PyObject* self) {
    (Drop(As<Cells>(self)->*fields), ...);
    return 0;
  }
  static int Visit(PyObject* self, visitproc visit, void* arg) {
    int found = See(reinterpret_cast<PyObject*>(Py_TYPE(self)), visit, arg);
    ((found = found != 0 ? found : See(As<Cells>(self)->*fields, visit, arg)), ...);
    return found;
  }
  static void Dealloc(PyObject* self) { Free(self, Clear); }

 private:
  static void Drop(PyObject*& field) { Py_CLEAR(field); }
  static int See(PyObject* object, visitproc visit, void* arg) {
    return object == nullptr ? 0 : visit(object, arg);
  }
};

}  // namespace statcollect::host

#endif  // STATCOLLECT_AGENT_HOST_PYTHON_API_H_
