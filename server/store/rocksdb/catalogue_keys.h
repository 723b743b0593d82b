// Keys and key ranges of the catalogue family; server/store/key.h describes them.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_CATALOGUE_KEYS_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_CATALOGUE_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "server/store/attempt.h"
#include "server/store/key.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {

inline constexpr std::size_t kRankInKey = 5;  // offset of the rank in keys of ranks

inline KeyRange AllAttempts() { return KeyRange("r", "s"); }

inline std::string AttemptPrefix(const std::string& run) {
  return KeyBuilder('r').Text(run).Text({"\0", 1}).Take();
}
inline std::string AttemptKey(const AttemptMeta& attempt) {
  return AttemptPrefix(attempt.run) + KeyBuilder().U32(attempt.number).Take();
}
inline std::string KeptKey(const std::string& run) { return "k" + run; }
// Of an attempt that was removed and still has data.
inline std::string HiddenKey(AttemptId attempt) { return KeyBuilder('g').U32(attempt).Take(); }
inline KeyRange AllHidden() { return KeyRange("g", "h"); }
inline std::string DocumentKey(const std::string& run, const std::string& name) {
  return KeyBuilder('d').Text(run).Text({"\0", 1}).Text(name).Take();
}
inline std::string RankKey(char prefix, AttemptId attempt, std::uint32_t rank) {
  return KeyBuilder(prefix).U32(attempt).U32(rank).Take();
}
inline KeyRange PrefixRange(const std::string& prefix) {
  return KeyRange(prefix, PrefixEnd(prefix));
}
inline KeyRange AttemptRange(char prefix, AttemptId attempt) {
  return PrefixRange(KeyBuilder(prefix).U32(attempt).Take());
}

// " of attempt 3, rank 1", for messages.
inline std::string OfRank(AttemptId attempt, std::uint32_t rank) {
  return " of attempt " + std::to_string(attempt) + ", rank " + std::to_string(rank);
}

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_CATALOGUE_KEYS_H_
