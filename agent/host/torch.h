// What the extension calls of torch: Python functions, looked up once, and the C function that
// describes a tensor.
#ifndef STATCOLLECT_AGENT_HOST_TORCH_H_
#define STATCOLLECT_AGENT_HOST_TORCH_H_

#include <cstdint>

#include "agent/host/python_api.h"

namespace statcollect::host {

// DLTensor of DLPack 1: a tensor whose owner keeps it alive.
struct DlTensor {
  void* data;
  int32_t device_type;
  int32_t device;
  int32_t ndim;
  struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

using DescribeTensor = int (*)(void* tensor, DlTensor* found);

struct Torch {
  PyObject* graph_task_id = nullptr;  // null where torch does not say
  PyObject* is_grad_enabled = nullptr;
  PyObject* ordered_dict = nullptr;
  DescribeTensor describe = nullptr;  // of torch.Tensor; null before torch 2.10
};

// Precondition: the program has imported torch, for example because it hands over a tensor. Empty
// after a failure.
const Torch& torch();

// Names of attributes and methods.
struct Names {
  PyObject* shape;
  PyObject* stride;
  PyObject* dtype;
  PyObject* data_ptr;
  PyObject* storage_offset;
  PyObject* get_device;
  PyObject* element_size;
  PyObject* is_neg;
  PyObject* requires_grad;
  PyObject* grad_fn;
  PyObject* backward_hooks;
  PyObject* register_hook_dict;
  PyObject* address;
  PyObject* value;
  PyObject* held;
  PyObject* stream;
  PyObject* spent;
  PyObject* layouts;
  PyObject* by_micro_batch;
  PyObject* observe_at;
  PyObject* observe_handle;
  PyObject* refuse_handle;
  PyObject* refuse_last;
  PyObject* note;
  PyObject* pair;
  PyObject* hook_gradient;
  PyObject* backward_seen;
};

const Names& names();
// False with an exception set.
bool MakeNames();

}  // namespace statcollect::host

#endif  // STATCOLLECT_AGENT_HOST_TORCH_H_
