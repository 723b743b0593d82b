#include "server/http/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <new>

#include "common/text.h"

namespace statcollect {
namespace {

// "q=0", "q=0.000": the client does not want it.
bool IsRefused(std::string_view parameters) {
  for (std::string_view parameter : PartsOf(parameters, ';')) {
    parameter = Trimmed(parameter);
    if (!parameter.starts_with("q=") && !parameter.starts_with("Q=")) continue;
    return parameter.substr(2).find_first_not_of("0.") == std::string_view::npos;
  }
  return false;
}

bool IsGzip(std::string_view coding) {
  constexpr std::string_view kGzip = "gzip";
  if (coding == "*") return true;
  if (coding.size() != kGzip.size()) return false;
  for (std::size_t i = 0; i < coding.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(coding[i])) != kGzip[i]) return false;
  }
  return true;
}

}  // namespace

bool AcceptsGzip(std::string_view accept_encoding) {
  for (const std::string_view part : PartsOf(accept_encoding, ',')) {
    const std::size_t mark = part.find(';');
    if (!IsGzip(Trimmed(part.substr(0, mark)))) continue;
    return mark == std::string_view::npos || !IsRefused(part.substr(mark + 1));
  }
  return false;
}

std::string Gzip(std::string_view text, int level) {
  constexpr int kGzipWindow = 15 + 16, kMemory = 8;
  z_stream stream{};
  if (deflateInit2(&stream, level, Z_DEFLATED, kGzipWindow, kMemory, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
  std::string packed(deflateBound(&stream, text.size()), '\0');
  const auto* in = reinterpret_cast<const Bytef*>(text.data());
  std::size_t left = text.size(), made = 0;
  int state = Z_OK;
  while (state == Z_OK) {  // zlib counts in 32 bits
    constexpr std::size_t kPiece = std::numeric_limits<uInt>::max() / 2;
    const std::size_t piece = std::min(left, kPiece), room = std::min(packed.size() - made, kPiece);
    stream.next_in = const_cast<Bytef*>(in);
    stream.avail_in = static_cast<uInt>(piece);
    stream.next_out = reinterpret_cast<Bytef*>(packed.data() + made);
    stream.avail_out = static_cast<uInt>(room);
    state = deflate(&stream, piece == left ? Z_FINISH : Z_NO_FLUSH);
    in += piece - stream.avail_in;
    left -= piece - stream.avail_in;
    made += room - stream.avail_out;
  }
  deflateEnd(&stream);
  if (state != Z_STREAM_END) throw std::bad_alloc();
  packed.resize(made);
  return packed;
}

}  // namespace statcollect
