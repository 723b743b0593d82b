// Helpers shared by the commands about captures.
#ifndef STATCOLLECT_CLIENT_COMMANDS_CAPTURES_H_
#define STATCOLLECT_CLIENT_COMMANDS_CAPTURES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "client/commands/session.h"
#include "client/render/table.h"
#include "client/values/tensor_values.h"
#include "common/status.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

// Selects a captured tensor, as given on the command line.
struct CapturePlace {
  std::string activation, kind, mode;
  std::optional<std::string> output_path;
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0, call = 0;
};

Result<v1::Mode> ParseCaptureMode(const std::string& text);  // empty: unspecified

// "16x64x128", "0-d"; "16x64x128 of 32x64x128" if only a part was kept.
std::string CaptureShapeText(const v1::CaptureRow& row);
// "blocks.1.ln2 (output), step 3, rank 0".
std::string CaptureText(const v1::CaptureRow& row);
Table CaptureTable(const google::protobuf::RepeatedPtrField<v1::CaptureRow>& rows);

// Fetches the values of one rank.
Result<TensorValues> FetchCapture(Session& session, const std::string& run,
                                  const CapturePlace& place, std::uint32_t rank);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_CAPTURES_H_
