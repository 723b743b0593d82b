// Options of an agent. A field left at its default is taken from the environment variable STATAGENT_<FIELD> where that is set
// (STATAGENT_RUN, STATAGENT_COLLECTOR, ...); what the program sets wins.
#ifndef STATAGENT_OPTIONS_H_
#define STATAGENT_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace statagent {

struct Options {
  // Name of the run: [A-Za-z0-9][A-Za-z0-9._-]{0,127}. Required, here or as STATAGENT_RUN.
  std::string run = {};
  // host:port of statcollectord's gRPC address. Default 127.0.0.1:7433.
  std::string collector = {};
  // "error" (default), "replace" or "append": what to do if the run already has data.
  std::string if_exists = {};
  // Flattened configuration, stored with the run.
  std::map<std::string, std::string> config = {};
  // True: Start fails if the collector cannot be reached within connect_timeout. Default false: go on without, keep trying.
  std::optional<bool> required = {};
  // Defaults: RANK/LOCAL_RANK/WORLD_SIZE (torchrun), OMPI_COMM_WORLD_*, PMI_*, SLURM_*, else 0 of 1.
  std::optional<std::uint32_t> rank = {}, local_rank = {}, world_size = {};
  // Equal in all ranks of one launch, different between launches. Default: derived from the launcher's variables.
  std::string launch = {};
  // Steps in which tensors are recorded: "0-9,20,100-", "0-99,every=10". Default: all. Scalars, events, step ends and the weights
  // before the first step (Mode::kInit) are recorded always.
  std::string steps = {};
  // Sums in the sketch of each tensor: 0, 16 (default), 32, 64.
  std::optional<std::uint32_t> sketch = {};
  // First elements kept of each tensor: 0 (default) .. 1024.
  std::optional<std::uint32_t> samples = {};
  // Observed tensors that may wait for the sender. Default 32768. More than that are dropped and counted.
  std::optional<std::size_t> buffer_records_max = {};
  // Threads that reduce CPU tensors of more than 256 Ki elements, the observing one included: 1..64. Default: OMP_NUM_THREADS, else the
  // processors this process may use divided by the ranks on this host (LOCAL_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE); at most 4.
  std::optional<std::uint32_t> threads = {};
  // How long Start waits for the collector's answer. Default 3 s.
  std::optional<std::chrono::milliseconds> connect_timeout = {};
};

}  // namespace statagent

#endif  // STATAGENT_OPTIONS_H_
