#ifndef STATCOLLECT_SERVER_STORE_BLOCK_DIGEST_H_
#define STATCOLLECT_SERVER_STORE_BLOCK_DIGEST_H_

#include <array>
#include <cstdint>

namespace statcollect {

// 128-bit digest of everything in a block except its step. Equal blocks have equal digests,
// whichever run wrote them.
using BlockDigest = std::array<std::uint8_t, 16>;

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_BLOCK_DIGEST_H_
