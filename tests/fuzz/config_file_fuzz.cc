// The collector's configuration file (TOML), as its administrator may have damaged it: taken or
// refused with a text.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/daemon/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int file = memfd_create("config", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  const char* const arguments[] = {"statcollectord", "--config", path.c_str()};
  const auto parsed = statcollect::ParseCommandLine(3, arguments, "0");
  if (parsed.exit_code && *parsed.exit_code != 0 && parsed.text.empty()) std::abort();
  return 0;
}
