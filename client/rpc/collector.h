// The client side of the collector's services: one method per query, one error type. gRPC stays in
// collector.cc.
#ifndef STATCOLLECT_CLIENT_RPC_COLLECTOR_H_
#define STATCOLLECT_CLIENT_RPC_COLLECTOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/status.h"
#include "statcollect/v1/admin.pb.h"
#include "statcollect/v1/login.pb.h"
#include "statcollect/v1/query.pb.h"
#include "statcollect/v1/transfer.pb.h"
#include "tls/files.h"

namespace statcollect::client {

inline constexpr char kDefaultAddress[] = "127.0.0.1:7433";

struct Located {
  std::string address;
  bool passing = false;  // it ends with this process, and so do links to it
};
// Finds a collector, and may start one. Asks its argument whether it is to give up.
using Locate = std::function<Result<Located>(const std::function<bool()>& cancelled)>;

struct CollectorOptions {
  std::string address = kDefaultAddress;  // HOST:PORT or unix:/PATH
  Locate locate = {};                     // asked for the address once, before the first query
  std::string token_file = {};            // read for each query; empty: no token
  std::string project = {};               // a valid name; empty: the token's, or the default one
  tls::Material tls = {};                 // TLS is used if it has authorities
  std::chrono::milliseconds timeout{0};   // of a query; 0: no limit
  std::chrono::milliseconds connect_timeout{5000};  // until connected; `timeout` if that is shorter
};

// How messages name the certificate files.
inline const tls::Names kTlsFlags{.certificate = "--tls-cert (STATCTL_TLS_CERT)",
                                  .key = "--tls-key (STATCTL_TLS_KEY)",
                                  .authorities = "--tls-ca (STATCTL_TLS_CA)"};

// Reads the files for CollectorOptions::tls. kInvalidArgument: they cannot be used.
Result<tls::Material> LoadTls(const tls::Files& files, const tls::Names& names = kTlsFlags);

// kInvalidArgument unless it is HOST:PORT with a port of 1..65535 (IPv6 hosts in brackets), or
// unix:/PATH.
Status ValidateAddress(const std::string& address, const std::string& flag = "--collector");

// The stream of a rank that is copied to a collector. Thread: that of the work.
class CopyStream {
 public:
  virtual ~CopyStream() = default;
  virtual const v1::Welcome& welcome() const = 0;
  // Waits for room in the window. An error ends the work.
  virtual Status Send(v1::Batch batch) = 0;
  virtual std::uint64_t durable_seq() const = 0;
};

// Errors can be shown to the user: they name the collector's address and the next step.
// kUnavailable: nothing answers there. kCancelled: Cancel was called. Threads: queries from one
// thread, Cancel from any.
class Collector {
 public:
  // Does not connect yet. Precondition: ValidateAddress(options.address).ok().
  explicit Collector(CollectorOptions options);
  ~Collector();

  // Finds the collector, so that address() is its. Every query does so.
  Status Locate();

  Result<v1::ListRunsResponse> ListRuns();
  Result<v1::GetRunResponse> GetRun(const v1::GetRunRequest& request);
  // `progress` may be empty, as in Diff.
  Result<v1::NoiseProfile> SaveNoise(const v1::SaveNoiseRequest& request,
                                     const std::function<void(const v1::Progress&)>& progress);
  Result<v1::NoiseProfile> GetNoise(const v1::GetNoiseRequest& request);
  Result<v1::DeleteNoiseResponse> DeleteNoise(const v1::DeleteNoiseRequest& request);
  Result<v1::DiffReport> Diff(const v1::DiffRequest& request,
                              const std::function<void(const v1::Progress&)>& progress);
  Result<v1::GetSeriesResponse> GetSeries(const v1::GetSeriesRequest& request);
  Result<v1::ListScalarsResponse> ListScalars(const v1::ListScalarsRequest& request);
  Result<v1::ListMemoryResponse> ListMemory(const v1::ListMemoryRequest& request);
  Result<v1::ListDensityResponse> ListDensity(const v1::ListDensityRequest& request);
  Result<v1::ListExponentsResponse> ListExponents(const v1::ListExponentsRequest& request);
  Result<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& request);
  // Calls `take` for each message, until the collector goes away, the query is refused or Cancel is
  // called.
  Status FollowEvents(const v1::ListEventsRequest& request,
                      const std::function<void(const v1::FollowEventsResponse&)>& take);
  Result<v1::GetZoomResponse> GetZoom(const v1::GetZoomRequest& request);
  Result<v1::GetWeightsResponse> GetWeights(const v1::GetWeightsRequest& request);
  Result<v1::GetTokensResponse> GetTokens(const v1::GetTokensRequest& request);
  Result<v1::GetTopResponse> GetTop(const v1::GetTopRequest& request);
  Result<v1::ProposeMapResponse> ProposeMap(const v1::ProposeMapRequest& request);
  Result<v1::ConfigReport> CompareConfig(const v1::CompareConfigRequest& request);
  // Calls `take` for each message, in order; its error ends the query and is returned.
  Status ReadRecords(const v1::ReadRecordsRequest& request,
                     const std::function<Status(const v1::ReadRecordsResponse&)>& take);
  Result<v1::ListCapturesResponse> ListCaptures(const v1::ListCapturesRequest& request);
  // Calls `take` for each message, in order; it may move the message's content.
  Status ReadCapture(const v1::ReadCaptureRequest& request,
                     const std::function<void(v1::ReadCaptureResponse&)>& take);
  Result<v1::RequestCaptureResponse> RequestCapture(const v1::RequestCaptureRequest& request);
  Result<v1::RanksReport> CheckRanks(const v1::CheckRanksRequest& request,
                                     const std::function<void(const v1::Progress&)>& progress);
  Result<v1::GetStatusResponse> GetStatus();
  Result<v1::CreateLinkResponse> CreateLink();
  Result<v1::DeleteRunResponse> DeleteRun(const v1::DeleteRunRequest& request);
  Result<v1::KeepRunResponse> KeepRun(const v1::KeepRunRequest& request);
  Result<v1::RecordStepsResponse> RecordSteps(const v1::RecordStepsRequest& request);
  Result<v1::CheckpointResponse> Checkpoint(const v1::CheckpointRequest& request);
  Result<v1::ListAuditResponse> ListAudit(const v1::ListAuditRequest& request);

  // --- runs that are copied from one collector to another (collector_transfer.cc)
  Result<v1::DescribeStoreResponse> DescribeStore();
  // Each of the three calls `take` for each message, in order; its error ends the call and is
  // returned.
  Status DescribeRun(const v1::DescribeRunRequest& request,
                     const std::function<Status(v1::RunPart&)>& take);
  Status ReadRank(const v1::ReadRankRequest& request,
                  const std::function<Status(v1::Batch&)>& take);
  Status DigestRank(const v1::DigestRankRequest& request,
                    const std::function<Status(const v1::DigestRankResponse&)>& take);
  Status BeginCopy(const v1::BeginCopyRequest& request);
  Status WritePart(const v1::WritePartRequest& request);
  // Opens a stream for a rank that is copied to this collector, and calls `work` once it is
  // welcome. OK: the work was, and everything that it sent is stored.
  Status CopyRank(const v1::Hello& hello, const std::function<Status(CopyStream&)>& work);

  // While the scope exists, the first Cancel calls this function instead, from another thread.
  class CancelScope {
   public:
    CancelScope(Collector& collector, std::function<void()> cancel);
    ~CancelScope();
    CancelScope(const CancelScope&) = delete;
    CancelScope& operator=(const CancelScope&) = delete;

   private:
    Collector& collector_;
  };
  [[nodiscard]] CancelScope OnCancel(std::function<void()> cancel) {
    return {*this, std::move(cancel)};
  }
  // Ends the running query, which then returns kCancelled, as do all later ones. False if neither a
  // query nor a Task is running.
  bool Cancel();
  // False if Cancel was called before the time had passed.
  bool WaitUnlessCancelled(std::chrono::milliseconds time);
  // Marks work that must end itself when cancelled, also between and after its queries.
  class Task {
   public:
    explicit Task(Collector& collector);  // must outlive it
    ~Task();
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

   private:
    Collector& collector_;
  };
  const std::string& address() const;  // as given, until it is located
  bool passing() const;                // see Located; after the first query
  const std::string& token_file() const;
  const std::string& project() const;
  const tls::Material& tls() const;
  bool uses_tls() const;  // not over a Unix socket

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_COLLECTOR_H_
