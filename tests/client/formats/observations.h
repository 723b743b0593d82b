// Observations as text, one a line, for tests.
#ifndef STATCOLLECT_TESTS_CLIENT_FORMATS_OBSERVATIONS_H_
#define STATCOLLECT_TESTS_CLIENT_FORMATS_OBSERVATIONS_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "client/formats/dump.h"
#include "common/names.h"
#include "proto/convert.h"

namespace statcollect::client::formats {

inline std::string RenderBits(std::uint32_t bits) {
  std::string text;
  for (int i = 0; i < kStatisticCount; ++i) {
    if ((bits >> i & 1) != 0)
      text += (text.empty() ? "" : ",") + std::string(Name(static_cast<Statistic>(i)));
  }
  return text.empty() ? "-" : text;
}

inline std::string RenderNumber(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

inline std::string Render(const Observation& o) {
  const TensorKey& key = o.def.key;
  std::string line =
      "step " + std::to_string(o.step) + " " + std::string(Name(key.kind)) + " '" + key.name + "'";
  if (!key.output_path.empty()) line += " path " + key.output_path;
  if (key.micro_batch > 0) line += " mb " + std::to_string(key.micro_batch);
  if (key.call > 0) line += " call " + std::to_string(key.call);
  if (key.mode != Mode::kTrain) line += " " + std::string(Name(key.mode));
  line += " class '" + o.def.class_name + "' parent '" + o.def.parent + "' depth " +
          std::to_string(o.def.depth) + " " + std::string(Name(o.layout.dtype));
  for (std::size_t i = 0; i < o.layout.shape.size(); ++i)
    line += (i == 0 ? " " : "x") + std::to_string(o.layout.shape[i]);
  line += " absent " + RenderBits(o.layout.absent) + " untrusted " + RenderBits(o.layout.untrusted);
  const TensorStats& s = o.stats;
  line += " n " + std::to_string(s.numel) + " nan " + std::to_string(s.nan) + " inf +" +
          std::to_string(s.pos_inf) + " -" + std::to_string(s.neg_inf) + " zero " +
          std::to_string(s.zero) + " neg " + std::to_string(s.neg) + " pos " +
          std::to_string(s.pos);
  line += s.has_finite ? "" : " nothing finite";
  for (const auto& [name, value] :
       {std::pair("min", s.min), {"max", s.max}, {"mean", s.mean}, {"std", s.std}, {"l2", s.l2}})
    line += std::string(" ") + name + " " + RenderNumber(value);
  if (o.layout.Has(Statistic::kL1) && !o.layout.Has(Statistic::kL2))
    line += " l1 " + RenderNumber(s.l1);
  if (o.layout.Has(Statistic::kHash)) {
    char hash[32];
    std::snprintf(hash, sizeof hash, " %016llx", static_cast<unsigned long long>(s.hash));
    line += " " + std::string(Name(o.layout.hash_kind)) + hash;
  }
  for (std::size_t i = 0; i < o.samples.size(); ++i)
    line += (i == 0 ? " samples " : ",") + RenderNumber(o.samples[i]);
  return line;
}

// Whether the collector would take it: a batch of it alone passes the wire's validation.
inline Status CheckOnWire(const Observation& o) {
  RecordBatch batch;
  batch.first_seq = 1;
  batch.activations = {o.def};
  batch.activations[0].id = 0;
  batch.layouts = {o.layout};
  batch.layouts[0].id = 0;
  batch.stats.activation = {0};
  batch.stats.layout = {0};
  batch.stats.step = {o.step};
  batch.stats.order = {0};
  batch.stats.stats = {o.stats};
  batch.stats.sketch_width = static_cast<std::uint32_t>(o.sketch.size());
  batch.stats.sketch = o.sketch;
  batch.stats.sample_count = {static_cast<std::uint32_t>(o.samples.size())};
  batch.stats.samples = o.samples;
  return FromWire(ToWire(batch, {}), {}).status();
}

// Keeps what it gets, as text.
class RenderingSink final : public ObservationSink {
 public:
  std::vector<std::string> lines;

 private:
  Status DoTake(Observation o) override {
    const Status valid = CheckOnWire(o);
    EXPECT_TRUE(valid.ok()) << Render(o) << ": " << valid.message();
    lines.push_back(Render(o));
    return Status::Ok();
  }
  Status DoTakeScalar(ScalarRecord scalar) override {
    lines.push_back("step " + std::to_string(scalar.step) + " scalar '" + scalar.name + "' " +
                    RenderNumber(scalar.value));
    return Status::Ok();
  }
  Status DoEndStep(std::uint64_t step) override {
    lines.push_back("end of step " + std::to_string(step));
    return Status::Ok();
  }
};

// The whole dump with its tally, or the error.
inline std::string RenderDump(DumpFormat format, const ReadOptions& options) {
  Tally tally;
  std::string text;
  const auto from = [&](std::string message) {
    for (std::size_t at; (at = message.find(options.path)) != std::string::npos;)
      message.replace(at, options.path.size(), "DUMP");
    return message;
  };
  const Reading reading{.options = options, .tally = tally, .warn = [&](const Status& bad) {
                          text += "left out: " + from(bad.message()) + "\n";
                        }};
  auto dump = OpenDump(format, reading);
  if (!dump.ok()) return "error: " + from(dump.status().message()) + "\n";
  for (const std::uint32_t rank : (*dump)->ranks()) {
    text += "rank " + std::to_string(rank) + "\n";
    RenderingSink sink;
    const Status status = (*dump)->Read(rank, sink);
    for (const std::string& line : sink.lines) text += line + "\n";
    if (!status.ok()) text += "error: " + from(status.message()) + "\n";
  }
  text += std::to_string(tally.files) + " files\n";
  for (const auto& [cause, count] : tally.skipped)
    text += "skipped " + std::to_string(count) + " " + cause + "\n";
  for (const auto& [what, count] : tally.untrusted)
    text += "untrusted " + what + " " + std::to_string(count) + "\n";
  for (const std::string& note : tally.notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_TESTS_CLIENT_FORMATS_OBSERVATIONS_H_
