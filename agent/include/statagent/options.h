// Options of an agent. A field that the program does not set is read from the environment variable
// STATAGENT_<FIELD> (STATAGENT_RUN, STATAGENT_COLLECTOR, ...), if that is set.
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
  // True: Start fails if the collector cannot be reached within connect_timeout. Default false:
  // continue without it and keep trying.
  std::optional<bool> required = {};
  // Defaults: RANK/LOCAL_RANK/WORLD_SIZE (torchrun), OMPI_COMM_WORLD_*, PMI_*, SLURM_*, otherwise 0
  // of 1.
  std::optional<std::uint32_t> rank = {}, local_rank = {}, world_size = {};
  // Equal in all ranks of one launch, different between launches. Default: derived from the
  // launcher's variables.
  std::string launch = {};
  // Steps in which tensors are recorded: "0-9,20,100-", "0-99,every=10". Default: all. Scalars,
  // events, step ends and the weights before the first step (Mode::kInit) are always recorded.
  std::string steps = {};
  // Ranks that record: "0,8-15". The agent of any other rank does nothing. The same in all ranks of
  // a launch: the collector then knows which ranks will come. Default: all.
  std::string ranks = {};
  // What is written to standard error: "off", "error" (lost records, the end of a session),
  // "warning" (default) or "info". At "warning" only the first rank that records says that the
  // collector is away; at "info" each rank does.
  std::string log = {};
  // Tensors whose raw values are kept: "NAME@STEPS" separated by ';', such as
  // "blocks.1.ln2@3; blocks.0.mlp.fc1@3-5:kind=grad_output". See docs/capture.md.
  std::string captures = {};
  // Tensors whose binary exponents are counted, which shows what fp16, bf16 or fp8 would lose of
  // them: "PATTERN@STEPS" separated by ';', such as "*@0-,every=100" or
  // "blocks.*@0-99:kind=weight_grad". Each takes a separate pass. Default: none. See
  // docs/exponents.md.
  std::string exponents = {};
  // Keeps raw values of the last steps' tensors, which become captures when something breaks:
  // "STEPS,BYTES" or "STEPS,BYTES;PATTERN[:kind=...];...", such as "3,64MiB". Default: off. The
  // grammar is in docs/capture.md.
  std::string ring = {};
  // Sums in the sketch of each tensor: 0, 16 (default), 32, 64.
  std::optional<std::uint32_t> sketch = {};
  // Number of leading elements kept of each tensor: 0 (default) .. 1024.
  std::optional<std::uint32_t> samples = {};
  // Observed tensors that may wait to be sent; more are dropped and counted. Default 32768.
  std::optional<std::size_t> buffer_records_max = {};
  // Threads that reduce CPU tensors of more than 256 Ki elements, including the observing
  // one: 1..64. Default: OMP_NUM_THREADS, otherwise the processors this process may use divided by
  // the ranks on this host (LOCAL_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE); at most 4.
  std::optional<std::uint32_t> threads = {};
  // Folder on a local disk for a file of records that do not fit in memory while the collector is
  // away or slow; created if missing. Records that are still in the file at the end are sent by
  // `statctl move import spill FOLDER`. Default: none, such records are dropped and counted.
  std::string spill_dir = {};
  // Maximum size of that file, such as "512MiB" or "20GiB"; at least 64MiB. Default 1GiB.
  std::string spill_limit = {};
  // File with a token, for collectors that require one (docs/security.md); only its owner may have
  // access. It is read for every connection, so a new token needs no restart. Default: none is
  // sent.
  std::string token_file = {};
  // Project of the run, on a collector that several share: run names are unique within one.
  // Default: the token's, else "default".
  std::string project = {};
  // PEM file of the authorities that sign the collector's certificate (its ca.pem). If set, the
  // connection uses TLS. Default: none, no encryption.
  std::string tls_ca = {};
  // PEM files of this client's own certificate and its key, if the collector requires one
  // (--tls-client-ca).
  std::string tls_cert = {}, tls_key = {};
  // How long Start waits for the collector's answer. Default 3 s.
  std::optional<std::chrono::milliseconds> connect_timeout = {};
};

}  // namespace statagent

#endif  // STATAGENT_OPTIONS_H_
