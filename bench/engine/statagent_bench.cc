// Measures the CPU engine beside its limit, a plain read-and-sum of the same bytes, in the same
// run: targets P1 and P2 of docs/engine.md. Limit and engine alternate, so that what else the
// machine does touches both.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/stats/cpu/engine.h"
#include "agent/stats/stats.h"
#include "bench/engine/read_sum.h"
#include "common/names.h"

namespace statcollect::bench {
namespace {

using Seconds = std::chrono::duration<double>;

struct Options {
  std::uint64_t mebibytes = 1024;
  int rounds = 7;
  std::uint32_t sketch = 16;
  std::vector<int> threads = {1, 2};
  std::vector<std::string> dtypes = {"f32", "bf16", "f16", "f8e4m3", "f8e5m2",
                                     "f64", "i64",  "i8",  "bool"};
  std::string instruction_set = "best";
  std::string json;
};

struct FreePages {
  std::size_t bytes;
  void operator()(void* data) const { munmap(data, bytes); }
};
using Pages = std::unique_ptr<unsigned char, FreePages>;

Pages MapPages(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    std::cerr << "statagent_bench: map " << bytes
              << " bytes failed; expected that much free memory; use --mebibytes\n";
    std::exit(2);
  }
  madvise(data, bytes, MADV_HUGEPAGE);
  return Pages(static_cast<unsigned char*>(data), FreePages{bytes});
}

double Time(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return Seconds(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Small finite values in every dtype: floats of both signs around 0, of several magnitudes.
void FillFinite(DType dtype, std::size_t bytes, unsigned char* data) {
  std::uint64_t state = 0x853c49e6748fea9bu;
  const auto next = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 32);
  };
  const auto fill = [&](auto sample) {
    using T = decltype(sample());
    auto* values = reinterpret_cast<T*>(data);
    for (std::size_t i = 0; i < bytes / sizeof(T); ++i) values[i] = sample();
  };
  const auto value = [&next] { return (static_cast<double>(next()) - 2147483648.0) * 0x1p-31; };
  switch (dtype) {
    case DType::kF64:
      return fill([&] { return value(); });
    case DType::kF32:
      return fill([&] { return static_cast<float>(value()); });
    case DType::kF16:
      return fill([&] {
        const std::uint32_t r = next();
        return static_cast<std::uint16_t>((r & 0x83ffu) | ((8u + (r >> 16) % 8u) << 10));
      });
    case DType::kBf16:
      return fill([&] {
        const std::uint32_t r = next();
        return static_cast<std::uint16_t>((r & 0x807fu) | ((120u + (r >> 16) % 8u) << 7));
      });
    case DType::kF8E4M3:
      return fill([&] { return static_cast<std::uint8_t>(next() % 2 * 128 + next() % 112); });
    case DType::kF8E5M2:
      return fill([&] { return static_cast<std::uint8_t>(next() % 2 * 128 + next() % 112); });
    case DType::kBool:
      return fill([&] { return static_cast<std::uint8_t>(next() % 2); });
    default:
      return fill([&] { return static_cast<std::uint8_t>(next()); });
  }
}

DType DTypeOf(const std::string& name) {
  for (int i = 1; i < kDTypeCount; ++i) {
    if (Name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  std::cerr << "statagent_bench: --dtype '" << name
            << "' is unknown; expected f64 f32 f16 bf16 f8e4m3 f8e5m2 i8 .. u64 bool c64 c128\n";
  std::exit(2);
}

const stats::CpuKernels& KernelsNamed(const std::string& instruction_set) {
  using stats::InstructionSet;
  const std::pair<const char*, InstructionSet> sets[] = {{"baseline", InstructionSet::kBaseline},
                                                         {"avx2", InstructionSet::kAvx2},
                                                         {"avx512", InstructionSet::kAvx512}};
  for (const auto& [name, set] : sets) {
    if (instruction_set != name) continue;
    if (const stats::CpuKernels* kernels = stats::KernelsFor(set)) return *kernels;
    std::cerr
        << "statagent_bench: --instruction-set " << name
        << " is not available on this processor or in this build; use --instruction-set best\n";
    std::exit(2);
  }
  return stats::BestKernels();
}

// The set's name; of `best`, the one that it stands for.
std::string NameOf(const stats::CpuKernels& kernels) {
  if (&kernels == stats::KernelsFor(stats::InstructionSet::kAvx512)) return "avx512";
  return &kernels == stats::KernelsFor(stats::InstructionSet::kAvx2) ? "avx2" : "baseline";
}

struct Row {
  std::string dtype;
  int threads;
  double limit_gbs, engine_gbs, ratio, elements_per_second;
};

Row Measure(const std::string& name, int threads, const Options& options, unsigned char* data,
            std::size_t bytes) {
  const DType dtype = DTypeOf(name);
  FillFinite(dtype, bytes, data);
  const auto elements = static_cast<std::int64_t>(bytes / DTypeBytes(dtype));
  const std::vector<std::int64_t> shape = {elements};
  const stats::CpuTensor tensor{data, dtype, shape, {}};
  const stats::CpuKernels& kernels = KernelsNamed(options.instruction_set);
  std::vector<double> sketch(options.sketch);
  std::vector<double> limits, engines, ratios;
  stats::CpuWorkers workers(threads);
  volatile double sink = 0;
  for (int round = 0; round < options.rounds + 1; ++round) {
    const double limit = Time([&] { sink = ReadSum(data, bytes, threads); });
    const double engine = Time([&] {
      stats::Partial partial;
      stats::Accumulate(tensor, {0, stats::ComponentCount(tensor)}, options.sketch, kernels,
                        partial, &workers);
      sink = stats::Finished(partial, static_cast<std::uint64_t>(elements), sketch).l2;
    });
    if (round == 0) continue;  // pages, clocks and caches settle
    limits.push_back(limit);
    engines.push_back(engine);
    ratios.push_back(limit / engine);
  }
  const auto size = static_cast<double>(bytes);
  return {name,
          threads,
          size / Median(limits) / 1e9,
          size / Median(engines) / 1e9,
          Median(ratios),
          static_cast<double>(elements) / Median(engines)};
}

nlohmann::json ToJson(const Row& row, const Options& options) {
  return {{"dtype", row.dtype},
          {"threads", row.threads},
          {"instruction_set", NameOf(KernelsNamed(options.instruction_set))},
          {"sketch", options.sketch},
          {"mebibytes", options.mebibytes},
          {"read_sum_gb_per_s", row.limit_gbs},
          {"engine_gb_per_s", row.engine_gbs},
          {"ratio", row.ratio},
          {"elements_per_s", row.elements_per_second}};
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Throughput of the CPU statistics engine beside a plain read-and-sum of the same bytes.\n"
      "Example: statagent_bench --dtypes f32,bf16 --threads 1 --json engine.json"};
  app.add_option("--mebibytes", options.mebibytes, "size of the tensor")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "pairs of measurements, medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--sketch", options.sketch, "sums of the sketch")
      ->check(CLI::IsMember({0, 16, 32, 64}))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "thread counts")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--dtypes", options.dtypes, "dtypes")->delimiter(',')->capture_default_str();
  app.add_option("--instruction-set", options.instruction_set,
                 "of the engine; the limit always uses the widest")
      ->check(CLI::IsMember({"best", "baseline", "avx2", "avx512"}))
      ->capture_default_str();
  app.add_option("--json", options.json, "write the rows to this file");
  CLI11_PARSE(app, argc, argv);

  const std::size_t bytes = static_cast<std::size_t>(options.mebibytes) << 20;
  const Pages pages = MapPages(bytes);
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%-7s %7s %14s %12s %6s %10s\n", "dtype", "threads", "read-sum GB/s", "engine GB/s",
              "ratio", "G elem/s");
  for (const std::string& dtype : options.dtypes) {
    for (const int threads : options.threads) {
      const Row row = Measure(dtype, threads, options, pages.get(), bytes);
      std::printf("%-7s %7d %14.2f %12.2f %6.2f %10.2f\n", row.dtype.c_str(), row.threads,
                  row.limit_gbs, row.engine_gbs, row.ratio, row.elements_per_second / 1e9);
      std::fflush(stdout);
      rows.push_back(ToJson(row, options));
    }
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << nlohmann::json{{"bench", "statagent_bench"},
                           {"limit", "read-and-sum, widest vectors, 8 accumulators"},
                           {"rows", rows}}
                .dump(2)
         << '\n';
    if (!file) {
      std::cerr << "statagent_bench: write '" << options.json
                << "' failed; expected a writable path\n";
      return 2;
    }
  }
  return 0;
}

}  // namespace
}  // namespace statcollect::bench

int main(int argc, char** argv) { return statcollect::bench::Main(argc, argv); }
