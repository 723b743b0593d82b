// What the catalogue has of a rank: its epochs with their states, its hello and its settings, in
// one request for all threads that ask at the same time.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_RANK_ROWS_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_RANK_ROWS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/status.h"
#include "server/store/attempt.h"
#include "server/store/clickhouse/chain.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/clickhouse/schema.h"
#include "server/store/clickhouse/shared_reads.h"

namespace statcollect {

// As they were at one moment: a batch is there with its state, or neither is.
struct RankRows {
  struct Info {
    RowFamily family = RowFamily::kHello;  // or kSetting
    std::uint64_t epoch = 0, seq = 0;
    std::string value;
  };
  Chain chain;
  std::vector<Info> infos;  // by family, number and epoch

  // None: the rank has no state. `what` is in errors.
  Result<std::optional<RankMeta>> Meta(const std::string& what) const;
  bool has_hello() const;  // one that counts
};

// Threads: any.
class RankReads {
 public:
  explicit RankReads(Engine& engine);

  // Empty: nothing is stored of it.
  Result<RankRows> Read(AttemptId attempt, std::uint32_t rank);
  Result<std::map<std::uint32_t, RankMeta>> ReadAll(AttemptId attempt);

 private:
  using ByRank = std::map<std::uint32_t, RankRows>;

  SharedReads<AttemptId, std::uint32_t, ByRank> some_;
  SharedReads<AttemptId, std::monostate, ByRank> all_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_RANK_ROWS_H_
