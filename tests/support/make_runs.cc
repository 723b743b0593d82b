// Writes runs into a store, for tests in other languages: what a run holds comes as JSON, one
// launch a line, from standard input; statistics and sketches are computed here, the plain way. A
// daemon then serves the store.
//
// Usage: make_runs DATA_DIR < launches.jsonl
//   {"run": "a", "world_size": 2, "sketch": 16, "records": [RECORD...], "no_step_end": [[rank,
//   step]...],
//    "dropped": {"0": 3}}
// RECORD, in order of execution:
//   {"rank": 0, "step": 0, "name": "fc", "values": [1.5, "nan", "-inf"]} and, where they are not
//   the default, "kind": "output", "path": "", "micro_batch": 0, "call": 0, "mode": "train",
//   "dtype": "f32", "shape": [n], "samples": 0
//   {"rank": 0, "step": 0, "scalar": "loss", "value": 1.5, "micro_batch": 0}
//   {"rank": 0, "step": 0, "event": "nan_first_seen", "text": "..."}
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "common/capture_spec.h"
#include "server/store/clickhouse/clickhouse_store.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/query/run_writer.h"

namespace statcollect::testing {
namespace {

using Json = nlohmann::json;

double Number(const Json& json) {
  return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
}

void WriteRecord(RunWriter& writer, const Json& json) {
  const auto rank = json.at("rank").get<std::uint32_t>();
  const auto step = json.at("step").get<std::uint64_t>();
  if (json.contains("scalar")) {
    writer.Scalar(rank, step, json["scalar"].get<std::string>(), Number(json.at("value")),
                  json.value("micro_batch", 0u));
    return;
  }
  if (json.contains("event")) {
    writer.Event(rank, step, json["event"].get<std::string>(), json.value("text", ""));
    return;
  }
  Tensor tensor{.samples = json.value("samples", 0u)};
  for (const Json& value : json.at("values")) tensor.values.push_back(Number(value));
  tensor.dtype = ParseDType(json.value("dtype", "f32")).value();
  if (json.contains("shape")) tensor.shape = json["shape"].get<std::vector<std::int64_t>>();
  writer.Observe(
      rank, step,
      Key(json.at("name").get<std::string>(), ParseKind(json.value("kind", "output")).value(),
          json.value("path", ""), json.value("micro_batch", 0u), json.value("call", 0u),
          ParseMode(json.value("mode", "train")).value()),
      tensor);
}

void WriteLaunch(Store& store, const Json& json) {
  RunWriter writer(store, json.at("run").get<std::string>(), json.value("world_size", 1u),
                   json.value("sketch", 16u));
  writer.NarrowSketches();
  for (const Json& record : json.at("records")) WriteRecord(writer, record);
  for (const Json& place : json.value("no_step_end", Json::array()))
    writer.NoStepEnd(place.at(0).get<std::uint32_t>(), place.at(1).get<std::uint64_t>());
  for (const auto& [rank, count] : json.value("dropped", Json::object()).items())
    writer.Dropped(static_cast<std::uint32_t>(std::stoul(rank)), count.get<std::uint64_t>());
  writer.Commit();
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_runs DATA_DIR|clickhouse://HOST:PORT/DATABASE < launches.jsonl\n";
    return 2;
  }
  const std::string place = argv[1];
  auto store = IsClickHouseAddress(place) ? OpenClickHouseStore(place)
                                          : OpenRocksDbStore(place, {.fsync = false});
  if (!store.ok()) {
    std::cerr << "make_runs: " << store.status().message() << '\n';
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) WriteLaunch(**store, Json::parse(line));
  return 0;
}

}  // namespace
}  // namespace statcollect::testing

int main(int argc, char** argv) {
  try {
    return statcollect::testing::Main(argc, argv);
  } catch (const std::exception& failure) {
    std::cerr << "make_runs: " << failure.what() << '\n';
    return 1;
  }
}
