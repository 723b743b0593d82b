// The constants that a verdict depends on, each with its origin: a formula, a measurement, or a
// judgement. "Fitted" is chosen on the fitted half of the benchmark's families
// (docs/verdict-benchmark.md), of which no figure is held out. Limits of what is read or listed
// stand where they are used. Factors of logarithms are natural: 0.9 is 2.5 times.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_CONSTANTS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_CONSTANTS_H_

#include <cstddef>
#include <cstdint>
#include <limits>

namespace statcollect::query {

// --- in unit roundoffs, whatever judges. Judgement: a few roundings of one operation.

// What was loaded or given may have been rounded on the way.
inline constexpr double kInputRoundoffs = 4;
// If equal inputs give another output, up to this many may come from another kernel.
inline constexpr double kKernelRoundoffs = 3;

// The excess of a jump that is exact, beside those that are measured by size: far above each
// threshold. Judgement.
inline constexpr double kExactExcess = 5;

}  // namespace statcollect::query

// The rule that measures rounding from twins. docs/verdict.md tells what they were chosen on.
namespace statcollect::query::measured {

// An unknown noise; a distance that cannot be measured.
inline constexpr double kUnknown = std::numeric_limits<double>::infinity();
// The chance that one record whose noise has the twins' size exceeds its threshold. A step has some
// thousand records, most of them dependent; with 1e-3, clean pairs of the first families alarmed.
inline constexpr double kChance = 1e-4;
// A sum of n terms rounds by about sqrt(n) u, with a factor that depends on the kernel's order
// (Higham, Accuracy and Stability of Numerical Algorithms, 4.2); kernels that differ were seen at
// up to 0.3.
inline constexpr double kSumFactor = 0.3;
// The largest of 16 squared sums that are left out before a record is judged: a single element that
// flips (a ReLU's, a max-pool's) is in one or two of them, and what is computed differently is in
// all.
inline constexpr std::size_t kTrimmed = 2;
// The expected sum of the 14 smallest of 16 squared normal variables, divided by 16; by simulation.
inline constexpr double kShareOfRest = 0.537;
// Degrees of freedom that are left after trimming; by simulation.
inline constexpr int kTrimmedFreedom = 8;
// Tensors of fewer elements are not trimmed: a wrong element of theirs would be lost.
inline constexpr std::uint64_t kTrimmedFrom = 32;
// Winograd's convolution rounds by up to 74 unit roundoffs (Barabasz et al., arXiv:1803.10986;
// measured alike), of which the threshold is a factor. It counts only where recorded settings say
// that one run may use it and the other may not.
inline constexpr double kWinograd = 30;
// A difference of up to so many times a scale's noise is judged by that scale; a larger one by the
// next rung of the ladder, which is as far away again.
inline constexpr double kOfScale = 32;
// A twin shows no less noise than rounding the result once: half a unit roundoff is its standard
// deviation.
inline constexpr double kLeastNoise = 0.5;

// Edge cases.
// The excess of a first difference: just above the limit, so that a larger one in its group stays
// larger.
inline constexpr double kFirstExcess = 1.01, kFirstExcessOrder = 1e-3;
// Rows that nothing reads differ entirely, so a tensor of which at least a hundredth are such rows
// differs by this share.
inline constexpr double kUnread = 0.1;
// Other bits that the sums do not show, in unit roundoffs.
inline constexpr double kUnseen = 1e-3;
// A record whose noise is this share of its own size says nothing.
inline constexpr double kLost = 0.3;
// Twins of one unit that see less than this share of what the next scale predicts met rare flips:
// their number grows in proportion to the noise, and the distance with its root.
inline constexpr double kRare = 1.0 / 3;
// Noise that grows by less than this power of its size comes from such events: half way between its
// root and itself, as logarithms go a little below.
inline constexpr double kGrowth = 2.0 / 3;

// Confidence (of the excess over the threshold).
inline constexpr double kCertain = 3, kLikely = 1.5, kLikelyFirst = 10;
inline constexpr std::uint64_t kCertainFrom = 256;  // elements

}  // namespace statcollect::query::measured

// The rules without twins (docs/verdict-model.md).
namespace statcollect::query::guessed {

// --- explain.cc, updates.cc: what a difference is expected to be

// The most recent modules that one's input may come from, and gradients that one is computed from.
// Fitted.
inline constexpr std::size_t kSiblings = 3;
inline constexpr std::size_t kGradientsBefore = 4;
// Unit roundoffs of a sum over a batch. Judgement.
inline constexpr double kLossRoundoffs = 4;
// Weights that differ by more than rounding: an element's update lies along the inputs of one
// sample, and reaches an output more than its norm suggests. Fitted.
inline constexpr double kSparseParameters = 3;
inline constexpr double kRounded = 1e-6;
// A sum this small compared with its terms is judged against the terms. In six models, sums that do
// not cancel were above it.
inline constexpr double kCancelled = 0.3;
// Its own distance is this large, and against its terms so much smaller: noise alone. Fitted.
inline constexpr double kNoiseDriven = 0.1, kNoiseDrivenDistance = 0.01;
// The share of zeros that indicates a mask. Judgement.
inline constexpr double kMasked = 0.02;
// Elements that the forward difference moves: the share from which on some are expected (1 in 500);
// how much one moves, relative to the largest element; up to how many are in few sums of a sketch.
// Fitted.
inline constexpr double kFlippedElements = 0.002, kFlips = 2, kFlipsInFewSums = 4;
// A sum of n terms in a row differs from one in any other order by 0.29 to 0.41 sqrt(n) unit
// roundoffs (measured; oneDNN's convolutions, a BatchNorm over channels-last tensors). A difference
// counts from eight times the expected one on, which leaves a margin of a half.
inline constexpr double kLongSum = 0.08;
// As measured::kWinograd: F(6x6,3x3) rounds by 27 to 74 roundoffs, F(4x4,3x3) by 9 to 28. Of eight
// times this, half is margin.
inline constexpr double kWinograd = 18;
// A standard deviation of the logarithm: outputs of a module whose bias is noise. Fitted.
inline constexpr double kFragileSpread = 0.75;
// How many sketches enter: the expected distance comes from a sketch of the same size, and so does
// the norm of an update.
inline constexpr double kSketchesOfState = 2, kSketchesOfUpdate = 3;
// Differences of up to this many of its own roundings do not come from its inputs. Judgement.
inline constexpr double kFreshRoundings = 2;
// Sketches keep sums in f32: relative to the tensor's norm. Two thirds of its unit roundoff.
inline constexpr double kSketchResolution = 4e-8;
// Of a square: the derivative.
inline constexpr double kSquareGrowth = 2;
// An update against its gradient, relative; one that is divided by the gradient's size, against the
// root of it, because signs of small elements flip; and how much flipped signs explain at most.
// Fitted.
inline constexpr double kLinearUpdate = 3, kNormalisedUpdate = 12, kMostFlipped = 0.7;
// From such a gradient on, updates have little in common; they differ by this at most. Judgement;
// two opposite ones.
inline constexpr double kLargeGradient = 0.05, kMostApart = 2;

// --- jumps.cc: what is more than expected, in logarithms. Fitted, all of them.

// With sisters or a past to compare with; without; of gradients, which masks that flip reach in
// leaps; where nothing before differs (a kernel's own rounding is a few units).
inline constexpr double kSupported = 0.9, kUnsupported = 1.3, kUnsupportedGradient = 1.7,
                        kFresh = 2.1;
// How much others excuse at most: 9 and 3.7 times, 55, 1,100 for what the loss computes.
inline constexpr double kSistersExplain = 2.2, kSistersExplainUpdates = 1.3, kPastExplains = 4;
inline constexpr double kFreshExplains = 1, kPastOfLossExplains = 7;
inline constexpr std::size_t kSupport = 3, kPastKept = 4, kPastNeeded = 2;
inline constexpr double kSistersQuantile = 0.8;
// The spread of a large tensor with 16 sums, sqrt(0.5 / 16). Small tensors vary most where
// neighbours differ alike: how much each part of a spread above it counts.
inline constexpr double kUsualSpread = 0.18, kSpreadWeight = 5;
// Ratios below it are ignored.
inline constexpr double kNothing = 0.3;
// From so many elements on, other bits somewhere are sure if a kernel rounds differently.
// Judgement.
inline constexpr std::uint64_t kManyElements = 1024;

// The gradient that made another one differ is this many times larger. Fitted.
inline constexpr double kLarger = 4;

// --- shape.cc: what sketches show of where two tensors differ

// Sums and elements that are needed at least. Judgement.
inline constexpr std::size_t kSumsForShape = 16;
inline constexpr std::uint64_t kElementsForShape = 256;
// A cosine: with 16 sums, one in a million independent differences has it.
inline constexpr double kAlong = 0.9;
// The expected share of the twelve smallest of 16 squared normal variables; by simulation.
inline constexpr double kShareOfSmaller = 0.28;
// The share of the distance that the smaller sums show at most if only few elements moved.
// Judgement.
inline constexpr double kFewMoved = 0.1;

// --- because.cc: how certain. Of the excess over the threshold, a logarithm. Judgement.
inline constexpr double kCertain = 1, kLikely = 0.5;

}  // namespace statcollect::query::guessed

// Recorded settings that differ: where their effect shows. Logarithms of observed / expected.
// Fitted.
namespace statcollect::query::setting {

// Ratios from which on the effect is seen in a tensor, and from which on a tensor stands out inside
// a module that contains others; the share of the largest ratio that counts as about as much.
inline constexpr double kSeen = 0.7, kStandsOut = 0.5, kAboutAsMuch = 0.5;
// Two runs that compute one schedule in double agree to this, relative to the scalar. Judgement.
inline constexpr double kAccuracy = 1e-12;
// An update differs by about as much as the learning rate: up to this factor. Judgement.
inline constexpr double kAbout = 3;

}  // namespace statcollect::query::setting

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_CONSTANTS_H_
