// Parts of questions and answers that several messages share.
#ifndef STATCOLLECT_SERVER_API_CONVERT_PARTS_H_
#define STATCOLLECT_SERVER_API_CONVERT_PARTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/repeated_field.h>

#include "common/records.h"
#include "common/status.h"
#include "server/query/reports.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {

inline Status Invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

// All are kInvalidArgument.
// More ranks than a run can have.
Result<std::vector<std::uint32_t>> RanksFromWire(const google::protobuf::RepeatedField<std::uint32_t>& ranks);
// Kinds that this build does not know. KindsFromWire leaves out the unspecified kind.
Result<Kind> KindFromWire(int kind);
Result<std::vector<Kind>> KindsFromWire(const google::protobuf::RepeatedField<int>& kinds);
// A text that is too long to be parsed.
Status CheckStepsFromWire(const std::string& steps);
// Too many runs, or names that no run can have. `field`: of the question.
Result<std::vector<std::string>> RunsFromWire(const char* field,
                                              const google::protobuf::RepeatedPtrField<std::string>& runs);

// Calls `set` where there is a value.
template <typename T, typename Set>
void Copy(const std::optional<T>& value, Set&& set) {
  if (value) set(*value);
}

void ToWire(const query::ObservationSide& side, v1::ObservationSide& out);
void ToWire(const query::Compared& compared, v1::Compared& out);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_CONVERT_PARTS_H_
