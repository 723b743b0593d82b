// Drops entries of removed attempts from the list of contents (digest -> block) during compactions.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_CONTENTS_FILTER_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_CONTENTS_FILTER_H_

#include <memory>
#include <string>
#include <utility>

#include <rocksdb/compaction_filter.h>

#include "server/store/key.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {

class ContentsFilter final : public rocksdb::CompactionFilter {
 public:
  explicit ContentsFilter(LiveAttempts::Snapshot live) : live_(std::move(live)) {}
  bool Filter(int, const rocksdb::Slice&, const rocksdb::Slice& value, std::string*,
              bool*) const override {
    const auto key = DecodeStatKey(View(value));
    return key && live_.IsDead(key->attempt);
  }
  const char* Name() const override { return "statcollect.contents"; }

 private:
  const LiveAttempts::Snapshot live_;
};

class ContentsFilterFactory final : public rocksdb::CompactionFilterFactory {
 public:
  explicit ContentsFilterFactory(std::shared_ptr<LiveAttempts> live) : live_(std::move(live)) {}
  std::unique_ptr<rocksdb::CompactionFilter> CreateCompactionFilter(
      const rocksdb::CompactionFilter::Context&) override {
    return std::make_unique<ContentsFilter>(live_->snapshot());
  }
  const char* Name() const override { return "statcollect.contents"; }

 private:
  const std::shared_ptr<LiveAttempts> live_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_CONTENTS_FILTER_H_
