#include "server/store/rocksdb/journal_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "common/checksum.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {
namespace {

// Logs and MANIFESTs have one format: blocks of 32 KiB, in which lie records, each with its masked
// CRC-32C u32, its length u16 and its type u8, little-endian; where less than that is left of a
// block, it is not used.
constexpr std::size_t kBlockBytes = 32 << 10, kHeadBytes = 7;
// These types have 4 more bytes in the head: the number of the log, for files that are used again.
constexpr std::uint8_t kFirstReusedType = 5, kLastReusedType = 8;

std::uint32_t LittleEndian(std::string_view bytes) {
  std::uint32_t number = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    number = number << 8 | static_cast<std::uint8_t>(bytes[i]);
  return number;
}

std::uint32_t Unmasked(std::uint32_t crc) {
  const std::uint32_t rotated = crc - 0xa282ead8U;
  return rotated >> 17 | rotated << 15;
}

// The size of the record that `rest` of a block begins with; absent: there is no whole one.
std::optional<std::size_t> RecordBytes(std::string_view rest) {
  if (rest.size() < kHeadBytes) return std::nullopt;
  const std::uint32_t length = LittleEndian(rest.substr(4, 2));
  const auto type = static_cast<std::uint8_t>(rest[6]);
  const std::size_t head =
      kHeadBytes + (type >= kFirstReusedType && type <= kLastReusedType ? 4 : 0);
  if (rest.size() < head + length) return std::nullopt;
  const std::string_view covered = rest.substr(6, head + length - 6);
  if (Crc32c(covered) != Unmasked(LittleEndian(rest.substr(0, 4)))) return std::nullopt;
  return head + length;
}

// The end of the whole records that the file begins with, or the first such end that is not below
// `enough`.
Result<std::uint64_t> ReadRecords(rocksdb::FileSystem& files, const std::string& path,
                                  std::uint64_t enough) {
  const auto failed = [&](const rocksdb::IOStatus& why) {
    return FromRocks("read '" + path + "'", why);
  };
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  if (const auto opened = files.NewRandomAccessFile(path, {}, &file, nullptr); !opened.ok())
    return failed(opened);
  std::string scratch(kBlockBytes, '\0');
  std::uint64_t whole = 0;
  for (std::uint64_t begin = 0; whole < enough; begin += kBlockBytes) {
    rocksdb::Slice read;
    if (const auto status = file->Read(begin, kBlockBytes, {}, &read, scratch.data(), nullptr);
        !status.ok())
      return failed(status);
    const std::string_view block = View(read);
    for (std::size_t at = 0; whole < enough && kBlockBytes - at >= kHeadBytes;) {
      const auto record = RecordBytes(block.substr(std::min(at, block.size())));
      if (!record) return whole;
      at += *record;
      whole = begin + at;
    }
  }
  return whole;
}

}  // namespace

Result<std::uint64_t> WholeBytes(rocksdb::FileSystem& files, const std::string& path) {
  return ReadRecords(files, path, ~std::uint64_t{0});
}

Result<std::vector<std::string>> FindLosses(rocksdb::FileSystem& files,
                                            const std::string& directory,
                                            const SyncedLengths& lengths) {
  std::vector<std::string> losses;
  for (const auto& [name, bytes] : lengths) {
    const std::string path = directory + "/" + name, had = std::to_string(bytes);
    std::uint64_t size = 0;
    const rocksdb::IOStatus found = files.GetFileSize(path, {}, &size, nullptr);
    if (found.IsNotFound() || found.IsPathNotFound() ||
        files.FileExists(path, {}, nullptr).IsNotFound()) {
      losses.push_back("'" + name + "' is missing, of which " + had + " bytes had been synced");
      continue;
    }
    if (!found.ok()) return FromRocks("look at '" + path + "'", found);
    if (size < bytes) {
      losses.push_back("'" + name + "' has " + std::to_string(size) + " bytes, and " + had +
                       " had been synced");
      continue;
    }
    STATCOLLECT_ASSIGN_OR_RETURN(const auto whole, ReadRecords(files, path, bytes));
    if (whole < bytes) {
      losses.push_back("'" + name + "' is damaged behind byte " + std::to_string(whole) + ", and " +
                       had + " had been synced");
    }
  }
  return losses;
}

}  // namespace statcollect
