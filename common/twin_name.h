// Names of twins: runs that repeat another with noise in the last places (docs/twins.md).
#ifndef STATCOLLECT_COMMON_TWIN_NAME_H_
#define STATCOLLECT_COMMON_TWIN_NAME_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace statcollect {

// NAME.twin-ULPS-SEED.
std::string TwinName(std::string_view base, std::uint64_t ulps, std::uint64_t seed);

// The run that this one is a twin of, by its name, which must outlive the result; empty if it is
// none.
std::string_view BaseOfTwin(std::string_view run);

// How the note about a twin begins and ends that a diff found and could not use.
inline constexpr std::string_view kTwinNoteBegin = "the twin ";
inline constexpr std::string_view kTwinNoteEnd = ", so it was not used";

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_TWIN_NAME_H_
