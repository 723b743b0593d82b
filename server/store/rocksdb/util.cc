#include "server/store/rocksdb/util.h"

#include <cerrno>
#include <system_error>

#include "server/store/key.h"

namespace statcollect {

bool IsOutOfFiles(const rocksdb::Status& status) {
  if (!status.IsIOError()) return false;
  const std::string text = status.ToString();
  return text.find(std::generic_category().message(EMFILE)) != std::string::npos ||
         text.find(std::generic_category().message(ENFILE)) != std::string::npos;
}

Status FromRocks(const std::string& attempted, const rocksdb::Status& status) {
  if (status.ok()) return Status::Ok();
  Code code = Code::kInternal;
  if (status.IsCorruption()) code = Code::kDataLoss;
  if (status.IsIOError()) code = Code::kUnavailable;
  if (status.IsNoSpace() || IsOutOfFiles(status)) code = Code::kResourceExhausted;
  if (status.IsNotFound()) code = Code::kNotFound;
  return {code, attempted + ": " + status.ToString()};
}

KeyRange RankRange(AttemptId attempt, std::uint32_t rank, StepBounds steps) {
  std::string end = steps.last == ~std::uint64_t{0}
                        ? PrefixEnd(KeyBuilder().U32(attempt).U32(rank).Take())
                        : StepPrefix(attempt, rank, steps.last + 1);
  return KeyRange(StepPrefix(attempt, rank, steps.first), std::move(end));
}

std::unique_ptr<rocksdb::Iterator> Iterate(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family,
                                           const KeyRange& range, bool scan) {
  rocksdb::ReadOptions options;
  options.fill_cache = !scan;
  if (!range.end.empty()) options.iterate_upper_bound = &range.end_slice;
  std::unique_ptr<rocksdb::Iterator> it(db.NewIterator(options, family));
  it->Seek(range.begin);
  return it;
}

}  // namespace statcollect
