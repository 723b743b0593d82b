// The fields that all rows about one tensor of one step share.
#ifndef STATCOLLECT_SERVER_API_TENSOR_ROW_H_
#define STATCOLLECT_SERVER_API_TENSOR_ROW_H_

#include <cstdint>
#include <string>

#include "common/names.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {

// From: has run, rank, def, layout and attempt, like query::CaptureRow. To: v1::CaptureRow or another message
// with its fields.
template <typename From, typename To>
void FillTensor(const From& from, std::uint64_t step, To& to) {
  const auto& key = from.def.key;
  to.set_run(from.run);
  to.set_rank(from.rank);
  to.set_step(step);
  to.set_micro_batch(key.micro_batch);
  to.set_kind(static_cast<v1::Kind>(key.kind));
  to.set_activation(key.name);
  to.set_output_path(key.output_path);
  to.set_call(key.call);
  to.set_mode(std::string(Name(key.mode)));
  to.set_dtype(std::string(Name(from.layout.dtype)));
  to.mutable_shape()->Assign(from.layout.shape.begin(), from.layout.shape.end());
  to.set_attempt(from.attempt);
  to.set_class_name(from.def.class_name);
}

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_TENSOR_ROW_H_
