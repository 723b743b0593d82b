#include "server/store/clickhouse/entries.h"

#include <chrono>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <utility>

#include "server/store/byte_io.h"
#include "server/store/clickhouse/schema.h"

namespace statcollect {
namespace {

// After entries were written, until they are read back: whoever else found none and writes one,
// too, has done so by then.
constexpr std::chrono::milliseconds kSettle{200};

// The first stands. Merges keep the row of the highest version, so it falls with time.
std::uint64_t VersionNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::numeric_limits<std::uint64_t>::max() -
         static_cast<std::uint64_t>(
             std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace

Result<std::string> ReadEntry(Engine& engine, const std::string& attempted, std::string_view key) {
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto answer,
      engine.Select(attempted, "SELECT value FROM " + TableName(engine, "store") + " WHERE key = " +
                                   SqlText(key) + " ORDER BY made DESC, value LIMIT 1"));
  ByteReader in(answer);
  std::string value = answer.empty() ? "" : in.Text();
  if (!in.done()) return BadAnswer(engine, attempted);
  return value;
}

Result<Entries> EnsureEntries(Engine& engine, const std::string& attempted, Entries entries) {
  bool written = false;
  for (auto& [key, value] : entries) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto found, ReadEntry(engine, attempted, key));
    if (!found.empty()) {
      value = std::move(found);
      continue;
    }
    ByteWriter row;
    row.Text(key);
    row.Text(value);
    const std::uint64_t made = VersionNow();
    row.U64(made);
    STATCOLLECT_RETURN_IF_ERROR(
        engine.Insert(attempted, TableName(engine, "store") + " (key, value, made)", row.bytes(),
                      "store " + key + " " + std::to_string(made)));
    written = true;
  }
  if (!written) return entries;
  std::this_thread::sleep_for(kSettle);
  for (auto& [key, value] : entries) {
    STATCOLLECT_ASSIGN_OR_RETURN(value, ReadEntry(engine, attempted, key));
  }
  return entries;
}

Status ProbeWrite(Engine& engine, const std::string& attempted) {
  // Unlike any before: the engine would take an equal row for a repetition, and ask no replica.
  const std::uint64_t made = std::uint64_t{std::random_device()()} << 32 | std::random_device()();
  ByteWriter row;
  row.Text("probe");
  row.Text("");
  row.U64(made);
  return engine.Insert(attempted, TableName(engine, "store") + " (key, value, made)", row.bytes(),
                       "probe " + std::to_string(made));
}

}  // namespace statcollect
