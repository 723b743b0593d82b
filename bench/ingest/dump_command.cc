// statcollect-bench dump: the records of `ingest`, in the formats that other stores load.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "bench/ingest/commands.h"
#include "bench/ingest/network.h"
#include "bench/ingest/record_flags.h"
#include "bench/ingest/record_maker.h"

namespace statcollect::bench {
namespace {

constexpr std::size_t kFlushBytes = 1 << 20;
constexpr std::int64_t kStartMillis = 1'700'000'000'000;  // since the epoch, of step 0
constexpr std::int64_t kStepMillis = 1000;

struct DumpOptions {
  std::string format = "rowbinary";
  std::uint32_t run = 1, first_rank = 0, ranks = 8, activations = 1000;
  std::uint64_t steps = 100;
  double repeat = 0;
  MakerOptions maker;
};

// Standard output, a megabyte at a time.
class Out {
 public:
  ~Out() { Flush(); }
  void Text(std::string_view text) { bytes_ += text; }
  template <typename T>
  void Raw(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename T>
  void Number(T value) {
    char text[32];
    const auto done = std::to_chars(text, text + sizeof(text), value);
    bytes_.append(text, done.ptr);
  }
  void EndRecord() {
    if (bytes_.size() >= kFlushBytes) Flush();
  }
  bool ok() const { return ok_; }

 private:
  void Flush() {
    ok_ = ok_ && std::fwrite(bytes_.data(), 1, bytes_.size(), stdout) == bytes_.size();
    bytes_.clear();
  }
  std::string bytes_;
  bool ok_ = true;
};

struct RowKey {
  std::uint32_t run, rank;
  std::uint64_t step;
  std::uint32_t activation, layout;
};

// run, rank, step, act, layout UInt32; nan, pos_inf, neg_inf, zero, neg, pos UInt64; min, max,
// mean, std, l1, l2 Float64; hash UInt64; sketch Array(Float32), if there is one.
void RowBinary(const RowKey& place, const MadeColumns& c, std::size_t i, std::uint32_t k,
               Out& out) {
  out.Raw(place.run);
  out.Raw(place.rank);
  out.Raw(static_cast<std::uint32_t>(place.step));
  out.Raw(place.activation);
  out.Raw(place.layout);
  for (const std::uint64_t count :
       {std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, c.zero[i], c.neg[i], c.pos[i]})
    out.Raw(count);
  for (const double value : {c.min[i], c.max[i], c.mean[i], c.std[i], c.l1[i], c.l2[i]})
    out.Raw(value);
  out.Raw(c.hash[i]);
  if (k == 0) return;
  out.Raw(static_cast<std::uint8_t>(k));  // a varint below 128
  out.Text({reinterpret_cast<const char*>(c.sketch.data() + i * k), k * sizeof(float)});
}

// One line a record: a time series for each field. A hash does not fit a float64, so it is two
// fields.
void Influx(const RowKey& place, const MadeColumns& c, std::size_t i, Out& out) {
  out.Text("s,run=");
  out.Number(place.run);
  out.Text(",rank=");
  out.Number(place.rank);
  out.Text(",act=");
  out.Number(place.activation);
  const std::pair<std::string_view, std::uint64_t> counts[] = {
      {" nan=", 0},
      {",pos_inf=", 0},
      {",neg_inf=", 0},
      {",zero=", c.zero[i]},
      {",neg=", c.neg[i]},
      {",pos=", c.pos[i]},
      {",hash_high=", c.hash[i] >> 32},
      {",hash_low=", c.hash[i] & 0xffffffffu}};
  for (const auto& [name, count] : counts) {
    out.Text(name);
    out.Number(count);
  }
  const std::pair<std::string_view, double> values[] = {{",min=", c.min[i]},   {",max=", c.max[i]},
                                                        {",mean=", c.mean[i]}, {",std=", c.std[i]},
                                                        {",l1=", c.l1[i]},     {",l2=", c.l2[i]}};
  for (const auto& [name, value] : values) {
    out.Text(name);
    out.Number(value);
  }
  out.Text(" ");
  out.Number(1'000'000 * (kStartMillis + kStepMillis * static_cast<std::int64_t>(place.step)));
  out.Text("\n");
}

// Rank by rank as tables are sorted, or step by step as time goes.
int Dump(const DumpOptions& o) {
  const Network network(o.activations, o.repeat);
  const RecordMaker maker(network, o.maker);
  const bool rows = o.format == "rowbinary";
  MadeColumns columns;
  columns.Resize(o.activations, maker.sketch());
  Out out;
  const std::uint64_t outer = rows ? o.ranks : o.steps, inner = rows ? o.steps : o.ranks;
  for (std::uint64_t a = 0; a < outer && out.ok(); ++a) {
    for (std::uint64_t b = 0; b < inner && out.ok(); ++b) {
      const auto rank = o.first_rank + static_cast<std::uint32_t>(rows ? a : b);
      const std::uint64_t step = rows ? b : a;
      maker.Make(rank, step, 0, o.activations, 0, &columns);
      for (std::uint32_t i = 0; i < o.activations; ++i) {
        const RowKey place{o.run, rank, step, i, network.layout_of()[i]};
        if (rows) {
          RowBinary(place, columns, i, maker.sketch(), out);
        } else {
          Influx(place, columns, i, out);
        }
        out.EndRecord();
      }
    }
  }
  if (out.ok()) return 0;
  std::cerr << "statcollect-bench dump: writing failed; expected a reader of standard output\n";
  return 1;
}

}  // namespace

Command AddDump(CLI::App& app) {
  auto o = std::make_shared<DumpOptions>();
  CLI::App* command =
      app.add_subcommand("dump", "The same records for other stores, on standard output");
  command
      ->add_option("--format", o->format,
                   "rowbinary (ClickHouse) or influx (line protocol, without sketch)")
      ->check(CLI::IsMember({"rowbinary", "influx"}))
      ->capture_default_str();
  command->add_option("--run", o->run, "Number of the run")->capture_default_str();
  command->add_option("--first-rank", o->first_rank, "Ranks from this one on")
      ->capture_default_str();
  command->add_option("--ranks", o->ranks, "Ranks")->capture_default_str();
  command->add_option("--steps", o->steps, "Steps of a rank")
      ->check(CLI::Range(1u, 100'000'000u))
      ->capture_default_str();
  AddRecordFlags(command, &o->activations, &o->maker.sketch, &o->repeat);
  command->add_option("--seed", o->maker.seed, "As of ingest")->capture_default_str();
  command->add_option("--differ-from", o->maker.differ_from, "As of ingest");
  return [o] { return Dump(*o); };
}

}  // namespace statcollect::bench
