// Definitions of ranks that were read lately, in memory.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_DEFINITION_CACHE_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_DEFINITION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/thread_annotations.h"
#include "server/store/run_reader.h"

namespace statcollect {

// How many definitions a rank has. They are only ever added, so as long as their number is the
// same, the cached ones are complete.
struct DefinitionCounts {
  std::size_t activations = 0, layouts = 0;
  bool operator==(const DefinitionCounts&) const = default;
};

inline DefinitionCounts CountsOf(const RankDefinitions& definitions) {
  return {.activations = definitions.activations.size(), .layouts = definitions.layouts.size()};
}

// Ranks with equal definitions, as most ranks of a launch have, share an entry. Beyond `bytes_max`,
// the least recently used one is dropped. Thread-safe.
class DefinitionCache {
 public:
  using Shared = SharedDefinitions;
  static constexpr std::size_t kBytesMax = std::size_t{64} << 20;
  static constexpr std::size_t kRanksMax = 16'384;

  explicit DefinitionCache(std::size_t bytes_max = kBytesMax) : bytes_max_(bytes_max) {}

  // Null: not known, or there are more or fewer by now.
  Shared Find(AttemptId attempt, std::uint32_t rank, const DefinitionCounts& counts);
  // Finds an entry by its stored form, and shares it with this rank; null: there is none.
  Shared FindStored(AttemptId attempt, std::uint32_t rank, std::string_view stored);
  // Keeps an entry, and returns the one that all ranks with this stored form share from now on.
  Shared Keep(AttemptId attempt, std::uint32_t rank, std::string stored,
              RankDefinitions definitions);

  std::size_t bytes() const;  // about

 private:
  using Rank = std::pair<AttemptId, std::uint32_t>;
  struct Content {
    std::string stored;
    RankDefinitions definitions;
    std::size_t bytes = 0;
    std::size_t ranks = 0;   // that have it
    std::uint64_t used = 0;  // the greatest was asked for last
  };
  using Contents = std::unordered_map<std::string_view, std::shared_ptr<Content>>;

  Shared Use(const std::shared_ptr<Content>& content) STATCOLLECT_REQUIRES(mutex_);
  void Assign(const Rank& rank, const std::shared_ptr<Content>& content)
      STATCOLLECT_REQUIRES(mutex_);
  void Release(const std::shared_ptr<Content>& content) STATCOLLECT_REQUIRES(mutex_);
  void MakeRoom(std::size_t bytes) STATCOLLECT_REQUIRES(mutex_);

  const std::size_t bytes_max_;
  mutable Mutex mutex_;
  std::map<Rank, std::shared_ptr<Content>> ranks_ STATCOLLECT_GUARDED_BY(mutex_);
  Contents contents_ STATCOLLECT_GUARDED_BY(mutex_);  // by stored form, which is the content's
  std::size_t bytes_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::uint64_t uses_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_DEFINITION_CACHE_H_
