// Other tools' dumps: the first byte says which. What a reader hands on is what the collector
// takes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "client/formats/array_stats.h"
#include "client/formats/debug_mode_log.h"
#include "client/formats/mindspore_csv.h"
#include "client/formats/msprobe_json.h"
#include "client/formats/npy.h"
#include "client/formats/ort_text.h"
#include "client/formats/sglang_name.h"
#include "client/formats/torch_file.h"
#include "client/formats/transformer_engine_log.h"
#include "proto/convert.h"

namespace {

using namespace statcollect;
using namespace statcollect::client::formats;

// A batch of it alone passes the wire's validation.
Status MustBeTaken(const Observation& o) {
  RecordBatch batch;
  batch.first_seq = 1;
  batch.activations = {o.def};
  batch.activations[0].id = 0;
  batch.layouts = {o.layout};
  batch.layouts[0].id = 0;
  batch.stats.activation = batch.stats.layout = batch.stats.order = {0};
  batch.stats.step = {o.step};
  batch.stats.stats = {o.stats};
  batch.stats.sketch_width = static_cast<std::uint32_t>(o.sketch.size());
  batch.stats.sketch = o.sketch;
  batch.stats.sample_count = {static_cast<std::uint32_t>(o.samples.size())};
  batch.stats.samples = o.samples;
  if (!FromWire(ToWire(batch, {}), {}).ok()) std::abort();
  return Status::Ok();
}

void ReadOrt(std::string_view text, bool trust_std) {
  MemorySource source("f", text);
  LineReader lines;
  lines.Reset(source);
  Tally tally;
  OrtRecord record;
  while (true) {
    const auto more = ReadOrtRecord(lines, true, &record);
    if (!more.ok() || !*more) return;
    if (record.dtype != DType::kUnspecified)
      (void)MustBeTaken(ToObservation(record, trust_std, &tally));
  }
}

void ReadMindSpore(std::string_view text, const RawCannFile* raw) {
  MemorySource source("f", text);
  LineReader lines;
  lines.Reset(source);
  Tally tally;
  (void)ReadMindSporeCsv(lines, raw, &tally, &MustBeTaken);
}

void ReadNpy(std::string_view text) {
  MemorySource source("f", text);
  const auto header = ReadNpyHeader(source);
  if (!header.ok()) return;
  Observation o;
  o.def.key = {.name = "x", .kind = Kind::kOutput};
  if (header->dtype == DType::kUnspecified) return;
  o.layout.dtype = header->dtype;
  o.layout.shape = header->shape;
  const auto stats = ReadStats(source, *header, header->dtype, {});
  if (!stats.ok()) return;
  o.stats = *stats;
  (void)MustBeTaken(o);
}

void ReadTorch(std::string_view text) {
  MemorySource source("f", text);
  auto file = TorchFile::Open(source);
  if (!file.ok()) return;
  const auto take = [](const TorchFile::Tensor& tensor) {
    Observation o;
    o.def.key = {.name = "x", .kind = Kind::kOutput};
    o.layout = tensor.layout;
    o.stats = tensor.stats;
    o.sketch = tensor.sketch;
    return MustBeTaken(o);
  };
  (void)file->Visit(file->content().root(),
                    {.tensor = take,
                     .number = [](const auto&, double) { return Status::Ok(); },
                     .other = [](const auto&) {}});
}

class CheckingSink final : public ObservationSink {
  Status DoTake(Observation o) override { return MustBeTaken(o); }
  Status DoTakeScalar(ScalarRecord) override { return Status::Ok(); }
  Status DoEndStep(std::uint64_t) override { return Status::Ok(); }
};

void ReadTransformerEngine(std::string_view text) {
  MemorySource source("f", text);
  Tally tally;
  CheckingSink sink;
  (void)ReadTransformerEngineLog(source, {}, &tally, sink);
}

void ReadDebugMode(std::string_view text) {
  MemorySource source("f", text);
  Tally tally;
  (void)ReadDebugModeLog(source, &tally, &MustBeTaken);
}

// A construct.json up to the first byte 0, then a dump.json.
void ReadMsProbe(std::string_view text) {
  const std::size_t cut = text.find('\0');
  MsProbeTree tree;
  Tally tally;
  if (cut != std::string_view::npos) {
    MemorySource construct("c", text.substr(0, cut));
    (void)ReadMsProbeConstruct(construct, &tree);
    text.remove_prefix(cut + 1);
  }
  MemorySource source("f", text);
  (void)ReadMsProbeDump(source, &tally, [&](const MsProbeTensor& tensor) {
    const auto observation = ToObservation(tensor, tree, &tally);
    if (!observation.ok()) return observation.status();
    return *observation ? MustBeTaken(**observation) : Status::Ok();
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const RawCannFile raw{.op_type = "Add", .op_name = "Add-op1"};
  switch (data[0]) {
    case 'o':
      ReadOrt(text, false);
      break;
    case 't':
      ReadOrt(text, true);
      break;
    case 'm':
      ReadMindSpore(text, nullptr);
      break;
    case 'r':
      ReadMindSpore(text, &raw);
      break;
    case 'p':
      ReadMsProbe(text);
      break;
    case 'n':
      ReadNpy(text);
      break;
    case 'z':
      ReadTorch(text);
      break;
    case 'e':
      ReadTransformerEngine(text);
      break;
    case 'd':
      ReadDebugMode(text);
      break;
    default:
      (void)ParseSglangName(text);
      (void)ParseSglangPass(text);
      (void)ParseMsProbeEntry(text);
      (void)ParseOrtName(text);
      (void)ParseRawCannName(text);
      (void)NumberPattern::Parse(std::string(text));
  }
  return 0;
}
