#include "agent/host/torch.h"

#include <array>
#include <utility>

namespace statcollect::host {
namespace {

Names all_names{};

// DLPackExchangeAPI of DLPack 1, up to the member that is used.
struct ExchangeHeader {
  uint32_t major;
  uint32_t minor;
  const ExchangeHeader* previous;
};
struct Exchange {
  ExchangeHeader header;
  void* allocate;
  void* managed_from_object;
  void* object_from_managed;
  DescribeTensor describe;
};

// An attribute of a module, or of an attribute of it; none without one.
Owned Find(const char* module, const char* name, const char* inner = nullptr) {
  Owned found(PyImport_ImportModule(module));
  for (const char* each : {name, inner}) {
    if (found && each != nullptr) found = Owned(PyObject_GetAttrString(found.get(), each));
  }
  if (!found) PyErr_Clear();
  return found;
}

DescribeTensor FindDescribe() {
  const Owned capsule = Find("torch", "Tensor", "__dlpack_c_exchange_api__");
  if (!capsule) return nullptr;
  const void* found = PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api");
  if (found == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* exchange = static_cast<const Exchange*>(found);
  return exchange->header.major == 1 ? exchange->describe : nullptr;
}

Torch Find() {
  Torch found;
  found.graph_task_id = Find("torch._C", "_current_graph_task_id").release();
  found.is_grad_enabled = Find("torch", "is_grad_enabled").release();
  found.ordered_dict = Find("collections", "OrderedDict").release();
  found.describe = FindDescribe();
  return found;
}

}  // namespace

const Torch& torch() {
  // The GIL guards these: a lock of C++ could not be waited for while an import releases it.
  static Torch found;
  if (found.is_grad_enabled == nullptr) found = Find();
  return found;
}

const Names& names() { return all_names; }

bool MakeNames() {
  Names& n = all_names;
  const std::array<std::pair<PyObject**, const char*>, 27> texts{{
      {&n.shape, "shape"},
      {&n.stride, "stride"},
      {&n.dtype, "dtype"},
      {&n.data_ptr, "data_ptr"},
      {&n.storage_offset, "storage_offset"},
      {&n.get_device, "get_device"},
      {&n.element_size, "element_size"},
      {&n.is_neg, "is_neg"},
      {&n.requires_grad, "requires_grad"},
      {&n.grad_fn, "grad_fn"},
      {&n.backward_hooks, "_backward_hooks"},
      {&n.register_hook_dict, "_register_hook_dict"},
      {&n.address, "address"},
      {&n.value, "value"},
      {&n.held, "held"},
      {&n.stream, "stream"},
      {&n.spent, "spent"},
      {&n.layouts, "layouts"},
      {&n.by_micro_batch, "by_micro_batch"},
      {&n.observe_at, "observe_at"},
      {&n.observe_handle, "observe_handle"},
      {&n.refuse_handle, "_refuse_handle"},
      {&n.refuse_last, "_refuse_last"},
      {&n.note, "note"},
      {&n.pair, "_pair"},
      {&n.hook_gradient, "hook_gradient"},
      {&n.backward_seen, "backward_seen"},
  }};
  for (const auto& [name, text] : texts) {
    *name = PyUnicode_InternFromString(text);
    if (*name == nullptr) return false;
  }
  return true;
}

}  // namespace statcollect::host
