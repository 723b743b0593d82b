#include "agent/host/layout.h"

#include <algorithm>
#include <cstring>

#include "agent/host/torch.h"

namespace statcollect::host {
namespace {

bool always_by_methods = false;

// Below this no allocator of a 64-bit system places tensors, but an offset into memory that is gone
// looks like that.
constexpr uintptr_t kLowestAddress = uintptr_t{1} << 40;

Owned Attribute(PyObject* object, PyObject* name) { return Owned(PyObject_GetAttr(object, name)); }
Owned Call(PyObject* object, PyObject* name) {
  return Owned(PyObject_CallMethodObjArgs(object, name, nullptr));
}

bool ToNumber(const Owned& object, long long* number) {
  if (!object) return false;
  *number = PyLong_AsLongLong(object.get());
  return *number != -1 || PyErr_Occurred() == nullptr;
}

// As DLPack describes it; false if it cannot.
bool Describe(PyObject* tensor, DlTensor* found) {
  if (torch().describe(tensor, found) == 0) return true;
  PyErr_Clear();
  return false;
}

uint32_t TypeOf(const DlTensor& tensor) {
  uint32_t type = 0;
  static_assert(sizeof type == sizeof tensor.dtype);
  std::memcpy(&type, &tensor.dtype, sizeof type);
  return type;
}

bool Same(const Layout& layout, const DlTensor& tensor) {
  if (TypeOf(tensor) != layout.type || tensor.device_type != layout.device_type ||
      tensor.device != layout.device || tensor.ndim != layout.dims) {
    return false;
  }
  const auto dims = static_cast<size_t>(layout.dims);
  return std::equal(tensor.shape, tensor.shape + dims, layout.shape.begin()) &&
         std::equal(tensor.strides, tensor.strides + dims, layout.strides.begin());
}

// Whether the memory holds the values with the opposite sign, or is not there: questions to the
// tensor itself, which are rare. is_neg() releases the GIL, so it is asked of odd offsets only
// (docs/decisions/0029-holding-the-gil.md).
bool IsPlain(const Layout& layout, PyObject* tensor, const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto bytes = static_cast<uintptr_t>(layout.item_bytes);
  const bool odd = (address / bytes) % 2 == 1;
  if (address >= kLowestAddress && !odd && !layout.may_be_negated) return true;
  long long offset = 0;
  if (!ToNumber(Call(tensor, names().storage_offset), &offset)) return false;
  if (address == static_cast<uintptr_t>(offset) * bytes) return false;
  if (offset % 2 == 0) return true;
  const Owned negated = Call(tensor, names().is_neg);
  return negated.get() == Py_False;
}

void* MemoryByMethods(const Layout& layout, PyObject* tensor) {
  const Owned shape = Attribute(tensor, names().shape);
  if (!shape || PyObject_RichCompareBool(shape.get(), layout.shape_object, Py_EQ) != 1)
    return nullptr;
  const Owned strides = Call(tensor, names().stride);
  if (!strides || PyObject_RichCompareBool(strides.get(), layout.strides_object, Py_EQ) != 1) {
    return nullptr;
  }
  const Owned dtype = Attribute(tensor, names().dtype);
  if (dtype.get() != layout.dtype_object) return nullptr;
  long long device = 0;
  if (!ToNumber(Call(tensor, names().get_device), &device) || device != layout.device)
    return nullptr;
  const Owned address = Call(tensor, names().data_ptr);
  void* data = address ? PyLong_AsVoidPtr(address.get()) : nullptr;
  return data != nullptr && IsPlain(layout, tensor, data) ? data : nullptr;
}

void* MemoryByDescription(const Layout& layout, PyObject* tensor) {
  DlTensor found{};
  if (!Describe(tensor, &found) || !Same(layout, found) || found.data == nullptr) return nullptr;
  void* data = static_cast<char*>(found.data) + found.byte_offset;
  return IsPlain(layout, tensor, data) ? data : nullptr;
}

bool LearnByMethods(Layout* layout, PyObject* tensor) {
  long long device = 0;
  long long item_bytes = 0;
  if (!ToNumber(Call(tensor, names().get_device), &device) ||
      !ToNumber(Call(tensor, names().element_size), &item_bytes)) {
    return false;
  }
  layout->device = static_cast<int32_t>(device);
  layout->item_bytes = static_cast<int32_t>(item_bytes);
  layout->shape_object = Attribute(tensor, names().shape).release();
  layout->strides_object = Call(tensor, names().stride).release();
  layout->dtype_object = Attribute(tensor, names().dtype).release();
  layout->by_methods = layout->may_be_negated = true;
  return layout->shape_object != nullptr && layout->strides_object != nullptr &&
         layout->dtype_object != nullptr && item_bytes > 0;
}

bool LearnByDescription(Layout* layout, PyObject* tensor) {
  DlTensor found{};
  if (!Describe(tensor, &found) || found.ndim < 0 || found.ndim > kDimsMax) return false;
  if (found.ndim > 0 && (found.shape == nullptr || found.strides == nullptr)) return false;
  layout->type = TypeOf(found);
  layout->device_type = found.device_type;
  layout->device = found.device;
  layout->dims = found.ndim;
  layout->item_bytes = found.dtype.bits * found.dtype.lanes / 8;
  layout->may_be_negated = true;
  for (int dim = 0; dim < found.ndim; ++dim) {
    const auto at = static_cast<size_t>(dim);
    layout->shape[at] = found.shape[dim];
    layout->strides[at] = found.strides[dim];
    if (found.shape[dim] > 1 && found.strides[dim] % 2 != 0) layout->may_be_negated = false;
  }
  return layout->item_bytes > 0;
}

}  // namespace

void ReadByMethods(bool always) { always_by_methods = always; }

void Drop(Layout* layout) {
  Py_CLEAR(layout->shape_object);
  Py_CLEAR(layout->strides_object);
  Py_CLEAR(layout->dtype_object);
  layout->known = layout->by_methods = false;
}

int Visit(const Layout& layout, visitproc visit, void* arg) {
  Py_VISIT(layout.shape_object);
  Py_VISIT(layout.strides_object);
  Py_VISIT(layout.dtype_object);
  return 0;
}

void Learn(Layout* layout, PyObject* tensor) {
  Drop(layout);
  const bool described = torch().describe != nullptr && !always_by_methods;
  layout->known = described ? LearnByDescription(layout, tensor) : LearnByMethods(layout, tensor);
  if (!layout->known) PyErr_Clear();
}

void* MemoryOf(const Layout& layout, PyObject* tensor) {
  if (!layout.known) return nullptr;
  void* data =
      layout.by_methods ? MemoryByMethods(layout, tensor) : MemoryByDescription(layout, tensor);
  if (data == nullptr && PyErr_Occurred() != nullptr) PyErr_Clear();
  return data;
}

}  // namespace statcollect::host
