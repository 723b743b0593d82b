#include "common/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "common/names.h"
#include "common/secret_mode.h"
#include "common/text.h"

namespace statcollect {
namespace {

// stc_<12 digits>_<64 digits>
constexpr std::string_view kTokenHead = "stc_";
constexpr std::size_t kTokenIdDigits = 12, kTokenDigits = 64;
constexpr std::size_t kTokenLength = kTokenHead.size() + kTokenIdDigits + 1 + kTokenDigits;

Status BadTokenFile(const std::string& path, const std::string& found, const std::string& next) {
  return {Code::kUnauthenticated,
          "read the token file " + Printable(path) + ": " + found + "; " + next};
}

bool AllHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// It begins with "stc_" and has no more than a token's length.
bool IsToken(std::string_view text) {
  return text.size() == kTokenLength && AllHex(text.substr(kTokenHead.size(), kTokenIdDigits)) &&
         text[kTokenHead.size() + kTokenIdDigits] == '_' &&
         AllHex(text.substr(kTokenHead.size() + kTokenIdDigits + 1));
}

Status CheckTokenFile(int file, const std::string& path) {
  struct stat found {};
  if (fstat(file, &found) != 0)
    return BadTokenFile(path, std::generic_category().message(errno), "expected a plain file");
  if (!S_ISREG(found.st_mode))
    return BadTokenFile(path, "not a plain file", "expected one that holds only the token");
  if (!IsClosedToOthers(found))
    return BadTokenFile(path, "others may read or change it",
                        "expected mode 0600; run: chmod 600 " + Printable(path));
  return Status::Ok();
}

}  // namespace

Result<std::string> ReadTokenFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) {
    return BadTokenFile(path, std::generic_category().message(errno),
                        "expected a file with a token of statcollectord token create");
  }
  Status status = CheckTokenFile(file, path);
  std::array<char, 1024> bytes{};
  const ssize_t got = status.ok() ? read(file, bytes.data(), bytes.size()) : 0;
  close(file);
  if (!status.ok()) return status;
  const std::string_view text =
      Trimmed(std::string_view(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))));
  const std::string_view expected =
      "expected one line, stc_<id>_<secret>, as statcollectord token create prints it";
  if (text.empty()) return BadTokenFile(path, "it is empty", std::string(expected));
  if (!text.starts_with(kTokenHead))
    return BadTokenFile(path, "it holds something else than a token", std::string(expected));
  if (text.size() < kTokenLength)
    return BadTokenFile(path,
                        "the token is cut off after " + std::to_string(text.size()) + " characters",
                        std::string(expected));
  if (!IsToken(text))
    return BadTokenFile(path, "it holds more than a token, or a damaged one",
                        std::string(expected));
  return std::string(text);
}

bool ContainsToken(std::string_view text) {
  for (std::size_t at = text.find(kTokenHead); at != std::string_view::npos;
       at = text.find(kTokenHead, at + 1)) {
    const std::string_view rest = text.substr(at + kTokenHead.size());
    // Also a token that was cut off.
    if (rest.size() > kTokenIdDigits && AllHex(rest.substr(0, kTokenIdDigits)) &&
        rest[kTokenIdDigits] == '_')
      return true;
  }
  return false;
}

}  // namespace statcollect
