// Hash and sketch of a tensor, definition 3: what each component adds to them. For host and device.
//
// Both are sums over components, each with a coefficient that depends on nothing but the
// component's index in the logical tensor. So they add up over shards, however a tensor is cut, and
// in any order: the hash exactly, the sketch to rounding. Results are stored on disk: the
// definitions must not change within kDefinition.
//
// INDEX. Components of the logical tensor in row-major order, from 0; a complex element is two
// components (real, imaginary). Component i has the lane i % 16 in group i / 16.
//
// MIX. mix(seed, n) is output n of the splitmix64 stream with this seed (Steele, Lea, Flood 2014).
//
// HASH. The raw bits of the components, packed little-endian in index order, are 32-bit words; a
// bool counts as byte 0 or 1. Word w has the place p = w % 512 in block b = w / 512, and
//   hash = sum of M(b) * K(p) * word(w)   modulo 2^64,
// with K(p), the lower 32 bits of mix("STATHASH", p), made odd, and M(b), mix("STATBLOC", b), made
// odd. What a shard lacks of a word counts as 0 bits.
//
// A change of one word changes the hash for certain: 0 < |change| < 2^32 and K < 2^32, so their
// product is not 0 modulo 2^64, and an odd factor keeps that. So does the exchange of two words in
// a block, unless their keys are equal (they are not). Words that exchange their values between two
// blocks at one place keep the hash with a probability of about 2^-32 (a sign bit alone, the worst
// case); unrelated tensors collide with about 2^-64. It is not a cryptographic hash.
//
// SKETCH of k sums, k in {0, 16, 32, 64}. 128 groups form block b = i / 2048. Group q of the block,
// q = 16 * row + fold, belongs to row q / 16 and fold q % 16. The 8 rows of a fold are added lane
// by lane, each component with the sign s(frame, row, lane); the fold's 16 sums, all with one sign
// more, are rotated and added to 16 sums of the sketch:
//   sketch[16 * bank + (lane + rotation) % 16] += sign * sum over rows of s(frame, row, lane) * x.
// frame, rotation, bank and sign are bits of mix("STATSKET", 4 * b + fold / 4): see SketchFold.
// Components that are not finite contribute 0.
//
// The squared norm of the sketch estimates that of the tensor (of a difference of two tensors: the
// squared distance). It is right on average for any tensor: two components of a fold and lane have
// a product of signs whose mean over the frames is 0, as frames are rows of a Hadamard matrix;
// others meet with the random sign of their folds. Eight equal components of a fold and lane,
// alone, are estimated at 0.5 or 4.5 times, never 0.
#ifndef STATCOLLECT_AGENT_STATS_FINGERPRINT_H_
#define STATCOLLECT_AGENT_STATS_FINGERPRINT_H_

#include <cstdint>

#if defined(__CUDACC__)
#define STATCOLLECT_FINGERPRINT_HD __host__ __device__ __forceinline__
#else
#define STATCOLLECT_FINGERPRINT_HD inline __attribute__((always_inline))
#endif

namespace statcollect::stats {

inline constexpr int kDefinition =
    3;  // of hash and sketch; results of different definitions do not compare
inline constexpr int kLanes = 16;  // components of a group

// Output n of the splitmix64 stream. U: std::uint64_t (or a vector of it).
template <typename U>
STATCOLLECT_FINGERPRINT_HD constexpr U SplitMix(std::uint64_t seed, U n) {
  U z = (n + 1) * 0x9e3779b97f4a7c15u + seed;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// --- hash

inline constexpr int kHashWords = 512;  // 32-bit words of a block

STATCOLLECT_FINGERPRINT_HD constexpr std::uint32_t HashKey(int place) {
  return static_cast<std::uint32_t>(
             SplitMix(0x5354415448415348u, static_cast<std::uint64_t>(place))) |
         1u;
}

// For code that loads several keys at once. One more than a block has, so that odd places can be
// loaded as pairs.
struct HashKeys {
  alignas(64) std::uint32_t words[kHashWords + 16];
};
constexpr HashKeys MakeHashKeys() {
  HashKeys keys{};
  for (int place = 0; place < kHashWords; ++place) keys.words[place] = HashKey(place);
  return keys;
}
inline constexpr HashKeys kHashKeys = MakeHashKeys();

STATCOLLECT_FINGERPRINT_HD constexpr std::uint64_t BlockFactor(std::uint64_t block) {
  return SplitMix(std::uint64_t{0x53544154424c4f43u}, block) | 1;
}

// --- sketch

inline constexpr int kSketchRows = 8;    // of a fold
inline constexpr int kSketchFolds = 16;  // of a block
inline constexpr int kSketchFrames = 8;
inline constexpr int kSketchBlockComponents = kSketchRows * kSketchFolds * kLanes;

inline constexpr std::uint64_t kSketchSeed = 0x53544154534b4554u;

// Four folds share a mix.
STATCOLLECT_FINGERPRINT_HD constexpr std::uint64_t SketchMix(std::uint64_t block, int fold) {
  return SplitMix(kSketchSeed, 4 * block + static_cast<unsigned>(fold / 4));
}

struct SketchFold {
  std::uint32_t bits;  // the mix's 16 bits of this fold

  STATCOLLECT_FINGERPRINT_HD constexpr static SketchFold Of(std::uint64_t mix, int fold) {
    return {static_cast<std::uint32_t>(mix >> (16 * (fold % 4))) & 0xffffu};
  }
  STATCOLLECT_FINGERPRINT_HD constexpr std::uint32_t rotation() const { return bits & 15; }
  STATCOLLECT_FINGERPRINT_HD constexpr std::uint32_t bank(std::uint32_t width) const {
    return (bits >> 4) & (width / 16 - 1);
  }
  STATCOLLECT_FINGERPRINT_HD constexpr std::uint32_t frame() const { return (bits >> 8) & 7; }
  // In the place of a float's sign.
  STATCOLLECT_FINGERPRINT_HD constexpr std::uint32_t sign() const {
    return (bits << 16) & 0x80000000u;
  }
  // Of the sum that gets the lane.
  STATCOLLECT_FINGERPRINT_HD constexpr std::uint32_t SumOf(int lane, std::uint32_t width) const {
    return 16 * bank(width) + ((static_cast<std::uint32_t>(lane) + rotation()) & 15);
  }
};

// Whether s(frame, row, lane) is minus: row `frame'` of the Hadamard matrix of order 8, with one
// sign changed, so that no frame adds up to 0; frame' is a permutation of the frames that differs
// between lanes.
STATCOLLECT_FINGERPRINT_HD constexpr bool SketchMinus(int frame, int row, int lane) {
  // Product in GF(8), modulo x^3 + x + 1, with 1 + lane % 7.
  const int factor = 1 + lane % 7;
  int product = 0;
  for (int bit = 0; bit < 3; ++bit) product ^= (factor >> bit & 1) != 0 ? frame << bit : 0;
  for (int bit = 4; bit >= 3; --bit) product ^= (product >> bit & 1) != 0 ? 0b1011 << (bit - 3) : 0;
  const int common = (product ^ (lane >> 1 & 7)) & row;
  const int parity = (common ^ common >> 1 ^ common >> 2) & 1;
  return (parity != 0) != (row == lane % 8);
}

// Signs of a frame's rows: bit `lane` is set for minus.
struct SketchSigns {
  std::uint16_t minus[kSketchFrames][kSketchRows];
};
constexpr SketchSigns MakeSketchSigns() {
  SketchSigns signs{};
  for (int frame = 0; frame < kSketchFrames; ++frame) {
    for (int row = 0; row < kSketchRows; ++row) {
      for (int lane = 0; lane < kLanes; ++lane) {
        if (SketchMinus(frame, row, lane)) {
          signs.minus[frame][row] =
              static_cast<std::uint16_t>(signs.minus[frame][row] | 1u << lane);
        }
      }
    }
  }
  return signs;
}
inline constexpr SketchSigns kSketchSigns = MakeSketchSigns();

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_FINGERPRINT_H_
