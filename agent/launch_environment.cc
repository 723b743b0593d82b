#include "agent/launch_environment.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <utility>

#include "common/names.h"
#include "common/parse.h"

namespace statcollect {
namespace {

// The variables of one launcher.
struct Family {
  const char* launcher;
  const char* rank;
  const char* local_rank;
  const char* world_size;
};

constexpr std::array<Family, 4> kFamilies = {{
    {"torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"pmi", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"},
}};

constexpr std::size_t kLaunchIdBytesMax = 900;  // it travels as a name

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, "find this process's rank: " + std::move(message));
}

// Empty if the variable is not set.
Result<std::optional<std::uint32_t>> ReadNumber(const GetEnv& getenv, const std::string& name) {
  const auto text = getenv(name);
  if (!text) return std::optional<std::uint32_t>();
  const auto value = ParseNumber<std::uint32_t>(*text);
  if (!value) {
    return Invalid(name + " is '" + Printable(*text) +
                   "'; expected a number from 0; correct it, or set STATAGENT_RANK and "
                   "STATAGENT_WORLD_SIZE");
  }
  return value;
}

const Family* FindFamily(const GetEnv& getenv) {
  for (const Family& family : kFamilies) {
    if (getenv(family.rank)) return &family;
  }
  return nullptr;
}

// "a:b:c" of the variables that are set.
std::string Join(const GetEnv& getenv, std::string prefix, std::span<const char* const> names) {
  bool any = false;
  for (const char* name : names) {
    const auto value = getenv(name);
    any = any || value.has_value();
    prefix += ":" + value.value_or("");
  }
  return any ? prefix : "";
}

// How often the launcher has started this launch again, and what may differ between its starts. The
// collector compares what is before '#' to see that a launch continues another (docs/protocol.md).
std::string Restarts(const GetEnv& getenv, const char* count, const char* varies = nullptr) {
  std::string text = "#" + getenv(count).value_or("0");
  if (varies != nullptr) text += ":" + getenv(varies).value_or("");
  return text;
}

std::string TorchrunId(const GetEnv& getenv, const ParentIdentity& parent) {
  if (!getenv("TORCHELASTIC_RUN_ID")) return "";
  constexpr const char* kNames[] = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR"};
  std::string id = Join(getenv, "torchrun", kNames);
  // All of the above may repeat from launch to launch; on one node all ranks have one parent.
  const auto local_size = getenv("LOCAL_WORLD_SIZE");
  if (local_size && local_size == getenv("WORLD_SIZE")) id += ":" + parent();
  return id + Restarts(getenv, "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT");
}

std::string OpenMpiId(const GetEnv& getenv) {
  // The namespace alone is derived from mpirun's pid; the transports' key is random for each
  // launch.
  constexpr const char* kNames[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
                                    "OMPI_MCA_orte_precondition_transports",
                                    "OMPI_MCA_orte_hnp_uri"};
  return Join(getenv, "openmpi", kNames);
}

std::string SlurmId(const GetEnv& getenv) {
  if (!getenv("SLURM_JOB_ID")) return "";
  constexpr const char* kNames[] = {"SLURM_JOB_ID", "SLURM_STEP_ID"};
  return Join(getenv, "slurm", kNames) + Restarts(getenv, "SLURM_RESTART_COUNT");
}

std::string LaunchId(const std::string& launcher, const GetEnv& getenv,
                     const ParentIdentity& parent) {
  if (launcher == "torchrun") return TorchrunId(getenv, parent);
  if (launcher == "openmpi") return OpenMpiId(getenv);
  if (launcher == "slurm") return SlurmId(getenv);
  return "";
}

// Fills `launch` from the family's variables, where the options leave them open.
Status Fill(const Family& family, const LaunchOptions& options, const GetEnv& getenv,
            Launch* launch) {
  const auto rank = ReadNumber(getenv, family.rank);
  if (!rank.ok()) return rank.status();
  const auto local_rank = ReadNumber(getenv, family.local_rank);
  if (!local_rank.ok()) return local_rank.status();
  const auto world_size = ReadNumber(getenv, family.world_size);
  if (!world_size.ok()) return world_size.status();
  launch->launcher = family.launcher;
  launch->rank = options.rank.value_or(rank->value_or(0));
  launch->local_rank = options.local_rank.value_or(local_rank->value_or(0));
  if (!options.world_size && !world_size->has_value()) {
    return Invalid(std::string(family.rank) + " is set but " + family.world_size +
                   " is not; expected both; set it, or STATAGENT_WORLD_SIZE");
  }
  launch->world_size = options.world_size.value_or(world_size->value_or(1));
  return Status::Ok();
}

}  // namespace

GetEnv ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
  };
}

std::string ReadParentIdentity() {
  const auto pid = std::to_string(getppid());
  std::ifstream file("/proc/" + pid + "/stat");
  std::string stat{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // The command, in parentheses, may hold anything; the start time is the 20th field after it.
  const std::size_t command_end = stat.rfind(')');
  if (command_end == std::string::npos) return pid;
  std::istringstream fields(stat.substr(command_end + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  return pid + ":" + field;
}

Result<Launch> DetectLaunch(const LaunchOptions& options, const GetEnv& getenv,
                            const ParentIdentity& parent) {
  Launch launch;
  const bool all_given = options.rank && options.world_size;
  const Family* family = FindFamily(getenv);
  if (family != nullptr && !all_given) {
    STATCOLLECT_RETURN_IF_ERROR(Fill(*family, options, getenv, &launch));
  } else {
    launch.launcher = family == nullptr ? "" : family->launcher;
    launch.rank = options.rank.value_or(0);
    launch.local_rank = options.local_rank.value_or(0);
    launch.world_size = options.world_size.value_or(1);
  }
  if (launch.rank >= launch.world_size) {
    return Invalid(
        "rank " + std::to_string(launch.rank) + " of " + std::to_string(launch.world_size) +
        "; expected a rank below the size; set both RANK and WORLD_SIZE, or STATAGENT_RANK and "
        "STATAGENT_WORLD_SIZE");
  }
  auto recording = RankSet::Parse(options.ranks, launch.world_size);
  if (!recording.ok())
    return Status(recording.status().code(), "start the agent: " + recording.status().message());
  launch.recording = *std::move(recording);
  launch.id = options.launch.empty()
                  ? Printable(LaunchId(launch.launcher, getenv, parent), kLaunchIdBytesMax)
                  : options.launch;
  return launch;
}

}  // namespace statcollect
