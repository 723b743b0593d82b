// Who writes a rank. Any collector may take over a rank's stream, so each one that does claims it first, under a new
// epoch, higher than all before. Every row carries the epoch of its writer.
//
// A claim is made of two rows of family kRank: first the fence (n = 0), then the state at which the writer begins
// (n = 1), whose watermark is the cut of the epoch. Each batch brings a later state, in the same insert.
//
// Invariants:
// (1) The rank's state is the last one of the highest epoch that has one.
// (2) A row of an epoch counts if its `seq` is at most the cut of every later epoch. What arrives late of a writer that
//     was replaced does therefore not count, whenever it arrives.
// (3) A writer acknowledges a batch only if no higher epoch has a fence after the batch was written. Who claims reads
//     the state after its fence was written. So either the writer sees the fence, or the claimant the batch: what was
//     acknowledged counts.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_CHAIN_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_CHAIN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/store.h"

namespace statcollect {

// The epochs of one rank.
class Chain {
 public:
  struct Link {
    std::uint64_t epoch = 0, n = 0, seq = 0, cut = ~std::uint64_t{0};
    std::string value;  // an encoded RankMeta; of a fence empty
  };
  // In ascending order of epochs.
  void Add(Link link) { links_.push_back(std::move(link)); }
  // Once all are added.
  void Finish();

  // Whether a row counts. Epoch 0, the collectors' own, always does.
  bool Counts(std::uint64_t epoch, std::uint64_t seq) const;
  // Null: the rank has no state.
  const Link* current() const;
  std::uint64_t newest_epoch() const { return links_.empty() ? 0 : links_.back().epoch; }

 private:
  std::vector<Link> links_;
  std::vector<std::uint64_t> limits_;  // of each link: the lowest cut of the later ones
};

Result<Chain> ReadChain(Engine& engine, AttemptId attempt, std::uint32_t rank);
Result<std::map<std::uint32_t, Chain>> ReadChains(Engine& engine, AttemptId attempt);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_CHAIN_H_
