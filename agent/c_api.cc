// The C interface over the C++ one. Checks what C cannot promise: null pointers, structure sizes,
// numbers out of range.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/c_guard.h"
#include "agent/stats/cpu/noise.h"
#include "common/redact.h"
#include "common/step_set.h"
#include "statagent/agent.h"
#include "statagent/statagent.h"

struct statagent_agent {
  std::unique_ptr<statagent::Agent> agent;
};

struct statagent_steps {
  statcollect::StepSet set;
};

namespace {

using statcollect::Code;
using statcollect::Result;
using statcollect::Status;
using statcollect::c_api::CheckSize;
using statcollect::c_api::Guarded;
using statcollect::c_api::Invalid;
using statcollect::c_api::LastError;
using statcollect::c_api::Null;
using statcollect::c_api::Report;
using statcollect::c_api::Text;

constexpr std::uint32_t kDimsMax = 64;
constexpr std::uint64_t kEntriesMax = 1u << 20;

// Empty for negative numbers.
template <typename T>
Status ReadNumber(const char* name, std::int64_t value, std::optional<T>* out) {
  if (value < 0) return Status::Ok();
  if (static_cast<std::uint64_t>(value) > std::numeric_limits<T>::max()) {
    return Invalid(std::string("statagent_start: ") + name + " is " + std::to_string(value) +
                   "; expected at most " + std::to_string(std::numeric_limits<T>::max()));
  }
  *out = static_cast<T>(value);
  return Status::Ok();
}

Status ReadMap(const char* function, const char* const* keys, const char* const* values,
               std::uint64_t count, std::map<std::string, std::string>* out) {
  if (count == 0) return Status::Ok();
  if (keys == nullptr || values == nullptr) return Null(function, "keys or values");
  if (count > kEntriesMax)
    return Invalid(std::string(function) + ": count is " + std::to_string(count) +
                   "; expected fewer");
  for (std::uint64_t i = 0; i < count; ++i) {
    if (keys[i] == nullptr || values[i] == nullptr) return Null(function, "a key or a value");
    (*out)[keys[i]] = values[i];
  }
  return Status::Ok();
}

Status ReadOptions(const statagent_options& from, statagent::Options* to) {
  to->run = Text(from.run);
  to->collector = Text(from.collector);
  to->if_exists = Text(from.if_exists);
  to->launch = Text(from.launch);
  to->steps = Text(from.steps);
  to->spill_dir = Text(from.spill_dir);
  to->spill_limit = Text(from.spill_limit);
  to->captures = Text(from.captures);
  to->exponents = Text(from.exponents);
  to->tls_ca = Text(from.tls_ca);
  to->tls_cert = Text(from.tls_cert);
  to->tls_key = Text(from.tls_key);
  if (from.struct_size >= offsetof(statagent_options, ranks)) to->project = Text(from.project);
  if (from.struct_size >= offsetof(statagent_options, ring)) {
    to->ranks = Text(from.ranks);
    to->log = Text(from.log);
  }
  if (from.struct_size >= sizeof(from)) to->ring = Text(from.ring);
  STATCOLLECT_RETURN_IF_ERROR(ReadMap("statagent_start", from.config_keys, from.config_values,
                                      from.config_count, &to->config));
  if (from.required >= 0) to->required = from.required != 0;
  STATCOLLECT_RETURN_IF_ERROR(ReadNumber("rank", from.rank, &to->rank));
  STATCOLLECT_RETURN_IF_ERROR(ReadNumber("local_rank", from.local_rank, &to->local_rank));
  STATCOLLECT_RETURN_IF_ERROR(ReadNumber("world_size", from.world_size, &to->world_size));
  STATCOLLECT_RETURN_IF_ERROR(ReadNumber("sketch", from.sketch, &to->sketch));
  STATCOLLECT_RETURN_IF_ERROR(ReadNumber("samples", from.samples, &to->samples));
  STATCOLLECT_RETURN_IF_ERROR(
      ReadNumber("buffer_records_max", from.buffer_records_max, &to->buffer_records_max));
  STATCOLLECT_RETURN_IF_ERROR(ReadNumber("threads", from.threads, &to->threads));
  if (from.connect_timeout_ms >= 0)
    to->connect_timeout = std::chrono::milliseconds(from.connect_timeout_ms);
  return Status::Ok();
}

Result<statagent::TensorView> ReadTensor(const char* function, const statagent_tensor* tensor) {
  STATCOLLECT_RETURN_IF_ERROR(CheckSize(function, tensor, offsetof(statagent_tensor, placement)));
  if (tensor->ndim > kDimsMax) {
    return Invalid(std::string(function) + ": ndim is " + std::to_string(tensor->ndim) +
                   "; expected at most " + std::to_string(kDimsMax));
  }
  if (tensor->ndim > 0 && tensor->shape == nullptr) return Null(function, "shape");
  if (tensor->dtype == 0 || tensor->dtype >= static_cast<std::uint32_t>(statcollect::kDTypeCount)) {
    return Invalid(std::string(function) + ": dtype is " + std::to_string(tensor->dtype) +
                   "; expected 1.." + std::to_string(statcollect::kDTypeCount - 1) +
                   ", see statagent/types.h");
  }
  if (tensor->device != 0 && tensor->device != 1) {
    return Invalid(std::string(function) + ": device is " + std::to_string(tensor->device) +
                   "; expected 0 (CPU) or 1 (CUDA)");
  }
  statagent::TensorView view;
  view.data = tensor->data;
  view.dtype = static_cast<statcollect::DType>(tensor->dtype);
  view.shape = {tensor->shape, tensor->ndim};
  if (tensor->strides != nullptr) view.strides = {tensor->strides, tensor->ndim};
  view.device = static_cast<statagent::Device>(tensor->device);
  view.device_index = tensor->device_index;
  return view;
}

bool HasPlacement(const statagent_tensor* tensor) {
  return tensor->struct_size >= sizeof(*tensor) && tensor->placement != nullptr;
}

// Points into the caller's arrays. Precondition: HasPlacement(tensor).
Result<statagent::Placement> ReadPlacement(const char* function, const statagent_tensor* tensor) {
  const statagent_placement* from = tensor->placement;
  STATCOLLECT_RETURN_IF_ERROR(CheckSize(function, from, offsetof(statagent_placement, partial)));
  if (from->ndim > kDimsMax || from->box_count > kEntriesMax || from->range_count > kEntriesMax) {
    return Invalid(std::string(function) + ": the placement has " + std::to_string(from->ndim) +
                   " dimensions, " + std::to_string(from->box_count) + " boxes and " +
                   std::to_string(from->range_count) + " ranges; expected at most " +
                   std::to_string(kDimsMax) + " dimensions, and " + std::to_string(kEntriesMax) +
                   " of the others");
  }
  if (from->ndim > 0 && from->global_shape == nullptr) return Null(function, "global_shape");
  if (from->box_count > 0 && from->boxes == nullptr) return Null(function, "boxes");
  if (from->range_count > 0 && from->ranges == nullptr) return Null(function, "ranges");
  statagent::Placement placement{.global_shape = {from->global_shape, from->ndim},
                                 .boxes = {from->boxes, 2 * from->ndim * from->box_count},
                                 .ranges = {from->ranges, 2 * from->range_count}};
  if (from->struct_size >= sizeof(*from)) {
    placement.partial = from->partial != 0;
    placement.piece = from->piece;
    placement.pieces = std::max<std::uint32_t>(from->pieces, 1);
    placement.unordered = from->unordered;
  }
  return placement;
}

// A tensor with its placement, which the view points to.
class PlacedTensor {
 public:
  Status Read(const char* function, const statagent_tensor* tensor) {
    auto view = ReadTensor(function, tensor);
    if (!view.ok()) return view.status();
    view_ = *view;
    if (!HasPlacement(tensor)) return Status::Ok();
    auto placement = ReadPlacement(function, tensor);
    if (!placement.ok()) return placement.status();
    placement_ = *placement;
    placed_ = true;
    return Status::Ok();
  }
  // Must not outlive this object, nor this object move meanwhile.
  statagent::TensorView view() const {
    statagent::TensorView view = view_;
    if (placed_) view.placement = &placement_;
    return view;
  }

 private:
  statagent::TensorView view_;
  statagent::Placement placement_;
  bool placed_ = false;
};

// Enumerations out of range keep their value, clamped so that it fits; the agent names what it
// expected.
template <typename E>
E ReadEnum(std::uint32_t value) {
  return static_cast<E>(std::min<std::uint32_t>(value, 255));
}

Result<statagent::Identity> ReadIdentity(const statagent_identity* identity) {
  STATCOLLECT_RETURN_IF_ERROR(CheckSize("statagent_intern", identity));
  if (identity->name == nullptr) return Null("statagent_intern", "name");
  return statagent::Identity{.name = identity->name,
                             .kind = ReadEnum<statcollect::Kind>(identity->kind),
                             .output_path = Text(identity->output_path),
                             .micro_batch = identity->micro_batch,
                             .call = identity->call,
                             .mode = ReadEnum<statcollect::Mode>(identity->mode),
                             .parent = Text(identity->parent),
                             .class_name = Text(identity->class_name),
                             .depth = identity->depth};
}

void Write(const statagent::Statistics& from, statagent_statistics* to) {
  to->has_finite = from.has_finite ? 1 : 0;
  to->numel = from.numel;
  to->nan = from.nan;
  to->pos_inf = from.pos_inf;
  to->neg_inf = from.neg_inf;
  to->zero = from.zero;
  to->neg = from.neg;
  to->pos = from.pos;
  to->min = from.min;
  to->max = from.max;
  to->mean = from.mean;
  to->std = from.std;
  to->l1 = from.l1;
  to->l2 = from.l2;
  to->hash = from.hash;
  to->sketch_count = static_cast<std::uint32_t>(from.sketch.size());
  to->sample_count = static_cast<std::uint32_t>(from.samples.size());
}

}  // namespace

extern "C" {

const char* statagent_last_error(void) { return LastError().c_str(); }

const char* statagent_version(void) { return STATCOLLECT_VERSION; }

int statagent_start(const statagent_options* options, statagent_agent** agent) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_start", "agent");
    *agent = nullptr;
    STATCOLLECT_RETURN_IF_ERROR(
        CheckSize("statagent_start", options, offsetof(statagent_options, project)));
    statagent::Options read;
    STATCOLLECT_RETURN_IF_ERROR(ReadOptions(*options, &read));
    auto handle = std::make_unique<statagent_agent>();
    auto started = statagent::Agent::Start(std::move(read));
    if (!started.ok()) return started.status();
    handle->agent = *std::move(started);
    *agent = handle.release();
    return Status::Ok();
  });
}

int statagent_close(statagent_agent* agent, int64_t timeout_ms) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_close", "agent");
    return agent->agent->Close(std::chrono::milliseconds(timeout_ms));
  });
}

int statagent_close_failed(statagent_agent* agent, int64_t timeout_ms) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_close_failed", "agent");
    return agent->agent->CloseFailed(std::chrono::milliseconds(timeout_ms));
  });
}

int statagent_close_unused(statagent_agent* agent, int64_t timeout_ms) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_close_unused", "agent");
    return agent->agent->CloseUnused(std::chrono::milliseconds(timeout_ms));
  });
}

void statagent_free(statagent_agent* agent) { delete agent; }

int statagent_intern(statagent_agent* agent, const statagent_identity* identity, uint32_t* handle) {
  return Guarded([&] {
    if (agent == nullptr || handle == nullptr) return Null("statagent_intern", "agent or handle");
    const auto read = ReadIdentity(identity);
    if (!read.ok()) return read.status();
    const auto interned = agent->agent->Intern(*read);
    if (!interned.ok()) return interned.status();
    *handle = *interned;
    return Status::Ok();
  });
}

int statagent_observe(statagent_agent* agent, uint32_t handle, const statagent_tensor* tensor,
                      void* stream) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_observe", "agent");
    PlacedTensor placed;
    STATCOLLECT_RETURN_IF_ERROR(placed.Read("statagent_observe", tensor));
    return agent->agent->Observe(handle, placed.view(), stream);
  });
}

int statagent_observe_list(statagent_agent* agent, uint64_t count, const uint32_t* handles,
                           const statagent_tensor* const* tensors, void* stream,
                           uint64_t* refused) {
  return Guarded([&] {
    if (agent == nullptr || refused == nullptr)
      return Null("statagent_observe_list", "agent or refused");
    *refused = count;
    if (count > 0 && (handles == nullptr || tensors == nullptr))
      return Null("statagent_observe_list", "handles or tensors");
    if (count > kEntriesMax) {
      return Invalid("statagent_observe_list: count is " + std::to_string(count) +
                     "; expected at most " + std::to_string(kEntriesMax));
    }
    Status first;
    std::vector<statagent::Agent::Item> items;
    items.reserve(count);
    std::vector<PlacedTensor> placed(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      const Status read = placed[i].Read("statagent_observe_list", tensors[i]);
      if (read.ok()) {
        items.push_back({handles[i], placed[i].view()});
      } else if (first.ok()) {
        first = read;
      }
    }
    std::size_t later = 0;
    const Status status = agent->agent->ObserveList(items, stream, &later);
    *refused = count - items.size() + later;
    return first.ok() ? status : first;
  });
}

int statagent_log_scalar(statagent_agent* agent, const char* name, double value,
                         uint32_t micro_batch) {
  return Guarded([&] {
    if (agent == nullptr || name == nullptr) return Null("statagent_log_scalar", "agent or name");
    return agent->agent->LogScalar(name, value, micro_batch);
  });
}

int statagent_log_event(statagent_agent* agent, const char* kind, const char* text,
                        const char* const* field_keys, const char* const* field_values,
                        uint64_t field_count) {
  return Guarded([&] {
    if (agent == nullptr || kind == nullptr) return Null("statagent_log_event", "agent or kind");
    std::map<std::string, std::string> fields;
    STATCOLLECT_RETURN_IF_ERROR(
        ReadMap("statagent_log_event", field_keys, field_values, field_count, &fields));
    return agent->agent->LogEvent(kind, Text(text), fields);
  });
}

int statagent_log_scalar_at(statagent_agent* agent, const char* name, double value,
                            uint32_t micro_batch, uint64_t step) {
  return Guarded([&] {
    if (agent == nullptr || name == nullptr)
      return Null("statagent_log_scalar_at", "agent or name");
    return agent->agent->LogScalar(name, value, micro_batch, step);
  });
}

int statagent_log_event_at(statagent_agent* agent, uint64_t step, const char* kind,
                           const char* text, const char* const* field_keys,
                           const char* const* field_values, uint64_t field_count) {
  return Guarded([&] {
    if (agent == nullptr || kind == nullptr) return Null("statagent_log_event_at", "agent or kind");
    std::map<std::string, std::string> fields;
    STATCOLLECT_RETURN_IF_ERROR(
        ReadMap("statagent_log_event_at", field_keys, field_values, field_count, &fields));
    return agent->agent->LogEvent(kind, Text(text), fields, step);
  });
}

int statagent_add_config(statagent_agent* agent, const char* const* keys, const char* const* values,
                         uint64_t count) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_add_config", "agent");
    std::map<std::string, std::string> settings;
    STATCOLLECT_RETURN_IF_ERROR(ReadMap("statagent_add_config", keys, values, count, &settings));
    return agent->agent->AddConfig(settings);
  });
}

int statagent_log_memory(statagent_agent* agent, const statagent_memory* memory) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_log_memory", "agent");
    STATCOLLECT_RETURN_IF_ERROR(CheckSize("statagent_log_memory", memory));
    if (memory->present != 0 && memory->bytes == nullptr)
      return Null("statagent_log_memory", "bytes");
    statagent::MemoryUsage usage{.phase = ReadEnum<statcollect::MemoryPhase>(memory->phase),
                                 .micro_batch = memory->micro_batch,
                                 .device = Text(memory->device),
                                 .module = Text(memory->module)};
    const std::int64_t* next = memory->bytes;
    for (unsigned bit = 0; bit < 32; ++bit) {
      if ((memory->present >> bit & 1u) != 0)
        usage.bytes[static_cast<statcollect::MemoryQuantity>(bit)] = *next++;
    }
    return agent->agent->LogMemory(usage);
  });
}

int statagent_log_density(statagent_agent* agent, const statagent_density* density, uint64_t step) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_log_density", "agent");
    STATCOLLECT_RETURN_IF_ERROR(CheckSize("statagent_log_density", density));
    if (density->input == nullptr) return Null("statagent_log_density", "input");
    if (density->samples > 0 && density->valid_per_sample == nullptr)
      return Null("statagent_log_density", "valid_per_sample");
    return agent->agent->LogDensity(
        {.input = density->input,
         .type = ReadEnum<statcollect::DensityType>(density->type),
         .micro_batch = density->micro_batch,
         .pad_index = density->pad_index,
         .valid = density->valid,
         .total = density->total,
         .valid_per_sample = {density->valid_per_sample, density->samples}},
        step);
  });
}

int statagent_record_rows(statagent_agent* agent, const statagent_token_rows* rows,
                          const uint64_t* step) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_record_rows", "agent");
    constexpr std::size_t kLeast = offsetof(statagent_token_rows, index);
    STATCOLLECT_RETURN_IF_ERROR(CheckSize("statagent_record_rows", rows, kLeast));
    if (rows->tap == nullptr) return Null("statagent_record_rows", "tap");
    if (rows->count > 0 && (rows->keys == nullptr || rows->positions == nullptr))
      return Null("statagent_record_rows", "keys or positions");
    const auto view = ReadTensor("statagent_record_rows", rows->rows);
    if (!view.ok()) return view.status();
    statagent::TokenRows found{.tap = rows->tap,
                               .rows = *view,
                               .keys = {rows->keys, rows->count},
                               .positions = {rows->positions, rows->count},
                               .call = rows->call,
                               .first_column = rows->first_column};
    if (rows->struct_size > kLeast) {
      if (rows->index != nullptr) found.index = {rows->index, rows->count};
      found.stream = rows->stream;
    }
    return agent->agent->RecordRows(found, step == nullptr ? std::nullopt : std::optional(*step));
  });
}

int statagent_compute_rows(const statagent_tensor* rows, uint32_t first_column, uint64_t count,
                           float* l2, uint64_t* hashes, float* sketches) {
  return statagent_compute_rows_on(rows, first_column, count, nullptr, l2, hashes, sketches);
}

int statagent_compute_rows_on(const statagent_tensor* rows, uint32_t first_column, uint64_t count,
                              void* stream, float* l2, uint64_t* hashes, float* sketches) {
  return Guarded([&] {
    const auto view = ReadTensor("statagent_compute_rows", rows);
    if (!view.ok()) return view.status();
    if (count > 0 && (l2 == nullptr || hashes == nullptr || sketches == nullptr))
      return Null("statagent_compute_rows", "l2, hashes or sketches");
    if (count > kEntriesMax) {
      return Invalid("statagent_compute_rows: count is " + std::to_string(count) +
                     "; expected at most " + std::to_string(kEntriesMax));
    }
    std::vector<statagent::RowStatistics> found(count);
    STATCOLLECT_RETURN_IF_ERROR(statagent::ComputeRows(*view, first_column, found, stream));
    for (const statagent::RowStatistics& row : found) {
      *l2++ = row.l2;
      *hashes++ = row.hash;
      sketches = std::copy(row.sketch.begin(), row.sketch.end(), sketches);
    }
    return Status::Ok();
  });
}

int statagent_token_keys(const int64_t* ids, uint64_t sequences, uint64_t length,
                         const uint64_t* before, uint64_t* keys) {
  return Guarded([&] {
    if (sequences == 0 || length == 0) return Status::Ok();
    if (ids == nullptr || keys == nullptr) return Null("statagent_token_keys", "ids or keys");
    for (std::uint64_t i = 0; i < sequences; ++i) {
      statagent::TokenKeys({ids + i * length, length},
                           before == nullptr ? std::nullopt : std::optional(before[i]),
                           {keys + i * length, length});
    }
    return Status::Ok();
  });
}

void statagent_end_step(statagent_agent* agent) {
  if (agent != nullptr) agent->agent->EndStep();
}

int statagent_set_step(statagent_agent* agent, uint64_t step) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_set_step", "agent");
    return agent->agent->SetStep(step);
  });
}

void statagent_replays_in(statagent_agent* agent, int32_t device, void* stream) {
  if (agent != nullptr) agent->agent->ReplaysIn(device, stream);
}

uint64_t statagent_replay_devices(const statagent_agent* agent) {
  std::uint64_t bits = 0;
  if (agent == nullptr) return bits;
  for (const int device : agent->agent->ReplayDevices())
    if (device < 64) bits |= std::uint64_t{1} << device;
  return bits;
}

uint64_t statagent_step(const statagent_agent* agent) {
  return agent == nullptr ? 0 : agent->agent->step();
}

int statagent_step_wanted(const statagent_agent* agent) {
  return agent != nullptr && agent->agent->StepWanted() ? 1 : 0;
}

int statagent_step_asked(const statagent_agent* agent) {
  return agent != nullptr && agent->agent->StepAsked() ? 1 : 0;
}

int statagent_next_full_steps(statagent_agent* agent, uint64_t* first, uint64_t* last,
                              uint64_t* every) {
  if (agent == nullptr || first == nullptr || last == nullptr || every == nullptr) return 0;
  const auto next = agent->agent->NextFullSteps();
  if (!next) return 0;
  *first = next->first;
  *last = next->last;
  *every = next->every;
  return 1;
}

uint32_t statagent_rank(const statagent_agent* agent) {
  return agent == nullptr ? 0 : agent->agent->rank();
}

uint32_t statagent_world_size(const statagent_agent* agent) {
  return agent == nullptr ? 1 : agent->agent->world_size();
}

int statagent_records(const statagent_agent* agent, uint32_t* number, uint32_t* count) {
  const auto found = agent == nullptr ? std::nullopt : agent->agent->recording_rank();
  if (!found) return 0;
  if (number != nullptr) *number = found->number;
  if (count != nullptr) *count = found->count;
  return 1;
}

int statagent_flush(statagent_agent* agent, int64_t timeout_ms) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_flush", "agent");
    return agent->agent->Flush(std::chrono::milliseconds(timeout_ms));
  });
}

int statagent_counters(const statagent_agent* agent, statagent_counts* counts) {
  return Guarded([&] {
    if (agent == nullptr) return Null("statagent_counters", "agent");
    STATCOLLECT_RETURN_IF_ERROR(CheckSize("statagent_counters", counts));
    const statagent::Counters found = agent->agent->counters();
    counts->produced = found.produced;
    counts->acked = found.acked;
    counts->pending = found.pending;
    counts->spilled = found.spilled;
    counts->dropped = 0;
    for (const auto& [cause, n] : found.dropped) counts->dropped += n;
    return Status::Ok();
  });
}

int statagent_dropped(const statagent_agent* agent,
                      void (*visit)(void* context, const char* cause, uint64_t n), void* context) {
  return Guarded([&] {
    if (agent == nullptr || visit == nullptr) return Null("statagent_dropped", "agent or visit");
    for (const auto& [cause, n] : agent->agent->counters().dropped)
      visit(context, cause.c_str(), n);
    return Status::Ok();
  });
}

int statagent_compute(const statagent_tensor* tensor, uint32_t sketch, uint32_t samples,
                      statagent_statistics* statistics, double* sketch_out, double* samples_out) {
  return statagent_compute_on(tensor, sketch, samples, nullptr, statistics, sketch_out,
                              samples_out);
}

int statagent_compute_on(const statagent_tensor* tensor, uint32_t sketch, uint32_t samples,
                         void* stream, statagent_statistics* statistics, double* sketch_out,
                         double* samples_out) {
  return Guarded([&] {
    STATCOLLECT_RETURN_IF_ERROR(CheckSize("statagent_compute", statistics));
    PlacedTensor placed;
    STATCOLLECT_RETURN_IF_ERROR(placed.Read("statagent_compute", tensor));
    if (sketch > 0 && sketch_out == nullptr) return Null("statagent_compute", "sketch_out");
    if (samples > 0 && samples_out == nullptr) return Null("statagent_compute", "samples_out");
    const auto computed = statagent::Compute(placed.view(), sketch, samples, stream);
    if (!computed.ok()) return computed.status();
    Write(*computed, statistics);
    std::copy(computed->sketch.begin(), computed->sketch.end(), sketch_out);
    std::copy(computed->samples.begin(), computed->samples.end(), samples_out);
    return Status::Ok();
  });
}

int statagent_exponents(const statagent_tensor* tensor, int32_t lowest, uint32_t count,
                        uint64_t* counts) {
  return statagent_exponents_on(tensor, lowest, count, nullptr, counts);
}

int statagent_exponents_on(const statagent_tensor* tensor, int32_t lowest, uint32_t count,
                           void* stream, uint64_t* counts) {
  return Guarded([&] {
    const auto view = ReadTensor("statagent_exponents", tensor);
    if (!view.ok()) return view.status();
    if (count > 0 && counts == nullptr) return Null("statagent_exponents", "counts");
    constexpr int kReach = 4096;
    if (lowest < -kReach || lowest > kReach || count > 2 * kReach) {
      return Invalid("statagent_exponents: lowest is " + std::to_string(lowest) + " and count " +
                     std::to_string(count) + "; expected exponents within -4096..4096");
    }
    return statagent::CountExponents(*view, lowest, {counts, count}, stream);
  });
}

int statagent_redact(const char* name, const char* value, char* to, uint64_t* bytes) {
  return Guarded([&] {
    if (to == nullptr || bytes == nullptr)
      return Null("statagent_redact", to == nullptr ? "to" : "bytes");
    const std::string shown = statcollect::RedactSetting(Text(name), Text(value));
    const std::uint64_t room = std::exchange(*bytes, shown.size());
    if (shown.size() >= room) {
      return Status(Code::kResourceExhausted,
                    "redact a text: the result has " + std::to_string(shown.size()) +
                        " bytes; expected fewer than " + std::to_string(room));
    }
    std::memcpy(to, shown.c_str(), shown.size() + 1);
    return Status::Ok();
  });
}

int statagent_add_noise(const statagent_noise* noise, const void* from, void* to, uint64_t key,
                        uint64_t step, int32_t difference) {
  return Guarded([&] {
    STATCOLLECT_RETURN_IF_ERROR(CheckSize("statagent_add_noise", noise));
    const bool scalar = noise->ndim == 0;
    if (!scalar && (noise->shape == nullptr || noise->from_strides == nullptr ||
                    noise->to_strides == nullptr || noise->index_strides == nullptr))
      return Null("statagent_add_noise", "shape or strides");
    const std::size_t dims = noise->ndim;
    const statcollect::stats::NoiseLayout layout{
        .dtype = ReadEnum<statcollect::DType>(noise->dtype),
        .shape = {noise->shape, dims},
        .from_strides = {noise->from_strides, dims},
        .to_strides = {noise->to_strides, dims},
        .index_strides = {noise->index_strides, dims},
        .first_index = noise->first_index};
    STATCOLLECT_RETURN_IF_ERROR(Validate(layout));
    const bool empty = std::find(layout.shape.begin(), layout.shape.end(), 0) != layout.shape.end();
    if (!empty && (from == nullptr || to == nullptr))
      return Null("statagent_add_noise", "from or to");
    AddNoise(layout, from, to, {.key = key, .step = step, .ulps = noise->ulps}, difference != 0);
    return Status::Ok();
  });
}

int statagent_steps_parse(const char* text, statagent_steps** steps) {
  return Guarded([&] {
    if (steps == nullptr) return Null("statagent_steps_parse", "steps");
    *steps = nullptr;
    auto parsed = statcollect::StepSet::Parse(Text(text));
    if (!parsed.ok()) return parsed.status();
    *steps = new statagent_steps{*std::move(parsed)};
    return Status::Ok();
  });
}

int statagent_steps_contains(const statagent_steps* steps, uint64_t step) {
  return steps != nullptr && steps->set.Contains(step) ? 1 : 0;
}

void statagent_steps_free(statagent_steps* steps) { delete steps; }

}  // extern "C"
