// JSON lines: one object a record of any kind (docs/import-export.md).
#include <concepts>
#include <utility>
#include <vector>

#include "client/exports/exporter.h"
#include "client/exports/output.h"
#include "client/exports/text.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

// Members of one object.
class Object {
 public:
  Object(std::string& to, std::string_view record) : to_(to) {
    to_ += '{';
    Add("record", record);
  }
  Object& Add(std::string_view key, std::string_view text) {
    AppendJsonString(text, Next(key));
    return *this;
  }
  template <std::unsigned_integral T>
  Object& Add(std::string_view key, T value) {
    AppendUnsigned(value, Next(key));
    return *this;
  }
  Object& AddSigned(std::string_view key, std::int64_t value) {
    AppendSigned(value, Next(key));
    return *this;
  }
  Object& Add(std::string_view key, double value) {
    AppendJsonDouble(value, Next(key));
    return *this;
  }
  template <typename T>
  Object& Add(std::string_view key, const std::optional<T>& value) {
    if (value) return Add(key, *value);
    Next(key) += "null";
    return *this;
  }
  void End() { to_ += "}\n"; }
  std::string& Next(std::string_view key) {
    if (!std::exchange(first_, false)) to_ += ',';
    to_ += '"';
    to_ += key;
    to_ += "\":";
    return to_;
  }

 private:
  std::string& to_;
  bool first_ = true;
};

// Where the rank's part lies in a larger tensor; absent of others. As Placement in
// proto/statcollect/v1/stats.proto.
void AddPlacement(Object& object, const Placement& place) {
  AppendList(std::span<const std::int64_t>(place.global_shape), object.Next("global_shape"));
  if (place.ranges.empty()) {
    AppendList(std::span<const std::int64_t>(place.boxes), object.Next("boxes"));
  } else {
    AppendList(std::span<const std::int64_t>(place.ranges), object.Next("ranges"));
  }
  if (place.pieces > 1) object.Add("piece", place.piece).Add("pieces", place.pieces);
  if (place.partial) object.Next("partial") += "true";
  if (place.unordered != 0) object.Add("unordered", place.unordered - 1);
}

class JsonExporter final : public Exporter {
 public:
  JsonExporter(const ExportTarget& target, std::optional<Partial> partial, FileWriter out)
      : target_(target), partial_(std::move(partial)), out_(std::move(out)) {
    Object object(out_.buffer(), "run");
    object.Add("run", target.run).Add("version", std::uint64_t{1}).End();
  }

  Status Write(const Observation& o) override {
    const TensorKey& key = o.def->key;
    const Numbers n = NumbersOf(o);
    Object object = Begin("stats", o.rank, o.step);
    object.Add("micro_batch", key.micro_batch)
        .Add("kind", Name(key.kind))
        .Add("activation", key.name);
    object.Add("output_path", key.output_path).Add("call", key.call).Add("mode", Name(key.mode));
    object.Add("class", o.def->class_name)
        .AddSigned("depth", o.def->depth)
        .Add("parent", o.def->parent);
    object.Add("order", o.order).Add("dtype", Name(o.layout->dtype));
    if (std::string& to = object.Next("shape"); n.numel) {
      AppendList(std::span<const std::int64_t>(o.layout->shape), to);
    } else {
      to += "null";
    }
    object.Add("numel", n.numel)
        .Add("nan", n.nan)
        .Add("pos_inf", n.pos_inf)
        .Add("neg_inf", n.neg_inf);
    object.Add("zero", n.zero)
        .Add("neg", n.neg)
        .Add("pos", n.pos)
        .Add("min", n.min)
        .Add("max", n.max);
    object.Add("mean", n.mean).Add("std", n.std).Add("l1", n.l1).Add("l2", n.l2);
    AddHash(object, n.hash);
    object.Add("inf", n.inf);
    AddWord(object, "hash_kind", HashKindOf(*o.layout));
    AddUntrusted(object, *o.layout);
    if (o.layout->placement) AddPlacement(object, *o.layout->placement);
    if (!o.ranks.empty()) {
      const std::vector<std::int64_t> ranks(o.ranks.begin(), o.ranks.end());
      AppendList(std::span<const std::int64_t>(ranks), object.Next("ranks"));
    }
    if (target_.sketches) AddList(object, "sketch", o.sketch);
    if (target_.samples) AddList(object, "samples", o.samples);
    object.End();
    return out_.Flushed();
  }

  Status Write(std::uint32_t rank, const ScalarRecord& scalar) override {
    Object object = Begin("scalar", rank, scalar.step);
    object.Add("micro_batch", scalar.micro_batch)
        .Add("name", scalar.name)
        .Add("value", scalar.value)
        .End();
    return out_.Flushed();
  }

  Status Write(std::uint32_t rank, const EventRecord& event) override {
    Object object = Begin("event", rank, event.step);
    object.Add("kind", event.kind)
        .AddSigned("unix_nanos", event.unix_nanos)
        .Add("text", event.text);
    std::string& to = object.Next("fields");
    char separator = '{';
    for (const auto& [name, value] : event.fields) {
      to += separator;
      AppendJsonString(name, to);
      to += ':';
      AppendJsonString(value, to);
      separator = ',';
    }
    to += event.fields.empty() ? "{}" : "}";
    object.End();
    return out_.Flushed();
  }

  Status Write(std::uint32_t rank, const MemoryRecord& memory) override {
    Object object = Begin("memory", rank, memory.step);
    object.Add("micro_batch", memory.micro_batch)
        .Add("phase", Name(memory.phase))
        .Add("device", memory.device);
    object.Add("module", memory.module);
    for (int i = 0; i < kMemoryQuantityCount; ++i) {
      const auto quantity = static_cast<MemoryQuantity>(i);
      if (memory.Has(quantity)) object.AddSigned(Name(quantity), memory.Of(quantity));
    }
    object.End();
    return out_.Flushed();
  }

  Status Write(std::uint32_t rank, const DensityRecord& density) override {
    Object object = Begin("density", rank, density.step);
    object.Add("micro_batch", density.micro_batch)
        .Add("input", density.input)
        .Add("type", Name(density.type));
    object.AddSigned("pad_index", density.pad_index)
        .Add("valid", density.valid)
        .Add("total", density.total);
    std::string& to = object.Next("valid_per_sample");
    char separator = '[';
    for (const std::uint64_t valid : density.valid_per_sample) {
      to += separator;
      AppendUnsigned(valid, to);
      separator = ',';
    }
    to += density.valid_per_sample.empty() ? "[]" : "]";
    object.End();
    return out_.Flushed();
  }

  Status Write(std::uint32_t rank, const StepRecord& end) override {
    Object object = Begin("step_end", rank, end.step);
    object.AddSigned("unix_nanos", end.unix_nanos).Add("micro_batches", end.micro_batches).End();
    return out_.Flushed();
  }

  Status Finish() override {
    STATCOLLECT_RETURN_IF_ERROR(out_.Close(/*sync=*/partial_.has_value()));
    return partial_ ? partial_->Commit() : Status::Ok();
  }

 private:
  Object Begin(std::string_view record, std::uint32_t rank, std::uint64_t step) {
    Object object(out_.buffer(), record);
    object.Add("rank", rank).Add("step", step);
    return object;
  }
  static void AddHash(Object& object, const std::optional<std::uint64_t>& hash) {
    std::string& to = object.Next("hash");
    if (!hash) {
      to += "null";
      return;
    }
    to += '"';
    AppendHash(*hash, to);
    to += '"';
  }
  static void AddWord(Object& object, std::string_view key, std::string_view word) {
    if (word.empty()) {
      object.Next(key) += "null";
    } else {
      object.Add(key, word);
    }
  }
  static void AddUntrusted(Object& object, const Layout& layout) {
    std::string& to = object.Next("untrusted");
    const std::string words = UntrustedOf(layout);
    to += '[';
    if (!words.empty()) {
      to += '"';
      for (const char c : words) c == ' ' ? to += "\",\"" : to += c;
      to += '"';
    }
    to += ']';
  }
  static void AddList(Object& object, std::string_view key, std::span<const double> values) {
    std::string& to = object.Next(key);
    if (values.empty()) {
      to += "null";
    } else {
      AppendList(values, to);
    }
  }

  const ExportTarget target_;
  std::optional<Partial> partial_;
  FileWriter out_;
};

}  // namespace

std::unique_ptr<Exporter> MakeJsonExporter(const ExportTarget& target, FileWriter out) {
  return std::make_unique<JsonExporter>(target, std::nullopt, std::move(out));
}

Result<std::unique_ptr<Exporter>> MakeJsonExporter(const ExportTarget& target) {
  if (target.path == "-") return MakeJsonExporter(target, FileWriter::StandardOutput());
  auto partial = Partial::File(target.path, target.overwrite);
  if (!partial.ok()) return partial.status();
  auto out = FileWriter::Create(partial->path());
  if (!out.ok()) return out.status();
  return std::unique_ptr<Exporter>(
      std::make_unique<JsonExporter>(target, *std::move(partial), *std::move(out)));
}

}  // namespace statcollect::client
