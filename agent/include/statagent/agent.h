// The C++ interface of the statcollect agent: statistics of tensors, streamed to statcollectord.
//
//   auto agent = statagent::Agent::Start({.run = "base", .collector = "127.0.0.1:7433"});
//   if (!agent.ok()) { std::cerr << agent.status().message() << '\n'; return 1; }
//   (*agent)->Observe({.name = "mlp.fc1", .kind = statagent::Kind::kOutput}, view);
//   (*agent)->LogScalar("loss", loss);
//   (*agent)->EndStep();
//   (*agent)->Close(std::chrono::seconds(5));
//
// No gRPC, protobuf, Abseil or CUDA type is exposed. The agent never throws, never installs signal
// handlers and never writes to standard output. After fork(), the child's copy is inert.
#ifndef STATAGENT_AGENT_H_
#define STATAGENT_AGENT_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "statagent/options.h"
#include "statagent/status.h"
#include "statagent/tensor_view.h"
#include "statagent/types.h"

#if defined(__GNUC__)
#define STATAGENT_API __attribute__((visibility("default")))
#else
#define STATAGENT_API
#endif

namespace statagent {

using statcollect::Code;
using statcollect::DensityType;
using statcollect::Kind;
using statcollect::MemoryPhase;
using statcollect::MemoryQuantity;
using statcollect::Mode;
using statcollect::Result;
using statcollect::Status;

// What is observed. (name, kind, output_path, micro_batch, call, mode) is unique within a step.
struct Identity {
  std::string_view name;
  Kind kind = Kind::kOutput;
  std::string_view output_path = {};
  std::uint32_t micro_batch = 0;
  std::int64_t call = -1;  // -1: counted by the agent, from 0, within the step and micro-batch
  Mode mode = Mode::kTrain;
  std::string_view parent = {};  // qualified path of the enclosing module
  std::string_view class_name = {};
  std::int32_t depth = 0;
};

// Invariant: produced == acked + pending + the sum of dropped.
struct Counters {
  std::uint64_t produced = 0;  // records handed to the agent (tensors, scalars, events, step ends)
  std::uint64_t acked = 0;     // durable in the collector
  std::uint64_t pending = 0;   // in the agent's memory or in its spill file
  std::uint64_t spilled =
      0;  // of pending: in the spill file, after Close for `statctl move import spill`
  std::map<std::string, std::uint64_t> dropped;  // by cause
};

// Statistics of one tensor. min to l2 are valid only if has_finite.
struct Statistics {
  std::uint64_t numel = 0, nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0, pos = 0;
  bool has_finite = false;
  double min = 0, max = 0, mean = 0, std = 0, l1 = 0, l2 = 0;
  std::uint64_t hash = 0;
  std::vector<double> sketch;
  std::vector<double> samples;
};

// Computes the statistics of one tensor, without a collector. `sketch`: 0, 16, 32, 64.
// kInvalidArgument: the view is invalid; the message says why.
STATAGENT_API Result<Statistics> Compute(const TensorView& tensor, std::uint32_t sketch = 16,
                                         std::uint32_t samples = 0);

// Counts the binary exponents floor(log2(|x|)) of the finite nonzero elements (complex: of both
// parts). counts[e - lowest] is the count of exponent e; the first and last count include
// everything beyond them. Exponents of float64 range from -1074 to 1023. This is a separate pass.
// `stream` as for Compute.
STATAGENT_API Status CountExponents(const TensorView& tensor, int lowest,
                                    std::span<std::uint64_t> counts);
STATAGENT_API Status CountExponents(const TensorView& tensor, int lowest,
                                    std::span<std::uint64_t> counts, void* stream);

// The same, in the CUDA stream that produced the tensor. Waits for the result, at most one minute.
// A null stream is the device's default stream. kUnimplemented: this build has no CUDA engine, or
// the machine has no driver or device for it.
STATAGENT_API Result<Statistics> Compute(const TensorView& tensor, std::uint32_t sketch,
                                         std::uint32_t samples, void* stream);

// Statistics of one row of a matrix, whose columns may be the part of a longer row from column
// `first_column` on: hash, sketch and squared l2 of the parts then add up.
struct RowStatistics {
  float l2 = 0;  // NaN: some components are not finite
  std::uint64_t hash = 0;
  std::array<float, 8> sketch{};
};

// One row of `rows`, a matrix, for each of `out`. kInvalidArgument: the view, or not as many rows.
STATAGENT_API Status ComputeRows(const TensorView& rows, std::uint64_t first_column,
                                 std::span<RowStatistics> out);
// The same, in the CUDA stream that produced the matrix, as Compute.
STATAGENT_API Status ComputeRows(const TensorView& rows, std::uint64_t first_column,
                                 std::span<RowStatistics> out, void* stream);

// The keys of tokens: of each, a hash of its id and all ids before it. `before`: the key before the
// first of `ids`; by default nothing came before. As many keys as ids.
STATAGENT_API void TokenKeys(std::span<const std::int64_t> ids, std::optional<std::uint64_t> before,
                             std::span<std::uint64_t> keys);

// What a tap (a module's output, or "logprob" with one column) had for some tokens.
struct TokenRows {
  std::string_view tap;
  TensorView rows;                           // a row for each token
  std::span<const std::uint64_t> keys;       // of TokenKeys
  std::span<const std::uint32_t> positions;  // of the tokens in their sequences
  std::uint32_t call = 0;                    // n-th call of the tap in the step
  std::uint32_t first_column = 0;            // as of ComputeRows
  // Rows of the matrix, one for each token; empty: the matrix has one for each.
  std::span<const std::int64_t> index = {};
  void* stream = nullptr;  // of CUDA, that produced the matrix
};

// Its number from 0 among the ranks that record, and how many they are.
struct RecordingRank {
  std::uint32_t number = 0, count = 1;
};

// Memory at one point in time; each quantity in bytes.
struct MemoryUsage {
  MemoryPhase phase = MemoryPhase::kPostForward;
  std::uint32_t micro_batch = 0;
  std::string_view device = "cpu";  // "cuda:0", "cpu"
  std::string_view module = {};     // qualified path, if measured for one module's pass
  std::map<MemoryQuantity, std::int64_t> bytes = {};
};

// Fraction of an input that is not padding.
struct InputDensity {
  std::string_view input;
  DensityType type = DensityType::kEmbed;
  std::uint32_t micro_batch = 0;
  std::int64_t pad_index = 0;                            // elements of this value are padding
  std::uint64_t valid = 0, total = 0;                    // elements
  std::span<const std::uint64_t> valid_per_sample = {};  // at most 4096; empty for more samples
};

// Announced by the collector to all ranks of a run: full statistics in the steps first..last that
// are divisible by `every`. Without an end, `last` is the largest number.
struct FullSteps {
  std::uint64_t first = 0, last = 0, every = 1;
};

class STATAGENT_API Agent {
 public:
  // Validates the options, connects to the collector and waits up to connect_timeout for its
  // answer. kInvalidArgument: an option is invalid. kAlreadyExists: the run has data and if_exists
  // is "error". kUnavailable: no collector, and `required` is true. With STATAGENT_DISABLE=1 it
  // succeeds, and the agent does nothing.
  static Result<std::unique_ptr<Agent>> Start(Options options);

  ~Agent();  // calls Close(2 s)
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Computes the tensor's statistics and queues them. Thread-safe; never blocks on the network.
  // Returns kOk even if the record was dropped (and counted) or the step is not recorded.
  // kInvalidArgument: the view or the name is invalid. kUnimplemented: a CUDA tensor without an
  // engine, driver or device for it. `stream`: the CUDA stream that produced the tensor and in
  // which its statistics are computed; ignored for CPU tensors.
  Status Observe(const Identity& identity, const TensorView& tensor,
                 void* stream = nullptr) noexcept;

  // For hot paths: intern the identity once (call must be >= 0), then observe by handle.
  Result<std::uint32_t> Intern(const Identity& identity) noexcept;
  Status Observe(std::uint32_t handle, const TensorView& tensor, void* stream = nullptr) noexcept;

  // Observes several tensors of one stream by handle; on a GPU with as few kernel launches as
  // possible (one for all small tensors of a dtype). A tensor with an error does not stop the
  // others: returns the first error, and their number in *refused.
  struct Item {
    std::uint32_t handle = 0;
    TensorView tensor;
  };
  Status ObserveList(std::span<const Item> items, void* stream, std::size_t* refused) noexcept;

  // `step` defaults to the current step; it may be an earlier one, for values that become known
  // late.
  Status LogScalar(std::string_view name, double value, std::uint32_t micro_batch = 0,
                   std::optional<std::uint64_t> step = {}) noexcept;
  Status LogEvent(std::string_view kind, std::string_view text,
                  const std::map<std::string, std::string>& fields = {},
                  std::optional<std::uint64_t> step = {}) noexcept;
  Status LogMemory(const MemoryUsage& usage) noexcept;
  Status LogDensity(const InputDensity& density, std::optional<std::uint64_t> step = {}) noexcept;
  // Computes statistics of each row and queues them, in records of up to 4096 rows; at most 2^20
  // rows. Nothing if the current step is not recorded. `step` as for LogScalar.
  Status RecordRows(const TokenRows& rows, std::optional<std::uint64_t> step = {}) noexcept;
  // Adds configuration that was not known at the start. The newest value of a name wins.
  // kResourceExhausted: more than 4000 names.
  Status AddConfig(const std::map<std::string, std::string>& settings) noexcept;

  // Ends the current step and begins the next.
  void EndStep() noexcept;
  // Jumps forward to a step, at most 2^63-1, when resuming from a checkpoint.
  Status SetStep(std::uint64_t step) noexcept;
  // CUDA graphs: sets the stream in which graphs are replayed on a device. Call it whenever that
  // stream changes, and before it is destroyed (with a different stream). A tensor observed while
  // its stream is captured into a graph is recorded at each replay (in recorded steps), under its
  // identity, with calls counted from 0 in each step. The graph must own the tensor's memory. The
  // device decides to which step a replay belongs: EndStep, SetStep and Flush enqueue a small
  // kernel, the mark, in this stream (default: the legacy default stream); replays before it in
  // stream order belong to the step that ends. If the stream no longer exists, CUDA refuses the
  // mark, and the agent treats this as a failure of the device: its replays and later tensors are
  // counted as `device_error`.
  void ReplaysIn(int device, void* stream) noexcept;
  // The devices that currently have such graphs.
  std::vector<int> ReplayDevices() const noexcept;
  std::uint64_t step() const noexcept;
  bool StepWanted() const noexcept;  // whether the current step is recorded
  // For programs that record full statistics only in some steps: whether the collector requested
  // the current step, with `statctl set-steps` or for raw values.
  bool StepAsked() const noexcept;
  // The oldest announcement that has not been returned yet, if any.
  std::optional<FullSteps> NextFullSteps() noexcept;

  // Waits until all records so far are durable in the collector or dropped. kDeadlineExceeded: some
  // are still pending; the message says how many.
  Status Flush(std::chrono::milliseconds timeout) noexcept;
  // Flushes, sends the goodbye and joins the threads. In the last fifth of the timeout, at most 0.4
  // s, a connected collector learns what it will not receive. Pending records stay in the spill
  // file; without one they are counted as dropped and reported on standard error. If the spill
  // file's disk hangs for a fifth of the timeout (0.4 to 5 s) after that, the threads are
  // abandoned: kDeadlineExceeded. Idempotent.
  Status Close(std::chrono::milliseconds timeout) noexcept;
  // Like Close, for a process that failed: without the goodbye, so the run is shown as interrupted.
  Status CloseFailed(std::chrono::milliseconds timeout) noexcept;
  // Like Close, for a program that failed before it recorded anything: if no rank has recorded
  // anything, the collector removes the run, so that its name is free. The same as Close if
  // something was recorded.
  Status CloseUnused(std::chrono::milliseconds timeout) noexcept;

  Counters counters() const noexcept;
  std::uint32_t rank() const noexcept;
  std::uint32_t world_size() const noexcept;
  // This process among those of its launch that record; nothing if it does not record
  // (STATAGENT_DISABLE, Options::ranks).
  std::optional<RecordingRank> recording_rank() const noexcept;

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace statagent

#endif  // STATAGENT_AGENT_H_
