// Who writes a rank. Any collector may take over a rank's stream, so each one that does claims it
// first, under a new epoch, higher than all before. Every row carries the epoch of its writer.
//
// A claim is made of two rows of family kRank: first the fence (n = 0), then the state at which the
// writer begins (n = 1). It names the epoch that it continues, its parent, and the watermark up to
// which, its cut. Each batch brings a later state, in the same insert.
//
// Invariants:
// (1) The rank's state is the last one of the highest epoch that has one.
// (2) From there the parents lead to all epochs that count, each up to the cut of the one that
// continued it. What arrives
//     late of a writer that was replaced therefore does not count, whenever it arrives, and neither
//     does anything of a claimant that was overtaken before it had written down its state, its cut
//     included.
// (3) A writer acknowledges a batch only if no higher epoch has a fence after the batch was
// written. Who claims reads
//     the state after its fence was written. So either the writer sees the fence, or the claimant
//     the batch: what was acknowledged counts.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_CHAIN_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_CHAIN_H_

#include <cstdint>
#include <optional>
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
    std::uint64_t epoch = 0, n = 0, seq = 0, cut = ~std::uint64_t{0}, parent = 0;
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
  const Link* Find(std::uint64_t epoch) const;

  std::vector<Link> links_;  // by epoch
  std::vector<std::optional<std::uint64_t>>
      limits_;  // of each link: the last record that counts; none: nothing does
};

Result<Chain> ReadChain(Engine& engine, AttemptId attempt, std::uint32_t rank);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_CHAIN_H_
