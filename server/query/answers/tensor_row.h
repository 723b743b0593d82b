// The fields that all rows about one tensor of one step share.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_TENSOR_ROW_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_TENSOR_ROW_H_

#include <cstdint>
#include <string>

#include "common/names.h"
#include "server/query/answers/message_parts.h"

namespace statcollect::query {

// From: has run, rank, def, layout and attempt, like CaptureRow. To: v1::CaptureRow or another
// message with its fields.
template <typename From, typename To>
void FillTensor(const From& from, std::uint64_t step, To& to) {
  to.set_run(from.run);
  to.set_rank(from.rank);
  to.set_step(step);
  FillKey(from.def.key, to);
  to.set_dtype(std::string(Name(from.layout.dtype)));
  to.mutable_shape()->Assign(from.layout.shape.begin(), from.layout.shape.end());
  to.set_attempt(from.attempt);
  to.set_class_name(from.def.class_name);
}

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_TENSOR_ROW_H_
