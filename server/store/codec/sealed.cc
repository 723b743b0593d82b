#include "server/store/codec/sealed.h"

#include "common/checksum.h"
#include "server/store/byte_io.h"

namespace statcollect {
namespace {

constexpr std::size_t kFrameBytes = 5;

}  // namespace

std::string Seal(std::uint8_t version, std::string_view payload) {
  std::string versioned;
  versioned.reserve(payload.size() + kFrameBytes);
  versioned.push_back(static_cast<char>(version));
  versioned += payload;
  return SealInPlace(std::move(versioned));
}

std::string SealInPlace(std::string versioned_payload) {
  ByteWriter crc;
  crc.U32(Crc32c(versioned_payload));
  versioned_payload += crc.bytes();
  return versioned_payload;
}

Result<std::string_view> Unseal(std::string_view what, std::string_view sealed,
                                std::uint8_t version_max) {
  return UnsealAs([&] { return std::string(what); }, sealed, version_max);
}

Result<std::string_view> UnsealAs(const std::function<std::string()>& what, std::string_view sealed,
                                  std::uint8_t version_max) {
  const auto damaged = [&](const std::string& found) {
    return Status(Code::kDataLoss,
                  "read " + what() + ": " + found +
                      "; the stored value is damaged; restore a checkpoint or remove the run");
  };
  if (sealed.size() < kFrameBytes) {
    return damaged("found " + std::to_string(sealed.size()) + " bytes, expected at least " +
                   std::to_string(kFrameBytes));
  }
  const std::string_view body = sealed.substr(0, sealed.size() - 4);
  if (ByteReader(sealed.substr(sealed.size() - 4)).U32() != Crc32c(body))
    return damaged("the checksum does not match");
  const auto version = static_cast<std::uint8_t>(body[0]);
  if (version < 1 || version > version_max) {
    return Status(Code::kFailedPrecondition,
                  "read " + what() + ": format version is " + std::to_string(version) +
                      "; this build reads 1.." + std::to_string(version_max) +
                      "; upgrade statcollectord");
  }
  return body.substr(1);
}

}  // namespace statcollect
