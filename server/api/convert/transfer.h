// Parts of runs that are copied between collectors <-> messages.
#ifndef STATCOLLECT_SERVER_API_CONVERT_TRANSFER_H_
#define STATCOLLECT_SERVER_API_CONVERT_TRANSFER_H_

#include <string>
#include <vector>

#include "common/status.h"
#include "server/transfer/rank_digest.h"
#include "server/transfer/run_copies.h"
#include "statcollect/v1/transfer.pb.h"

namespace statcollect::api {

void ToWire(const AttemptMeta& attempt, v1::CopiedAttempt& out);
// `run`: the plain name.
void ToWire(const std::string& run, std::uint32_t number, const RankMeta& meta,
            v1::CopiedRank& out);
void ToWire(std::uint32_t number, const CollectorEvent& event, v1::CollectorEvent& out);
void ToWire(const transfer::StepDigest& digest, v1::StepDigest& out);

// kInvalidArgument: what a collector would not store.
Result<std::vector<AttemptMeta>> FromWire(const v1::BeginCopyRequest& request);
// The run's name is that of the hello.
Result<RankMeta> FromWire(const v1::CopiedRank& rank);
Result<CollectorEvent> FromWire(const v1::CollectorEvent& event);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_CONVERT_TRANSFER_H_
