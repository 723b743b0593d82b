#include "server/store/identity_file.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>

#include "common/parse.h"
#include "common/text.h"
#include "server/store/format_file.h"

namespace statcollect {
namespace {

constexpr char kName[] = "/STORE_ID";

std::uint64_t RandomNumber() {
  std::random_device device;
  std::uint64_t number = 0;
  while (number == 0) number = (std::uint64_t{device()} << 32) | device();
  return number;
}

bool ParseHex(const std::string& text, StoreIdentity* identity) {
  if (text.size() != 2 * identity->id.size()) return false;
  if (text.find_first_not_of("0123456789abcdef") != std::string::npos) return false;
  for (std::size_t i = 0; i < identity->id.size(); ++i)
    identity->id[i] = static_cast<std::uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return true;
}

Status Write(const std::string& directory, const StoreIdentity& identity) {
  return ReplaceFile(directory + kName, "statcollect identity " + HexOf(identity.id) + " " +
                                            std::to_string(identity.epoch) + "\n");
}

// Unknown if the file is missing or damaged; epoch 0: that of a checkpoint.
StoreIdentity Read(const std::string& path) {
  std::ifstream in(path);
  std::string word1, word2, hex, epoch;
  in >> word1 >> word2 >> hex >> epoch;
  StoreIdentity identity;
  const auto number = ParseNumber<std::uint64_t>(epoch);
  if (word1 != "statcollect" || word2 != "identity" || !number || !ParseHex(hex, &identity))
    return {};
  identity.epoch = *number;
  return identity;
}

}  // namespace

Result<StoreIdentity> OpenIdentityFile(const std::string& directory) {
  StoreIdentity identity = Read(directory + kName);
  if (identity.epoch != 0) return identity;
  if (!identity.known()) {
    std::random_device device;
    std::generate(identity.id.begin(), identity.id.end(),
                  [&] { return static_cast<std::uint8_t>(device()); });
  }
  identity.epoch = RandomNumber();
  STATCOLLECT_RETURN_IF_ERROR(Write(directory, identity));
  return identity;
}

Result<StoreIdentity> RenewIdentityFile(const std::string& directory) {
  STATCOLLECT_RETURN_IF_ERROR(WriteCheckpointIdentity(directory, Read(directory + kName)));
  return OpenIdentityFile(directory);
}

Status WriteCheckpointIdentity(const std::string& directory, const StoreIdentity& of) {
  return Write(directory, {.id = of.id, .epoch = 0});
}

}  // namespace statcollect
