// The column families of the store, by number and name.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_FAMILIES_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_FAMILIES_H_

#include <array>
#include <string>

namespace statcollect {

// Column families, in the order of kFamilies.
enum Family {
  kDefault,
  kCatalogue,
  kStats,
  kScalars,
  kEvents,
  kSteps,
  kSketches,
  kContents,
  kMemory,
  kDensities,
  kCaptures,
  kFamilyCount
};
inline const std::array<std::string, kFamilyCount> kFamilies = {
    "default",  "catalogue", "stats",  "scalars",   "events",  "steps",
    "sketches", "contents",  "memory", "densities", "captures"};
// Families whose keys begin with the attempt.
inline constexpr std::array kOfAttempts = {kStats,    kScalars, kEvents,    kSteps,
                                           kSketches, kMemory,  kDensities, kCaptures};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_FAMILIES_H_
