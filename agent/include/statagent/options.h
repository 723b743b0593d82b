// Options of an agent. A field left at its default is taken from the environment variable STATAGENT_<FIELD>
// where that is set (STATAGENT_RUN, STATAGENT_COLLECTOR, ...); what the program sets wins.
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
  // True: Start fails if the collector cannot be reached within connect_timeout. Default false: go on
  // without, keep trying.
  std::optional<bool> required = {};
  // Defaults: RANK/LOCAL_RANK/WORLD_SIZE (torchrun), OMPI_COMM_WORLD_*, PMI_*, SLURM_*, else 0 of 1.
  std::optional<std::uint32_t> rank = {}, local_rank = {}, world_size = {};
  // Equal in all ranks of one launch, different between launches. Default: derived from the launcher's
  // variables.
  std::string launch = {};
  // Steps in which tensors are recorded: "0-9,20,100-", "0-99,every=10". Default: all. Scalars, events, step
  // ends and the weights before the first step (Mode::kInit) are recorded always.
  std::string steps = {};
  // Tensors whose raw values are kept, beside their statistics: "NAME@STEPS" separated by ';', such as
  // "blocks.1.ln2@3; blocks.0.mlp.fc1@3-5:kind=grad_output". docs/capture.md has all of it.
  std::string captures = {};
  // Tensors whose binary exponents are counted, to tell what fp16, bf16 or fp8 would lose of them:
  // "PATTERN@STEPS" separated by ';', such as "*@0-,every=100" or "blocks.*@0-99:kind=weight_grad". Default:
  // none. A pass of its own over each. docs/exponents.md has all of it.
  std::string exponents = {};
  // Sums in the sketch of each tensor: 0, 16 (default), 32, 64.
  std::optional<std::uint32_t> sketch = {};
  // First elements kept of each tensor: 0 (default) .. 1024.
  std::optional<std::uint32_t> samples = {};
  // Observed tensors that may wait for the sender. Default 32768. More than that are dropped and counted.
  std::optional<std::size_t> buffer_records_max = {};
  // Threads that reduce CPU tensors of more than 256 Ki elements, the observing one included: 1..64. Default:
  // OMP_NUM_THREADS, else the processors this process may use divided by the ranks on this host
  // (LOCAL_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE); at most 4.
  std::optional<std::uint32_t> threads = {};
  // Folder on a local disk where records wait in a file while the collector is away or too slow and the memory is full; made if it is
  // not there. Default: none, such records are dropped and counted. What the collector does not have at the end stays in the file:
  // `statctl import spill FOLDER` sends it.
  std::string spill_dir = {};
  // Most bytes of that file, as "512MiB" or "20GiB"; at least 64MiB. Default 1GiB.
  std::string spill_limit = {};
  // How long Start waits for the collector's answer. Default 3 s.
  std::optional<std::chrono::milliseconds> connect_timeout = {};
};

}  // namespace statagent

#endif  // STATAGENT_OPTIONS_H_
