// The constants that the causes' rules depend on, each with its origin: arithmetic, a measurement,
// or a judgement. "Benchmark": chosen on pairs of docs/verdict-benchmark.md, none held out. Limits
// of what is read or listed stand where they are used. docs/causes.md names what a user sees of
// them. What has no unit here is relative.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_CONSTANTS_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_CONSTANTS_H_

#include <cstdint>

namespace statcollect::query::cause {

// --- what rounding does

// Distances of up to so many unit roundoffs are rounding whatever made them. Judgement.
inline constexpr double kRoundings = 2;
// Backward passes and sums enlarge rounding by one or two orders of magnitude; so much was seen.
inline constexpr double kEnlarged = 32;
// A cast somewhere before adds up to this many of its format's roundings. Judgement.
inline constexpr double kRoundingsMax = 16;
// Gradients whose root mean square is this share of the largest one's are rounding. Judgement.
inline constexpr double kTinyShare = 1e-6;
// So is an update that is this share of its weight. Judgement: 170 unit roundoffs of f32.
inline constexpr double kUpdateMin = 1e-5;
// Two norms of the same values, summed in another order or by another kernel. Judgement.
inline constexpr double kSameNorm = 1e-5;
// Two moments of the same values in another order. Judgement.
inline constexpr double kSameMoments = 1e-6;

// --- one tensor as a multiple of another, or as the sum of two

// What remains of a tensor, however much a factor explains. Judgement.
inline constexpr double kResidualMax = 0.02;
// |factor - 1| of nothing: sketches are sums of f32.
inline constexpr double kChangeMin = 1e-7;
// |factor - 1| against what remains: with 16 sums never by chance.
inline constexpr double kExplainedTimes = 4;
// What remains of a first moment that is a multiple of the gradient. Judgement.
inline constexpr double kMultiple = 1e-3;
// What remains of a sum of tensors whose shares are known, or of one update that is a multiple of
// another. Judgement.
inline constexpr double kRemainder = 0.05;
// Two tensors can be told apart as parts of a third if the determinant of their products is above
// this share of their squares. Judgement.
inline constexpr double kDeterminantMin = 1e-6;
// The elements that are needed for it, and what a part's share may be. Judgement.
inline constexpr std::uint64_t kElementsForShares = 64;
inline constexpr double kShareMin = 0.01, kShareMax = 100;
// In a clipped sum, the share of the step's own gradient is no smaller than that of the one before,
// up to what the fit errs. Judgement.
inline constexpr double kOwnShareMin = 0.95;
// Tensors of fewer elements are like one another by chance; of fewer values that repeat or are
// nearly equal, too. Judgement.
inline constexpr std::uint64_t kElementsMin = 4, kElementsOfMultiple = 16;
// What remains beside |factor - 1|: one part of so many makes the factor certain, or likely.
// Judgement.
inline constexpr double kCertainFit = 100, kLikelyFit = 20;
// How many unit roundoffs a multiple of each value, and its statistics, may be off. Judgement.
inline constexpr double kMultipleRoundoffs = 8;
// Another order moves values: a smaller distance is something else. Benchmark.
inline constexpr double kOtherOrder = 1e-3;
// How far the factor of a sign flip may be from -1, if its format does not explain more. Judgement.
inline constexpr double kFlipSlack = 1e-6;

// --- a factor of all gradients

// The share of the gradients that must have it; of those of an update that must be explained as
// kept ones. Judgement.
inline constexpr double kNearlyAll = 0.85, kMost = 0.9;
// How far a gradient's own factor may be from the common one: at most, and as a part of |factor -
// 1|. Judgement.
inline constexpr double kSlackMax = 0.01, kOfChange = 4;
// If the root's own factor is more than this many times as far from 1 as the common one, the others
// follow from the root. Benchmark.
inline constexpr double kFarFromCommon = 4;
// Both runs clip to one norm if their norms differ by less than this share of |factor - 1|, which
// clipping to different ones would make equal to it. Judgement.
inline constexpr double kNormsAgree = 0.3;
// How near a factor is to a number that means something: a loss scale, a number of ranks.
// Judgement.
inline constexpr double kMatches = 2e-3;
// A norm that somebody chose has two significant digits; clipping adds 1e-6 to what it divides by
// (torch), and rounds.
inline constexpr double kRoundNorm = 2e-5;
// Factors of ranks: what may remain on each, and from where on they are different. Judgement.
inline constexpr double kRankResidual = 1e-3, kRanksApart = 0.01;

// --- random numbers

// Two rates of dropout differ by more than so many standard deviations of chance, or one is so many
// times the other: it was off. Judgement.
inline constexpr double kDeviations = 6, kTimesOff = 20;
// The share of the weights as loaded that differ if another seed made them. Judgement.
inline constexpr double kSeeded = 0.8;

// --- the rest

// A weight that moved so many times as far as in the other run was changed by something else than
// its update, if it moved by this share of the root's distance. Judgement.
inline constexpr double kMovedApart = 4, kMovedShare = 0.1;
// The share of the first moments that are a multiple of the step's gradient where the optimizer's
// state begins at 0. Judgement.
inline constexpr double kFreshShare = 2.0 / 3;

// The first gradient of a loss's term is so many times further apart than those before it.
// Judgement.
inline constexpr double kTermJump = 100;
// How near the factor of an update is to the ratio of the learning rates that is to explain it.
// Judgement.
inline constexpr double kLearningRateMatches = 0.02;
// Factors nearer to 1 are printed as a difference from it; 1.001 is printed as it is.
inline constexpr double kNearOne = 0.9999e-3;

}  // namespace statcollect::query::cause

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_CONSTANTS_H_
