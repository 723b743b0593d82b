// The constants of the measured verdict, all of them. docs/verdict.md tells what they were chosen on.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_MEASURED_CONSTANTS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_MEASURED_CONSTANTS_H_

#include <cstddef>
#include <cstdint>

namespace statcollect::query::measured {

// The chance that one record whose noise has the twins' size exceeds its threshold. A step has some thousand records, most
// of them dependent; with 1e-3, clean pairs of the first families alarmed.
inline constexpr double kChance = 1e-4;
// A sum of n terms rounds by about sqrt(n) u, with a factor that depends on the kernel's order (Higham, Accuracy and
// Stability of Numerical Algorithms, 4.2); kernels that differ were seen at up to 0.3.
inline constexpr double kSumFactor = 0.3;
// The largest of 16 squared sums that are left out before a record is judged: a single element that flips (a ReLU's, a
// max-pool's) is in one or two of them, and what is computed differently is in all.
inline constexpr std::size_t kTrimmed = 2;
// The expected sum of the 14 smallest of 16 squared normal variables, divided by 16; by simulation.
inline constexpr double kShareOfRest = 0.537;
// Degrees of freedom that are left after trimming; by simulation.
inline constexpr int kTrimmedFreedom = 8;
// Tensors of fewer elements are not trimmed: a wrong element of theirs would be lost.
inline constexpr std::uint64_t kTrimmedFrom = 32;
// Winograd's convolution rounds by up to 74 unit roundoffs (Barabasz et al., arXiv:1803.10986; measured alike), of which
// the threshold is a factor. It counts only where recorded settings say that one run may use it and the other may not.
inline constexpr double kWinograd = 30;
// A difference of up to so many times a scale's noise is judged by that scale; a larger one by the next rung of the
// ladder, which is as far away again.
inline constexpr double kOfScale = 32;
// A twin shows no less noise than rounding the result once: half a unit roundoff is its standard deviation.
inline constexpr double kLeastNoise = 0.5;

// Edge cases. Equal inputs give another output: up to so many unit roundoffs may be another kernel.
inline constexpr double kKernelRoundoffs = 3;
// The excess of such a difference: just above the limit, so that a larger one in its group stays larger.
inline constexpr double kFirstExcess = 1.01, kFirstExcessOrder = 1e-3;
// What was loaded or given may have been rounded on the way.
inline constexpr double kInputRoundoffs = 4;
// Rows that nothing reads differ entirely, so a tensor of which at least a hundredth are such rows differs by this share.
inline constexpr double kUnread = 0.1;
// Other bits that the sums do not show, in unit roundoffs.
inline constexpr double kUnseen = 1e-3;
// A record whose noise is this share of its own size says nothing.
inline constexpr double kLost = 0.3;
// Twins of one unit that see less than this share of what the next scale predicts met rare flips: their number grows in
// proportion to the noise, and the distance with its root.
inline constexpr double kRare = 1.0 / 3;
// Noise that grows by less than this power of its size comes from such events: half way between its root and itself, as
// logarithms go a little below.
inline constexpr double kGrowth = 2.0 / 3;

// Confidence (of the excess over the threshold).
inline constexpr double kCertain = 3, kLikely = 1.5, kLikelyFirst = 10;
inline constexpr std::uint64_t kCertainFrom = 256;  // elements

}  // namespace statcollect::query::measured

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_MEASURED_CONSTANTS_H_
