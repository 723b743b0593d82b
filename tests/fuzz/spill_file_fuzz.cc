// Spill files that anybody may have written: read as `statctl move import spill` reads them. The
// first byte chooses: 0: the bytes as they are; 1: with every checksum made right, so that what
// they guard is reached; else the decoders of the parts alone. What a file gives must be within it,
// and the parts must survive the way back.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "client/imports/spill_reader.h"
#include "common/checksum.h"
#include "common/spill_format.h"

namespace {

using namespace statcollect;

std::uint32_t Get32(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return value;
}

void Put32(std::string* bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) (*bytes)[at + i] = static_cast<char>(value >> (8 * i));
}

void Reseal(std::string* bytes, std::size_t begin, std::size_t size) {
  Put32(bytes, begin + size - 4, Crc32c(std::string_view(*bytes).substr(begin, size - 4)));
}

// Head, mark and, from the first one on, as many frames as fit.
std::string WithChecksums(std::string file) {
  if (file.size() < spill::kHeadBytes) return file;
  const std::string_view view = file;
  const std::size_t hello = Get32(file, 12);
  Put32(&file, 16, Crc32c(view.substr(spill::kHeadBytes, hello)));
  Reseal(&file, 0, spill::kMarkAt);
  Reseal(&file, spill::kMarkAt, spill::kMarkBytes);
  std::size_t at = spill::kHeadBytes + hello;
  while (at < file.size() && file.size() - at >= spill::kFrameHeadBytes) {
    const std::size_t payload = Get32(file, at);
    const std::size_t left = file.size() - at - spill::kFrameHeadBytes;
    Put32(&file, at + 24, Crc32c(view.substr(at + spill::kFrameHeadBytes, payload)));
    Reseal(&file, at, spill::kFrameHeadBytes);
    at += spill::kFrameHeadBytes + std::min(payload, left + 1);
  }
  return file;
}

void ReadFile(const std::string& bytes) {
  static const std::string path = [] {
    std::string name = "/tmp/spill_file_fuzz_XXXXXX";
    const int fd = mkstemp(name.data());
    if (fd < 0) std::abort();
    close(fd);
    static std::string gone = name;
    std::atexit([] { (void)unlink(gone.c_str()); });
    return name;
  }();
  const int fd = open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (fd < 0 || write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    std::abort();
  close(fd);
  const auto opened = client::SpillReader::Open(path);
  if (!opened.ok()) return;
  client::SpillReader& reader = **opened;
  if (reader.first_seq() == 0 || reader.bytes() > bytes.size()) std::abort();
  std::size_t read = 0;
  while (true) {
    const auto frame = reader.Next();
    if (!frame.ok()) return;
    if (!*frame) break;
    read += spill::kFrameHeadBytes + (*frame)->payload.size();
    if ((*frame)->records == 0 || read > reader.bytes()) std::abort();
  }
  if (read + reader.torn_bytes() > reader.bytes()) std::abort();
}

void DecodeParts(std::string bytes) {
  bytes.resize(std::max(bytes.size(), spill::kMarkAt));
  Reseal(&bytes, 0, 32);
  if (const auto head = spill::DecodeHead(bytes);
      head.ok() && head->hello_bytes > spill::kHelloBytesMax)
    std::abort();
  if (const auto mark = spill::DecodeMark(bytes); mark.ok()) {
    const auto again = spill::DecodeMark(spill::EncodeMark(*mark));
    if (!again.ok() || *again != *mark) std::abort();
  }
  if (const auto frame = spill::DecodeFrameHead(bytes); frame.ok()) {
    if (frame->payload_bytes > spill::kPayloadBytesMax) std::abort();
    if (spill::EncodeFrameHead(*frame) != bytes.substr(0, spill::kFrameHeadBytes)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 0) {
    ReadFile(rest);
  } else if (data[0] == 1) {
    ReadFile(WithChecksums(std::move(rest)));
  } else {
    DecodeParts(std::move(rest));
  }
  return 0;
}
