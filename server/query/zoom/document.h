// What agents send about a zoomed call of a module: its operators, as lines of text in events
// `zoom` (docs/zoom.md; agent/python/statagent/_watch/zoom_lines.py has the format).
#ifndef STATCOLLECT_SERVER_QUERY_ZOOM_DOCUMENT_H_
#define STATCOLLECT_SERVER_QUERY_ZOOM_DOCUMENT_H_

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "common/records.h"

namespace statcollect::query {

// A tensor of a call: the result of an operator, or one that no operator of the call has computed.
struct ZoomRef {
  bool of_input = false;
  std::uint32_t number = 0;  // of the operator, or of the input
  std::uint32_t result = 0;  // of the operator
  auto operator<=>(const ZoomRef&) const = default;
};

struct ZoomArgument {
  std::string name;
  std::string value;          // "0.001", or "f32[16,64]" for a tensor: without the references
  std::vector<ZoomRef> refs;  // the tensors in it
};

struct ZoomOperator {
  std::uint32_t number = 0;  // in the call, from 0
  std::string name;          // "aten.add.Tensor"
  bool in_place = false, view = false;
  std::string place, function;  // of the user's code: "model.py:41"; empty if there is none
  std::string random;           // state of the generator before and after; empty if it drew nothing
  std::vector<std::string> results;
  std::vector<ZoomArgument> arguments;
};

struct ZoomInput {
  std::uint32_t number = 0;
  std::string label;  // "input 0", "weight"; empty if the module has no name for it
  std::string tensor;
};

// A tensor that the call hands on: what a module returns, or the gradient of one of its inputs.
struct ZoomOutput {
  std::string label;  // "output 0", "gradient of weight"
  ZoomRef ref;
};

struct ZoomDocument {
  std::string module, class_name, pass;  // pass: "forward", "backward", "update"
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0, call = 0;
  std::uint64_t left_out = 0;           // operators beyond the agent's limit
  std::uint64_t unreadable = 0;         // lines or events that are missing or are not such lines
  std::vector<ZoomInput> inputs;        // by number, as far as they are there
  std::vector<ZoomOperator> operators;  // in order
  std::vector<ZoomOutput> outputs;      // empty: the agent does not say

  auto key() const { return std::tie(step, module, pass, micro_batch, call); }
};

// The documents among the events of one rank, by key; other events are left out.
std::vector<ZoomDocument> ReadZoomDocuments(std::span<const EventRecord> events);

// Name and output path under which the tensor of a call is recorded (kind operator).
std::pair<std::string, std::string> RecordedAs(const ZoomDocument& document, const ZoomRef& ref);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ZOOM_DOCUMENT_H_
