#include "server/store/clickhouse/claims.h"

#include <random>
#include <string>

#include "common/text.h"
#include "server/store/byte_io.h"
#include "server/store/clickhouse/chain.h"

namespace statcollect {
namespace {

constexpr int kFenceTries = 2;

// Two collectors that claim a rank at the same moment choose different epochs.
std::uint64_t EpochAfter(std::uint64_t newest) {
  constexpr int kRandomBits = 32;
  static_assert(std::random_device::max() == 0xffffffff);
  return (((newest >> kRandomBits) + 1) << kRandomBits) | std::random_device()();
}

std::string NameOf(const Claims::Place& place) {
  return "rank " + std::to_string(place.second) + " of attempt " + std::to_string(place.first);
}

// "(1, 0), (1, 1)" and "1, 1".
std::string SqlPlaces(const std::set<Claims::Place>& places) {
  std::string list;
  for (const auto& [attempt, rank] : places)
    list +=
        (list.empty() ? "(" : ", (") + std::to_string(attempt) + ", " + std::to_string(rank) + ")";
  return list;
}

std::string SqlAttempts(const std::set<Claims::Place>& places) {
  std::set<AttemptId> attempts;
  for (const auto& [attempt, rank] : places) attempts.insert(attempt);
  return Joined(attempts);
}

}  // namespace

Status Claims::WriteState(const Place& place, const RowStamp& stamp, const std::string& value) {
  ByteWriter rows;
  AddRecordRow(place.first, place.second, {.family = RowFamily::kRank, .value = value}, stamp,
               &rows);
  return writes_.Write(
      place.first, "claim " + NameOf(place), rows.bytes(),
      "claim " + NameOf(place) + " " + std::to_string(stamp.epoch) + " " + std::to_string(stamp.n));
}

Result<RankRows> Claims::Read(const Place& place) {
  auto rows = reads_.Read(place.first, place.second);
  if (rows.ok()) See(place, rows->chain.newest_epoch());
  return rows;
}

std::uint64_t Claims::NewestSeen(const Place& place) {
  MutexLock lock(mutex_);
  const auto seen = seen_.find(place);
  return seen == seen_.end() ? 0 : seen->second;
}

void Claims::See(const Place& place, std::uint64_t newest_epoch) {
  MutexLock lock(mutex_);
  if (newest_epoch == 0) {
    seen_.erase(place);
    return;
  }
  if (seen_.size() >= kSeenMax) seen_.clear();
  seen_[place] = newest_epoch;
}

// A fence under an epoch that is not the newest has no effect: no state has that epoch, and none
// continues it.
Result<RankRows> Claims::WriteFence(const Place& place, std::uint64_t* epoch) {
  for (int tries = 0; tries < kFenceTries; ++tries) {
    *epoch = EpochAfter(NewestSeen(place));
    STATCOLLECT_RETURN_IF_ERROR(WriteState(place, {.epoch = *epoch, .cut = ~std::uint64_t{0}}, ""));
    auto rows = Read(place);
    if (!rows.ok()) return rows;
    const Chain& chain = rows->chain;
    const bool own = chain.newest_epoch() == *epoch &&
                     (chain.current() == nullptr || chain.current()->epoch != *epoch);
    if (own) return rows;
  }
  return Status(Code::kUnavailable,
                "claim " + NameOf(place) + ": another collector claims it, too; try again");
}

Result<RankRows> Claims::Claim(const Place& place) {
  Forget(place);
  Held held;
  auto rows = WriteFence(place, &held.epoch);
  if (!rows.ok()) return rows;
  if (const Chain::Link* current = rows->chain.current(); current != nullptr) {
    held.cut = current->seq;
    held.parent = current->epoch;
    held.n = 1;
    STATCOLLECT_RETURN_IF_ERROR(WriteState(
        place,
        {.epoch = held.epoch, .n = held.n, .seq = held.cut, .cut = held.cut, .parent = held.parent},
        current->value));
  }
  MutexLock lock(mutex_);
  held_[place] = held;
  return rows;
}

Result<bool> Claims::End(const Place& place) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, Read(place));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto meta, rows.Meta(NameOf(place)));
  if (!meta) return false;
  if (meta->finished) return true;
  STATCOLLECT_RETURN_IF_ERROR(Claim(place).status());
  Forget(place);
  return true;
}

Result<RowStamp> Claims::NextStamp(const Place& place, std::uint64_t seq) {
  for (bool claimed = false;; claimed = true) {
    {
      MutexLock lock(mutex_);
      if (const auto held = held_.find(place); held != held_.end())
        return RowStamp{.epoch = held->second.epoch,
                        .n = ++held->second.n,
                        .seq = seq,
                        .cut = held->second.cut,
                        .parent = held->second.parent};
    }
    if (claimed)
      return Status(Code::kInternal, "claim " + NameOf(place) + ": forgotten by another thread");
    STATCOLLECT_RETURN_IF_ERROR(Claim(place).status());
  }
}

void Claims::Forget(const Place& place) {
  MutexLock lock(mutex_);
  held_.erase(place);
}

Status Claims::Check(const std::set<Place>& places) {
  const std::string attempted = "check who writes " + std::to_string(places.size()) + " ranks";
  const std::string attempts = SqlAttempts(places);
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto answer,
      engine_.Select(
          attempted,
          "SELECT attempt, rank, max(epoch) AS newest FROM " + TableName(engine_, "records") +
              " WHERE family = " + SqlOf(RowFamily::kRank) + " AND attempt IN (" + attempts +
              ") AND (attempt, rank) IN (" + SqlPlaces(places) +
              ") GROUP BY attempt, rank UNION ALL SELECT id AS attempt, " +
              "toUInt32(4294967295) AS rank, toUInt64(max(state)) AS newest FROM " +
              TableName(engine_, "attempts") + " WHERE id IN (" + attempts + ") GROUP BY id"));
  ByteReader in(answer);
  while (in.ok() && in.remaining() > 0) {
    const Place place{in.U32(), in.U32()};  // in this order
    const std::uint64_t newest = in.U64();
    if (!places.contains(place)) {
      if (place.second != 0xffffffffu || newest == 0) continue;
      return {Code::kAborted,
              "store records: attempt " + std::to_string(place.first) + " was removed"};
    }
    MutexLock lock(mutex_);
    const auto held = held_.find(place);
    if (held == held_.end() || held->second.epoch == newest) continue;
    return {Code::kAborted,
            "store records: " + NameOf(place) + " has been taken over by another collector"};
  }
  return in.ok() ? Status::Ok() : BadAnswer(engine_, attempted);
}

}  // namespace statcollect
