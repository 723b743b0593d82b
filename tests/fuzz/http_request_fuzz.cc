// What clients of the HTTP interface send: query parameters and JSON bodies, for a request with
// fields of every sort. What is taken from a body must be taken again from its own JSON.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "proto/json.h"
#include "server/api/http/request.h"
#include "statcollect/v1/query.pb.h"

namespace {

template <typename Request>
void TryAll(const std::string& text) {
  Request from_query, from_body, again;
  (void)statcollect::api::FillFromQuery(text, from_query);
  if (!statcollect::api::FillFromJson(text, from_body).ok()) return;
  const std::string said = statcollect::DumpJson(statcollect::ToJson(from_body), -1);
  if (!statcollect::api::FillFromJson(said, again).ok()) std::abort();
  if (statcollect::DumpJson(statcollect::ToJson(again), -1) != said) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  TryAll<statcollect::v1::DiffRequest>(text);
  TryAll<statcollect::v1::GetSeriesRequest>(text);
  return 0;
}
