#include "client/formats/zip.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "common/endian.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

constexpr char kZipExpected[] =
    "a complete zip file, as torch.save writes; the file is damaged, or the tool was ended while "
    "it wrote";
constexpr std::string_view kEnd("PK\5\6", 4), kEnd64("PK\6\6", 4), kLocator64("PK\6\7", 4),
    kEntry("PK\1\2", 4), kLocal("PK\3\4", 4);
constexpr std::size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kEntryBytes = 46,
                      kLocalBytes = 30, kCommentMax = 65'535;
constexpr std::uint64_t kDirectoryBytesMax = std::uint64_t{64} << 20, kMembersMax = 1 << 20;
constexpr std::uint32_t kIn64 = 0xffff'ffff;  // the number is in the 64-bit part instead

Status Damaged(const ByteSource& file, const std::string& found) {
  return BadInput(file.path(), 0, found, kZipExpected);
}

Result<std::string> ReadAt(ByteSource& file, std::uint64_t position, std::size_t size) {
  STATCOLLECT_RETURN_IF_ERROR(file.Seek(position));
  std::string bytes(size, '\0');
  const auto read = file.ReadUpTo(bytes.data(), size);
  if (!read.ok()) return read.status();
  return *read == size ? Result<std::string>(std::move(bytes))
                       : Damaged(file, "the end of the file in the middle of a zip file");
}

std::uint64_t U16(std::string_view bytes, std::size_t at) {
  return LoadLittleEndian<std::uint16_t>(bytes.data() + at);
}
std::uint64_t U32(std::string_view bytes, std::size_t at) {
  return LoadLittleEndian<std::uint32_t>(bytes.data() + at);
}
std::uint64_t U64(std::string_view bytes, std::size_t at) {
  return LoadLittleEndian<std::uint64_t>(bytes.data() + at);
}

struct Directory {
  std::uint64_t position = 0, bytes = 0, members = 0;
};

// What the record at the end of the file says.
Result<Directory> FindDirectory(ByteSource& file) {
  const auto size = file.Size();
  if (!size.ok()) return size.status();
  const auto tail_bytes =
      static_cast<std::size_t>(std::min<std::uint64_t>(*size, kEndBytes + kCommentMax));
  const auto tail = ReadAt(file, *size - tail_bytes, tail_bytes);
  if (!tail.ok()) return tail.status();
  const std::size_t end = tail->rfind(kEnd);
  if (end == std::string::npos || tail->size() - end < kEndBytes)
    return Damaged(file, *size == 0 ? "an empty file" : "no zip directory at the end of the file");
  Directory directory{.position = U32(*tail, end + 16),
                      .bytes = U32(*tail, end + 12),
                      .members = U16(*tail, end + 10)};
  if (end >= kLocatorBytes &&
      std::string_view(*tail).substr(end - kLocatorBytes).starts_with(kLocator64)) {
    const auto end64 = ReadAt(file, U64(*tail, end - kLocatorBytes + 8), kEnd64Bytes);
    if (!end64.ok()) return end64.status();
    if (!end64->starts_with(kEnd64)) return Damaged(file, "a zip file without its directory");
    directory = {.position = U64(*end64, 48), .bytes = U64(*end64, 40), .members = U64(*end64, 32)};
  }
  if (directory.bytes > kDirectoryBytesMax || directory.members > kMembersMax)
    return BadInput(file.path(), 0,
                    "a zip file of " + std::to_string(directory.members) + " members",
                    "at most " + std::to_string(kMembersMax));
  return directory;
}

// The 64-bit numbers of an entry, where its 32-bit ones cannot hold them: in this order.
bool TakeExtra(std::string_view extra, std::uint64_t stored_bytes, ZipMember* member) {
  if (stored_bytes != kIn64 && member->bytes != kIn64 && member->header != kIn64) return true;
  while (extra.size() >= 4) {
    const std::uint64_t id = U16(extra, 0), size = U16(extra, 2);
    if (size > extra.size() - 4) return false;
    std::string_view body = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    std::uint64_t compressed = stored_bytes;
    for (std::uint64_t* const number : {&member->bytes, &compressed, &member->header}) {
      if (*number != kIn64) continue;
      if (body.size() < 8) return false;
      *number = U64(body, 0);
      body.remove_prefix(8);
    }
    return true;
  }
  return false;
}

}  // namespace

Result<std::map<std::string, ZipMember>> ReadZipDirectory(ByteSource& file) {
  const auto directory = FindDirectory(file);
  if (!directory.ok()) return directory.status();
  const auto bytes = ReadAt(file, directory->position, static_cast<std::size_t>(directory->bytes));
  if (!bytes.ok()) return bytes.status();
  std::string_view rest = *bytes;
  std::map<std::string, ZipMember> members;
  for (std::uint64_t i = 0; i < directory->members; ++i) {
    if (rest.size() < kEntryBytes || !rest.starts_with(kEntry))
      return Damaged(file, "a zip directory that cannot be read");
    const std::uint64_t name = U16(rest, 28), extra = U16(rest, 30), comment = U16(rest, 32);
    if (name + extra + comment > rest.size() - kEntryBytes)
      return Damaged(file, "a zip directory that cannot be read");
    constexpr std::uint64_t kEncrypted = 1;
    ZipMember member{.header = U32(rest, 42),
                     .bytes = U32(rest, 24),
                     .stored = U16(rest, 10) == 0 && (U16(rest, 8) & kEncrypted) == 0};
    if (!TakeExtra(rest.substr(kEntryBytes + name, extra), U32(rest, 20), &member))
      return Damaged(file, "a zip directory that cannot be read");
    if (!members.emplace(rest.substr(kEntryBytes, name), member).second)
      return Damaged(file, "a zip file with two members of the same name");
    rest.remove_prefix(kEntryBytes + name + extra + comment);
  }
  return members;
}

Status SeekInMember(ByteSource& file, const std::string& name, const ZipMember& member,
                    std::uint64_t offset) {
  if (!member.stored)
    return BadInput(file.path(), 0, "'" + name + "', which is compressed", "one that is stored");
  const auto size = file.Size();
  if (!size.ok()) return size.status();
  const auto header = ReadAt(file, member.header, kLocalBytes);
  if (!header.ok()) return header.status();
  if (!header->starts_with(kLocal)) return Damaged(file, "no '" + name + "' where it should be");
  const std::uint64_t begin = member.header + kLocalBytes + U16(*header, 26) + U16(*header, 28);
  if (begin > *size || member.bytes > *size - begin)
    return Damaged(file, "the end of the file within '" + name + "'");
  return file.Seek(begin + std::min(offset, member.bytes));
}

}  // namespace statcollect::client::formats
