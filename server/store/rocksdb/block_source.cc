#include "server/store/rocksdb/block_source.h"

#include <algorithm>
#include <utility>

namespace statcollect {
namespace {

// Key frames kept by one source: of 256 k activations, about 50 MB at 16 sums a sketch.
constexpr std::size_t kKeyFramesMax = 1024;

std::string What(const StatKey& key) { return "block of " + Describe(key); }

// Whether a key frame of which the first parts were read will do for the second parts of a block.
bool Covers(BlockParts read, BlockParts wanted) {
  if (read == wanted || read == BlockParts::kAll) return true;
  return (wanted == BlockParts::kHashes && read != BlockParts::kNorms) ||
         (wanted == BlockParts::kNorms && read != BlockParts::kHashes);
}

Status Dangling(const StatKey& key, const std::string& why) {
  return {Code::kDataLoss,
          "read " + why + ": " + What(key) +
              " is missing; the store is damaged; restore a checkpoint or remove the run"};
}

}  // namespace

Cursor::Cursor(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  it_.reset(db.NewIterator(options, family));
}

std::optional<std::string_view> Cursor::Get(const std::string& key) {
  if (it_->Valid() && it_->key().compare(key) < 0) it_->Next();
  if (!it_->Valid() || it_->key() != rocksdb::Slice(key)) it_->Seek(key);
  if (!it_->Valid() || it_->key() != rocksdb::Slice(key)) return std::nullopt;
  return View(it_->value());
}

BlockSource::BlockSource(rocksdb::DB& db, const StatFamilies& families)
    : db_(db), families_(families), stats_(db, families.stats), sketches_(db, families.sketches) {}

Result<std::string> BlockSource::Fetch(const StatKey& key, const std::string& for_what) {
  auto found = stats_.Get(EncodeStatKey(key));
  if (!found &&
      stats_.status().ok()) {  // the block that refers to it may be younger than the cursor
    stats_ = Cursor(db_, families_.stats);
    sketches_ = Cursor(db_, families_.sketches);
    found = stats_.Get(EncodeStatKey(key));
  }
  if (!found && stats_.status().ok()) return Dangling(key, for_what);
  if (!found) return FromRocks("read " + What(key), stats_.status());
  bytes_read_ += found->size();
  return std::string(*found);
}

Result<BlockSource::Resolved> BlockSource::Resolve(const StatKey& key, const BlockReader& stored) {
  const StatKey target = stored.target();
  const BlockDigest digest = stored.digest();
  auto bytes = Fetch(target, "the target of " + What(key));
  if (!bytes.ok()) return Reread(key, bytes.status());
  Resolved resolved{target, std::make_unique<std::string>(*std::move(bytes)), {}};
  STATCOLLECT_ASSIGN_OR_RETURN(auto at_target, BlockReader::Open(target, *resolved.bytes));
  if (at_target.kind() == BlockReader::Kind::kAlias || at_target.digest() != digest) {
    return Status(Code::kDataLoss, "read " + What(key) + ": it refers to " + What(target) +
                                       ", which has different content; the store is damaged; "
                                       "restore a checkpoint or remove the run");
  }
  resolved.reader = at_target;
  return resolved;
}

// The target is gone: if its run was removed meanwhile, the block holds its content itself by now.
Result<BlockSource::Resolved> BlockSource::Reread(const StatKey& key, const Status& why) {
  auto now = std::make_unique<std::string>();
  const rocksdb::Status read = db_.Get({}, families_.stats, EncodeStatKey(key), now.get());
  if (!read.ok()) return why;
  STATCOLLECT_ASSIGN_OR_RETURN(auto reader, BlockReader::Open(key, *now));
  if (reader.kind() != BlockReader::Kind::kWhole) return why;
  stats_ = Cursor(db_, families_.stats);
  sketches_ = Cursor(db_, families_.sketches);
  return Resolved{key, std::move(now), reader};
}

Status BlockSource::Read(const StatKey& key, const BlockReader& stored, BlockParts parts,
                         BlockColumns* block) {
  if (stored.kind() != BlockReader::Kind::kAlias) return ReadResolved(key, stored, parts, block);
  auto resolved = Resolve(key, stored);
  return resolved.ok() ? ReadResolved(resolved->key, resolved->reader, parts, block)
                       : resolved.status();
}

Status BlockSource::ReadResolved(const StatKey& key, const BlockReader& reader, BlockParts parts,
                                 BlockColumns* block) {
  const bool sketches = parts == BlockParts::kAll || parts == BlockParts::kCompared;
  const BlockColumns* key_frame = nullptr;
  if (reader.kind() == BlockReader::Kind::kRelative) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto found, FindKeyFrame(key, reader, parts));
    key_frame = &found->block;
  }
  if (parts == BlockParts::kHashes) return reader.ReadHashes(key_frame, block);
  if (parts == BlockParts::kNorms) return reader.ReadNorms(key_frame, block);
  STATCOLLECT_RETURN_IF_ERROR(parts == BlockParts::kCompared
                                  ? reader.ReadCompared(key_frame, block)
                                  : reader.ReadNumbers(key_frame, block));
  if (!sketches) return Status::Ok();
  if (!reader.StoresSums(*block)) return reader.ReadSums(std::nullopt, key_frame, block);
  const auto sums = sketches_.Get(EncodeStatKey(key));
  if (!sums)
    STATCOLLECT_RETURN_IF_ERROR(FromRocks("read sketches of " + What(key), sketches_.status()));
  bytes_read_ += sums ? sums->size() : 0;
  return reader.ReadSums(sums, key_frame, block);
}

Result<BlockReader> BlockSource::OpenKeyFrame(const StatKey& key, const StatKey& at,
                                              std::string* bytes) {
  STATCOLLECT_ASSIGN_OR_RETURN(*bytes, Fetch(at, "the key frame of " + What(key)));
  auto whole = BlockReader::Open(at, *bytes);
  if (!whole.ok() || whole->kind() == BlockReader::Kind::kWhole) return whole;
  return Status(
      Code::kDataLoss,
      "read " + What(key) + ": its key frame, " + What(at) +
          ", does not stand alone; the store is damaged; restore a checkpoint or remove the run");
}

Result<BlockSource::KeyFrame*> BlockSource::FindKeyFrame(const StatKey& key,
                                                         const BlockReader& reader,
                                                         BlockParts parts) {
  StatKey at = key;
  at.step = key.step - reader.steps_back();  // wraps only if damaged: then nothing is there
  const auto kept = key_frames_.find(Place(key.attempt, key.rank, key.activation));
  if (kept != key_frames_.end() && kept->second.step == at.step &&
      Covers(kept->second.parts, parts))
    return &kept->second;
  std::string bytes;
  STATCOLLECT_ASSIGN_OR_RETURN(auto whole, OpenKeyFrame(key, at, &bytes));
  return KeepKeyFrame(at, whole, parts == BlockParts::kHashes ? BlockParts::kNumbers : parts);
}

Result<BlockSource::KeyFrame*> BlockSource::KeepKeyFrame(const StatKey& key,
                                                         const BlockReader& whole,
                                                         BlockParts parts) {
  const Place place(key.attempt, key.rank, key.activation);
  auto kept = key_frames_.find(place);
  if (kept == key_frames_.end()) {
    if (key_frames_.size() >= kKeyFramesMax) key_frames_.clear();
    kept = key_frames_.try_emplace(place).first;
  }
  const Status read = ReadResolved(key, whole, parts, &kept->second.block);
  if (!read.ok()) {
    key_frames_.erase(kept);
    return read;
  }
  kept->second.step = key.step;
  kept->second.parts = parts;
  return &kept->second;
}

// A block that stands alone is the key frame of the next steps: read to where they will look for
// it.
Result<const BlockColumns*> BlockSource::ReadInPlace(const StatKey& key, const BlockReader& stored,
                                                     BlockParts parts, BlockColumns* other) {
  Resolved resolved;
  const BlockReader* reader = &stored;
  if (stored.kind() == BlockReader::Kind::kAlias) {
    STATCOLLECT_ASSIGN_OR_RETURN(resolved, Resolve(key, stored));
    reader = &resolved.reader;
  }
  const StatKey& at = reader == &stored ? key : resolved.key;
  if (reader->kind() == BlockReader::Kind::kWhole) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto kept, KeepKeyFrame(at, *reader, parts));
    return static_cast<const BlockColumns*>(&kept->block);
  }
  STATCOLLECT_RETURN_IF_ERROR(ReadResolved(at, *reader, parts, other));
  return static_cast<const BlockColumns*>(other);
}

Result<std::optional<ColumnRecord>> BlockSource::ReadRecord(const StatKey& key,
                                                            std::string_view stats,
                                                            std::uint32_t activation) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto stored, BlockReader::Open(key, stats));
  Resolved resolved{key, {}, stored};
  if (resolved.reader.kind() == BlockReader::Kind::kAlias) {
    STATCOLLECT_ASSIGN_OR_RETURN(resolved, Resolve(key, resolved.reader));
  }
  const BlockReader& reader = resolved.reader;
  const bool whole = reader.kind() == BlockReader::Kind::kWhole;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto found,
                               whole ? RememberRecord(resolved.key, reader, activation)
                                     : FindKeyRecord(resolved.key, reader, activation));
  const KeyRecord& at_key = *found;
  if (!at_key.index) return std::optional<ColumnRecord>();
  if (whole) return std::optional(at_key.record);
  if (at_key.size != reader.size()) {
    return Status(
        Code::kDataLoss,
        "read " + What(key) + ": its key frame has a different size; the store is damaged");
  }
  return std::optional(reader.ReadRecord(*at_key.index, &at_key.record));
}

Result<const BlockSource::KeyRecord*> BlockSource::FindKeyRecord(const StatKey& key,
                                                                 const BlockReader& reader,
                                                                 std::uint32_t activation) {
  StatKey at = key;
  at.step = key.step - reader.steps_back();  // wraps only if damaged: then nothing is there
  if (key_record_ && key_record_->key == at && key_record_->activation == activation)
    return &*key_record_;
  std::string bytes;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto whole, OpenKeyFrame(key, at, &bytes));
  return RememberRecord(at, whole, activation);
}

Result<const BlockSource::KeyRecord*> BlockSource::RememberRecord(const StatKey& key,
                                                                  const BlockReader& whole,
                                                                  std::uint32_t activation) {
  KeyRecord& now = key_record_.emplace();
  now = {
      .key = key, .activation = activation, .size = whole.size(), .index = whole.Find(activation)};
  if (now.index) now.record = whole.ReadRecord(*now.index, nullptr);
  return &now;
}

}  // namespace statcollect
