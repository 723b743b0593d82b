// Detects the rank, the world size and the launch of this process, from the program's options or
// from the launcher's environment variables.
#ifndef STATCOLLECT_AGENT_LAUNCH_ENVIRONMENT_H_
#define STATCOLLECT_AGENT_LAUNCH_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/rank_set.h"
#include "common/status.h"

namespace statcollect {

// The value of an environment variable; nothing if it is not set or empty.
using GetEnv = std::function<std::optional<std::string>(const std::string& name)>;
GetEnv ProcessEnvironment();

// Distinguishes two launches when the launcher's variables do not. Empty if it cannot be read.
using ParentIdentity = std::function<std::string()>;
// Pid and start time of the parent process.
std::string ReadParentIdentity();

struct LaunchOptions {
  std::optional<std::uint32_t> rank, local_rank, world_size;
  std::string launch;
  std::string ranks;  // that record, a RankSet's text
};

struct Launch {
  std::uint32_t rank = 0, local_rank = 0, world_size = 1;
  std::string launcher;  // "torchrun", "openmpi", "pmi", "slurm"; "" if there is none
  std::string id;        // the same in every rank of a launch, different in the next; "" if unknown
  RankSet recording;     // the ranks that record
};

// Explicit options win over RANK/LOCAL_RANK/WORLD_SIZE (torchrun), then OMPI_COMM_WORLD_*, PMI_*,
// SLURM_*, then 0 of 1. kInvalidArgument: a variable is not a number, a size is missing, the rank
// is not below the size, or `ranks` are not ranks below it.
Result<Launch> DetectLaunch(const LaunchOptions& options, const GetEnv& getenv,
                            const ParentIdentity& parent);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_LAUNCH_ENVIRONMENT_H_
