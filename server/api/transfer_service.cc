#include "server/api/transfer_service.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "common/names.h"
#include "common/project.h"
#include "common/thread_annotations.h"
#include "proto/convert.h"
#include "server/access/current.h"
#include "server/api/calls.h"
#include "server/api/convert/transfer.h"
#include "server/api/worker_pool.h"
#include "server/transfer/rank_reader.h"
#include "server/transfer/run_copies.h"
#include "server/transfer/run_parts.h"
#include "statcollect/v1/transfer.grpc.pb.h"

namespace statcollect::api {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // of a document, in a message
constexpr int kDigestsMax = 4096;                          // in a message

// The documents that come in piece by piece, until they are complete. Thread-safe.
class DocumentPieces {
 public:
  // The whole document with its last piece, otherwise nothing. kOutOfRange: a piece is missing
  // before it.
  Result<std::optional<std::string>> Add(const std::string& run, const v1::DocumentPart& part) {
    const auto key = std::make_pair(run, part.name());
    MutexLock lock(mutex_);
    if (part.offset() == 0) {
      if (pieces_.size() >= kAtOnceMax) pieces_.clear();
      pieces_[key].clear();
    }
    const auto found = pieces_.find(key);
    const std::size_t has = found == pieces_.end() ? 0 : found->second.size();
    if (found == pieces_.end() || has != part.offset()) {
      return Status(Code::kUnavailable, "copy document '" + Printable(part.name()) +
                                            "': found a piece at byte " +
                                            std::to_string(part.offset()) + "; expected one at " +
                                            std::to_string(has) + "; start with its first piece");
    }
    if (has + part.content().size() > kDocumentBytesMax)
      return Status(Code::kInvalidArgument, "copy document '" + Printable(part.name()) +
                                                "': found more than " +
                                                std::to_string(kDocumentBytesMax) + " bytes");
    found->second += part.content();
    if (!part.last()) return std::optional<std::string>();
    std::optional<std::string> whole(std::move(found->second));
    pieces_.erase(found);
    return whole;
  }

 private:
  static constexpr std::size_t kAtOnceMax = 16;  // abandoned ones do not stay
  Mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::string> pieces_ STATCOLLECT_GUARDED_BY(mutex_);
};

// Requests and responses live as long as gRPC's call, which outlasts the work.
class TransferService final : public v1::Transfer::CallbackService {
 public:
  TransferService(Store& store, RunCopies& copies)
      : store_(store),
        copies_(copies),
        streams_({.what = "copy", .threads = 8, .waiting_max = 64}),
        writes_({.what = "copy", .threads = 2, .waiting_max = 64}) {}

  grpc::ServerUnaryReactor* DescribeStore(grpc::CallbackServerContext*,
                                          const v1::DescribeStoreRequest*,
                                          v1::DescribeStoreResponse* response) override {
    return UnaryCall::Start(writes_, [this, response](const std::stop_token&) {
      const StoreIdentity identity = store_.identity();
      if (!identity.known()) return Status::Ok();
      response->set_store_id(identity.id.data(), identity.id.size());
      response->set_store_epoch(identity.epoch);
      return Status::Ok();
    });
  }

  grpc::ServerWriteReactor<v1::RunPart>* DescribeRun(
      grpc::CallbackServerContext* context, const v1::DescribeRunRequest* request) override {
    using Call = FlowCall<v1::RunPart>;
    const auto work = [this, project = Project(), request](const std::stop_token& stop,
                                                           const Call::Send& send) {
      STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request->run()));
      return Describe(*request, QualifiedRun(project, request->run()), stop, send);
    };
    return Call::Start(streams_, *context, {}, work);
  }

  grpc::ServerWriteReactor<v1::Batch>* ReadRank(grpc::CallbackServerContext* context,
                                                const v1::ReadRankRequest* request) override {
    using Call = FlowCall<v1::Batch>;
    const auto work = [this, project = Project(), request](const std::stop_token& stop,
                                                           const Call::Send& send) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto attempt, AttemptOf(*request, project));
      const transfer::ReadFrom from{.records = request->after(),
                                    .activations = request->activations(),
                                    .layouts = request->layouts()};
      const auto take = [&](const RecordBatch& batch, std::span<const Layout> layouts) {
        return send(statcollect::ToWire(batch, layouts));
      };
      return transfer::ReadRank(store_, attempt, request->rank(), from, take, stop);
    };
    return Call::Start(streams_, *context, {}, work);
  }

  grpc::ServerWriteReactor<v1::DigestRankResponse>* DigestRank(
      grpc::CallbackServerContext* context, const v1::DigestRankRequest* request) override {
    using Call = FlowCall<v1::DigestRankResponse>;
    const auto work = [this, project = Project(), request](const std::stop_token& stop,
                                                           const Call::Send& send) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto attempt, AttemptOf(*request, project));
      v1::DigestRankResponse message;
      const auto take = [&](const transfer::StepDigest& digest) {
        ToWire(digest, *message.add_digests());
        if (message.digests_size() < kDigestsMax) return Status::Ok();
        return send(std::exchange(message, {}));
      };
      STATCOLLECT_RETURN_IF_ERROR(
          transfer::DigestRank(store_, attempt, request->rank(), take, stop));
      return message.digests_size() > 0 ? send(std::move(message)) : Status::Ok();
    };
    return Call::Start(streams_, *context, {}, work);
  }

  grpc::ServerUnaryReactor* BeginCopy(grpc::CallbackServerContext*,
                                      const v1::BeginCopyRequest* request,
                                      v1::BeginCopyResponse*) override {
    return UnaryCall::Start(writes_, [this, project = Project(), request](const std::stop_token&) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto attempts, FromWire(*request));
      return copies_.BeginCopy(QualifiedRun(project, request->run()), attempts);
    });
  }

  grpc::ServerUnaryReactor* WritePart(grpc::CallbackServerContext*,
                                      const v1::WritePartRequest* request,
                                      v1::WritePartResponse*) override {
    return UnaryCall::Start(writes_, [this, project = Project(), request](const std::stop_token&) {
      STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request->run()));
      return Write(request->part(), QualifiedRun(project, request->run()));
    });
  }

 private:
  // Where a call starts.
  static std::string Project() { return access::CurrentPrincipal().project; }

  template <typename Request>
  Result<AttemptId> AttemptOf(const Request& request, const std::string& project) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
    STATCOLLECT_ASSIGN_OR_RETURN(
        const auto attempt,
        transfer::FindAttempt(store_, QualifiedRun(project, request.run()), request.attempt()));
    return attempt.id;
  }

  Status Describe(const v1::DescribeRunRequest& request, const std::string& run,
                  const std::stop_token& stop, const FlowCall<v1::RunPart>::Send& send) {
    const auto pass = [&](v1::RunPart part) {
      if (stop.stop_requested()) return Status(Code::kCancelled, "copy: cancelled");
      return send(std::move(part));
    };
    transfer::PartVisitor visitor;
    visitor.head = [&](bool kept) {
      v1::RunPart part;
      part.mutable_head()->set_kept(kept);
      part.mutable_head()->set_streams_open(copies_.StreamsOpen(run));
      return pass(std::move(part));
    };
    visitor.attempt = [&](const AttemptMeta& attempt) {
      v1::RunPart part;
      ToWire(attempt, *part.mutable_attempt());
      return pass(std::move(part));
    };
    visitor.rank = [&](std::uint32_t number, const RankMeta& meta) {
      v1::RunPart part;
      ToWire(request.run(), number, meta, *part.mutable_rank());
      return pass(std::move(part));
    };
    if (!request.brief()) {
      visitor.document = [&](const std::string& name, const std::string& content) {
        return SendDocument(name, content, pass);
      };
      visitor.event = [&](std::uint32_t number, const CollectorEvent& event) {
        v1::RunPart part;
        ToWire(number, event, *part.mutable_event());
        return pass(std::move(part));
      };
    }
    return transfer::DescribeRun(store_, run, visitor);
  }

  static Status SendDocument(const std::string& name, const std::string& content,
                             const std::function<Status(v1::RunPart)>& pass) {
    for (std::size_t offset = 0;;) {
      v1::RunPart part;
      v1::DocumentPart& piece = *part.mutable_document();
      piece.set_name(name);
      piece.set_offset(offset);
      piece.set_content(content.substr(offset, kPieceBytes));
      offset += piece.content().size();
      const bool last = offset >= content.size();
      piece.set_last(last);
      STATCOLLECT_RETURN_IF_ERROR(pass(std::move(part)));
      if (last) return Status::Ok();
    }
  }

  Status Write(const v1::RunPart& part, const std::string& run) {
    switch (part.part_case()) {
      case v1::RunPart::kHead:
        return copies_.KeepRun(run, part.head().kept());
      case v1::RunPart::kDocument: {
        const auto whole = documents_.Add(run, part.document());
        if (!whole.ok() || !*whole) return whole.status();
        return copies_.PutRunDocument(run, part.document().name(), **whole);
      }
      case v1::RunPart::kEvent: {
        STATCOLLECT_ASSIGN_OR_RETURN(const auto event, FromWire(part.event()));
        return copies_.PutEvent(run, part.event().attempt(), event);
      }
      case v1::RunPart::kRank: {
        STATCOLLECT_ASSIGN_OR_RETURN(auto meta, FromWire(part.rank()));
        meta.info.run = run;
        return copies_.PutCopiedRank(part.rank().attempt(), meta);
      }
      default:
        return {Code::kInvalidArgument,
                "copy: found a part that is not a head, document, event or rank; expected one of "
                "them; use collectors and statctl of matching releases"};
    }
  }

  Store& store_;
  RunCopies& copies_;
  DocumentPieces documents_;
  WorkerPool streams_;  // readers
  WorkerPool writes_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTransferService(Store& store, RunCopies& copies) {
  return std::make_unique<TransferService>(store, copies);
}

}  // namespace statcollect::api
