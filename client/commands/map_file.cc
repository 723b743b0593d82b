#include "client/commands/map_file.h"

#include <cstddef>
#include <fstream>
#include <ios>
#include <string_view>

#include "common/known_maps.h"
#include "common/names.h"
#include "common/utf8.h"
#include "proto/text/number_text.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kMapBytesMax = std::size_t{2} << 20;

}  // namespace

Result<std::string> ReadMap(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open() && LooksLikeKnownMap(path)) {
    const auto known = KnownMap(path);
    return known.ok() ? Result<std::string>(path)
                      : Status(known.status().code(), "--" + known.status().message());
  }
  std::string text(kMapBytesMax + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof())) {
    return Status(Code::kNotFound,
                  "--map: cannot read '" + Printable(path) +
                      "'; expected a file of lines PATTERN -> NAME, or a built-in map such as "
                      "hf:megatron; see statctl map --help");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMapBytesMax) {
    return Status(Code::kInvalidArgument, "--map: '" + Printable(path) + "' has more than " +
                                              FormatCount(kMapBytesMax) +
                                              " bytes; expected lines PATTERN -> NAME");
  }
  for (std::size_t at = 0, line = 1; at < text.size();) {
    const std::size_t bytes = DecodeUtf8(std::string_view(text).substr(at)).bytes;
    if (bytes == 0) {
      return Status(Code::kInvalidArgument,
                    "--map: '" + Printable(path) + "' line " + std::to_string(line) +
                        " is not text: found a byte that is not UTF-8; expected lines "
                        "PATTERN -> NAME");
    }
    line += text[at] == '\n' ? 1 : 0;
    at += bytes;
  }
  return text;
}

}  // namespace statcollect::client
