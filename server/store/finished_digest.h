// The digest of a block from a hash of what it holds.
#ifndef STATCOLLECT_SERVER_STORE_FINISHED_DIGEST_H_
#define STATCOLLECT_SERVER_STORE_FINISHED_DIGEST_H_

#include <cstring>

#include <xxhash.h>

#include "server/store/block_digest.h"

namespace statcollect {

// In an order of bytes that all machines share.
inline BlockDigest FinishedDigest(const XXH3_state_t& state) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  BlockDigest digest;
  static_assert(sizeof digest == sizeof canonical.digest);
  std::memcpy(digest.data(), canonical.digest, sizeof digest);
  return digest;
}

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_FINISHED_DIGEST_H_
