// Frame of the stored values: version (1 byte), payload, CRC-32C of both (4 bytes, little-endian).
#ifndef STATCOLLECT_SERVER_STORE_CODEC_SEALED_H_
#define STATCOLLECT_SERVER_STORE_CODEC_SEALED_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect {

std::string Seal(std::uint8_t version, std::string_view payload);

// As Seal for a payload that already follows its version byte, which saves a copy.
std::string SealInPlace(std::string versioned_payload);

// The payload of a sealed value of a version from 1 to `version_max`. kDataLoss: too short or wrong
// checksum; kFailedPrecondition: a newer version. `what` names the value in the message.
Result<std::string_view> Unseal(std::string_view what, std::string_view sealed,
                                std::uint8_t version_max);
// The same, with what() called only if the name is needed.
Result<std::string_view> UnsealAs(const std::function<std::string()>& what, std::string_view sealed,
                                  std::uint8_t version_max);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_SEALED_H_
