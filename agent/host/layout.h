// The layout of a torch tensor, and where its memory begins, read without a call of torch's Python
// methods where the tensor's type offers DLPack's C functions (torch 2.10), else with its methods.
#ifndef STATCOLLECT_AGENT_HOST_LAYOUT_H_
#define STATCOLLECT_AGENT_HOST_LAYOUT_H_

#include <array>
#include <cstdint>

#include "agent/host/python_api.h"

namespace statcollect::host {

inline constexpr int kDimsMax = 8;

// dtype, shape, strides and device of one tensor. All zero: none. Drop() before it goes.
struct Layout {
  bool known;
  bool by_methods;      // the four objects below, instead of the numbers
  bool may_be_negated;  // all strides are even, as those of the imaginary parts of complex numbers
  uint32_t type;        // code, bits and lanes of DLPack
  int32_t device_type;  // of DLPack
  int32_t device;
  int32_t dims;
  int32_t item_bytes;
  std::array<int64_t, kDimsMax> shape;
  std::array<int64_t, kDimsMax> strides;
  PyObject* shape_object;
  PyObject* strides_object;
  PyObject* dtype_object;
};

// Which way tensors are read: for tests. Methods are the only way without DLPack's functions.
void ReadByMethods(bool always);

// Keeps the tensor's layout; leaves an unknown one if it cannot be read. Never leaves an exception.
void Learn(Layout* layout, PyObject* tensor);
void Drop(Layout* layout);
int Visit(const Layout& layout, visitproc visit, void* arg);

// The first element of a tensor of this layout whose memory holds its values as they are; null for
// any other tensor, and for one without memory. Never leaves an exception.
void* MemoryOf(const Layout& layout, PyObject* tensor);

}  // namespace statcollect::host

#endif  // STATCOLLECT_AGENT_HOST_LAYOUT_H_
