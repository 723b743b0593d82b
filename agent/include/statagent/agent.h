// The C++ interface of the statcollect agent: statistics of tensors, streamed to statcollectord.
//
//   auto agent = statagent::Agent::Start({.run = "base", .collector = "127.0.0.1:7433"});
//   if (!agent.ok()) { std::cerr << agent.status().message() << '\n'; return 1; }
//   (*agent)->Observe({.name = "mlp.fc1", .kind = statagent::Kind::kOutput}, view);
//   (*agent)->LogScalar("loss", loss);
//   (*agent)->EndStep();
//   (*agent)->Close(std::chrono::seconds(5));
//
// Exposes no type of gRPC, protobuf, Abseil or CUDA. The agent never throws, never installs signal handlers,
// never writes to standard output. After fork() the child's copy is inert.
#ifndef STATAGENT_AGENT_H_
#define STATAGENT_AGENT_H_

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

// produced == acked + sum of dropped + pending, at every moment.
struct Counters {
  std::uint64_t produced = 0;  // records handed to the agent (tensors, scalars, events, step ends)
  std::uint64_t acked = 0;     // durable in the collector
  std::uint64_t pending = 0;   // in the agent's memory or in its spill file
  std::uint64_t spilled =
      0;  // of these, in the spill file; after Close: left there for `statctl import spill`
  std::map<std::string, std::uint64_t> dropped;  // by cause
};

// Statistics of one tensor. The floating ones hold only if has_finite.
struct Statistics {
  std::uint64_t numel = 0, nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0, pos = 0;
  bool has_finite = false;
  double min = 0, max = 0, mean = 0, std = 0, l1 = 0, l2 = 0;
  std::uint64_t hash = 0;
  std::vector<double> sketch;
  std::vector<double> samples;
};

// Statistics of one tensor, without a collector. `sketch`: 0, 16, 32, 64. kInvalidArgument says what is wrong
// with the view.
STATAGENT_API Result<Statistics> Compute(const TensorView& tensor, std::uint32_t sketch = 16,
                                         std::uint32_t samples = 0);

// Binary exponents floor(log2(|x|)) of the finite elements that are not 0 (complex: of both parts): counts[e
// - lowest] of exponent e; the first and the last count take what lies beyond. float64 reaches from -1074 to
// 1023. A pass of its own. `stream` as for Compute.
STATAGENT_API Status CountExponents(const TensorView& tensor, int lowest, std::span<std::uint64_t> counts);
STATAGENT_API Status CountExponents(const TensorView& tensor, int lowest, std::span<std::uint64_t> counts,
                                    void* stream);

// The same in the CUDA stream that produced the tensor, whose result it waits for, no longer than a minute. A
// null stream is the device's default one. kUnimplemented: no CUDA engine in this build, or no driver or
// device for it.
STATAGENT_API Result<Statistics> Compute(const TensorView& tensor, std::uint32_t sketch,
                                         std::uint32_t samples, void* stream);

// Memory at one moment; each quantity in bytes.
struct MemoryUsage {
  MemoryPhase phase = MemoryPhase::kPostForward;
  std::uint32_t micro_batch = 0;
  std::string_view device = "cpu";  // "cuda:0", "cpu"
  std::string_view module = {};     // qualified path, if it is about one module's pass
  std::map<MemoryQuantity, std::int64_t> bytes = {};
};

// How much of an input is no padding.
struct InputDensity {
  std::string_view input;
  DensityType type = DensityType::kEmbed;
  std::uint32_t micro_batch = 0;
  std::int64_t pad_index = 0;                            // elements of this value are padding
  std::uint64_t valid = 0, total = 0;                    // elements
  std::span<const std::uint64_t> valid_per_sample = {};  // left out where there are more than 4096
};

class STATAGENT_API Agent {
 public:
  // Validates the options, says hello to the collector and waits for its answer up to connect_timeout.
  // kInvalidArgument: an option; kAlreadyExists: the run has data and if_exists is error; kUnavailable:
  // `required` and no collector. With STATAGENT_DISABLE=1 it succeeds and does nothing from then on.
  static Result<std::unique_ptr<Agent>> Start(Options options);

  ~Agent();  // as Close(2 s)
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Computes the tensor's statistics and queues them. Returns kOk also if the record had to be dropped (it is
  // counted) or the step is not wanted; kInvalidArgument for a bad view or name. Never blocks on the network.
  // `stream`: the CUDA stream that produced the tensor, in which it is computed later; ignored for CPU
  // tensors. kUnimplemented: a CUDA tensor, and no engine, driver or device for it. Any thread.
  Status Observe(const Identity& identity, const TensorView& tensor, void* stream = nullptr) noexcept;

  // For callers on a hot path: intern the identity once (call must be >= 0), then observe by handle.
  Result<std::uint32_t> Intern(const Identity& identity) noexcept;
  Status Observe(std::uint32_t handle, const TensorView& tensor, void* stream = nullptr) noexcept;

  // Several tensors by handle, as Observe for each; on a GPU with as few kernel launches as possible (one for
  // all small tensors of a dtype). All in one stream. Takes what it can: returns the first error, *refused
  // how many had one.
  struct Item {
    std::uint32_t handle = 0;
    TensorView tensor;
  };
  Status ObserveList(std::span<const Item> items, void* stream, std::size_t* refused) noexcept;

  // `step`: the current one, or one that is over, for what becomes known late.
  Status LogScalar(std::string_view name, double value, std::uint32_t micro_batch = 0,
                   std::optional<std::uint64_t> step = {}) noexcept;
  Status LogEvent(std::string_view kind, std::string_view text,
                  const std::map<std::string, std::string>& fields = {},
                  std::optional<std::uint64_t> step = {}) noexcept;
  Status LogMemory(const MemoryUsage& usage) noexcept;
  Status LogDensity(const InputDensity& density, std::optional<std::uint64_t> step = {}) noexcept;
  // Configuration that was not known at the start; the newest value of a name stands. kResourceExhausted:
  // over 4000 names.
  Status AddConfig(const std::map<std::string, std::string>& settings) noexcept;

  // Ends the current step and begins the next. SetStep jumps, when resuming from a checkpoint (never
  // backwards).
  void EndStep() noexcept;
  Status SetStep(std::uint64_t step) noexcept;
  // CUDA graphs. A tensor that is observed in a stream while it is captured into a graph is recorded at each
  // replay of the graph (in recorded steps), under its identity with the call counted from 0 in each step.
  // The tensor must be memory that the graph keeps. Which step a replay belongs to is decided on the device:
  // EndStep, SetStep and Flush enqueue a tiny kernel in the stream named here (default: the legacy default
  // stream), and replays before it in stream order belong to the step that ends. Name the stream in which
  // graphs are replayed, whenever it changes, and another one before it is destroyed: CUDA refuses the next
  // mark in a stream that is gone, which the agent takes for a failure of the device. What its graphs replay
  // from then on, and all later tensors on it, is counted as `device_error`.
  void ReplaysIn(int device, void* stream) noexcept;
  // The devices with such graphs that live, at this moment.
  std::vector<int> ReplayDevices() const noexcept;
  std::uint64_t step() const noexcept;
  bool StepWanted() const noexcept;  // whether the current step is recorded

  // Waits until everything handed over so far is durable in the collector or dropped. kDeadlineExceeded says
  // what is pending.
  Status Flush(std::chrono::milliseconds timeout) noexcept;
  // Flush, goodbye, join the threads. Bounded by the timeout, and a quarter of a second to tell a connected
  // collector what it will not get. What is still pending then is left in the spill file, or, without one,
  // counted as dropped, which standard error says. Idempotent.
  Status Close(std::chrono::milliseconds timeout) noexcept;
  // As Close, for a process that failed: without the goodbye, so that the run shows as interrupted.
  Status CloseFailed(std::chrono::milliseconds timeout) noexcept;

  Counters counters() const noexcept;
  std::uint32_t rank() const noexcept;
  std::uint32_t world_size() const noexcept;

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace statagent

#endif  // STATAGENT_AGENT_H_
