// Who writes a rank. Any collector may take over a rank's stream, so it first claims the rank under
// a new epoch, higher than all before. Every row carries the epoch of its writer.
//
// A claim is two rows of family kRank: first the fence (n = 0), then the state at which the writer
// begins (n = 1). It names its parent, the epoch that it continues, and its cut, the watermark up
// to which it does. Each batch brings a later state, in the same insert.
//
// Invariants:
// (1) The rank's state is the last one of the highest epoch that has one.
// (2) From there, parents lead to all epochs that count, each up to the cut of the epoch that
//     continued it. So rows that arrive late from a writer that was replaced never count. Nor does
//     anything from a claimant, its cut included, that was overtaken before it wrote its state.
// (3) A writer acknowledges a batch only if, after the batch was written, no higher epoch has a
//     fence. A claimant reads the state after writing its fence. So either the writer sees the
//     fence, or the claimant sees the batch: what was acknowledged counts.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_CHAIN_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_CHAIN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/store/attempt.h"
#include "server/store/clickhouse/engine.h"

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
