// Python's stable interface, as far as the extension uses it: one binary for CPython 3.10 and
// later. Everything here holds the GIL.
#pragma once

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

}  // namespace statcollect::host
