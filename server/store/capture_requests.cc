#include "server/store/capture_requests.h"

#include <algorithm>
#include <map>
#include <utility>

#include "server/store/byte_io.h"

namespace statcollect {
namespace {

constexpr char kDocument[] = "captures";
constexpr std::uint64_t kVersion = 1;

}  // namespace

std::string EncodeCaptureRequests(const std::vector<CaptureRequest>& requests) {
  ByteWriter out;
  out.Varint(kVersion);
  out.Varint(requests.size());
  for (const CaptureRequest& request : requests) {
    out.Varint(request.id);
    out.Varint(request.attempt);
    out.Varint(request.ranks.size());
    for (const std::uint32_t rank : request.ranks) out.Varint(rank);
    out.Signed(request.asked_unix_nanos);
    const auto arguments = request.spec.ToArguments();
    out.Varint(arguments.size());
    for (const auto& [name, value] : arguments) {
      out.Text(name);
      out.Text(value);
    }
  }
  return out.Take();
}

Result<std::vector<CaptureRequest>> DecodeCaptureRequests(std::string_view bytes) {
  const Status damaged(Code::kDataLoss,
                       "read the run's capture requests: found bytes that do not parse");
  ByteReader in(bytes);
  if (const std::uint64_t version = in.Varint(); in.ok() && version != kVersion) {
    return Status(Code::kFailedPrecondition, "read the run's capture requests: their version is " +
                                                 std::to_string(version) +
                                                 "; this build reads 1; upgrade statcollectord");
  }
  std::vector<CaptureRequest> requests;
  for (std::size_t n = in.Count(6); n > 0; --n) {
    CaptureRequest request{.id = in.Varint(), .attempt = in.Varint32(), .ranks = {}, .spec = {}};
    request.ranks.resize(in.Count(1));
    for (std::uint32_t& rank : request.ranks) rank = in.Varint32();
    request.asked_unix_nanos = in.Signed();
    std::map<std::string, std::string> arguments;
    for (std::size_t left = in.Count(2); left > 0; --left) {
      std::string name = in.Text();
      arguments[std::move(name)] = in.Text();
    }
    if (!in.ok()) return damaged;
    auto spec = CaptureSpec::FromArguments(arguments);
    if (!spec.ok()) return damaged;
    request.spec = *std::move(spec);
    requests.push_back(std::move(request));
  }
  if (!in.done()) return damaged;
  return requests;
}

Result<std::vector<CaptureRequest>> ReadCaptureRequests(RecordReader& store,
                                                        const std::string& run) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto document, store.Document(run, kDocument));
  if (!document) return std::vector<CaptureRequest>();
  return DecodeCaptureRequests(*document);
}

Status WriteCaptureRequests(DocumentStore& store, const std::string& run,
                            std::vector<CaptureRequest> requests) {
  if (requests.size() > kCaptureRequestsMax) {
    requests.erase(requests.begin(),
                   requests.end() - static_cast<std::ptrdiff_t>(kCaptureRequestsMax));
  }
  return store.PutDocument(run, kDocument, EncodeCaptureRequests(requests));
}

}  // namespace statcollect
