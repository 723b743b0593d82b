#include "server/transfer/documents.h"

#include <algorithm>
#include <sstream>

#include "server/store/capture_requests.h"

namespace statcollect::transfer {
namespace {

using Launches = std::map<std::uint32_t, std::uint32_t>;

Result<std::string> RenumberedCaptures(const std::string& content, const Launches& launches) {
  auto requests = DecodeCaptureRequests(content);
  if (!requests.ok()) return Status(Code::kInvalidArgument, requests.status().message());
  std::erase_if(*requests,
                [&](const CaptureRequest& request) { return !launches.contains(request.attempt); });
  for (CaptureRequest& request : *requests) request.attempt = launches.at(request.attempt);
  return EncodeCaptureRequests(*requests);
}

// Lines "launch rank step", as server/alarms writes them.
Result<std::string> RenumberedAlarms(const std::string& content, const Launches& launches) {
  std::istringstream lines(content);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> judged;
  std::uint32_t launch = 0, rank = 0;
  std::uint64_t step = 0;
  while (lines >> launch >> rank >> step) {
    if (const auto found = launches.find(launch); found != launches.end())
      judged[{found->second, rank}] = step;
  }
  if (!lines.eof()) {
    return Status(
        Code::kInvalidArgument,
        "document alarms: found a line that does not parse; expected lines 'launch rank step'");
  }
  std::ostringstream out;
  for (const auto& [place, last] : judged)
    out << place.first << ' ' << place.second << ' ' << last << '\n';
  return out.str();
}

}  // namespace

bool IsDocument(std::string_view name) {
  return std::find(kDocuments.begin(), kDocuments.end(), name) != kDocuments.end();
}

Result<std::string> Renumbered(std::string_view name, const std::string& content,
                               const Launches& launches) {
  if (name == "captures") return RenumberedCaptures(content, launches);
  if (name == "alarms") return RenumberedAlarms(content, launches);
  return content;
}

}  // namespace statcollect::transfer
